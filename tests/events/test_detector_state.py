"""State, withdrawal and bounds of a detector: it goes on as if nothing had happened."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from activedb.errors import BadEvent, PartialsExceeded, PatternError
from activedb.events import (
    AccuracyInterval,
    Detector,
    Expression,
    Occurrence,
    all_of,
    event,
    every,
    many,
    occurrence,
    periodic,
    query,
    seq,
    some_of,
)
from tests.drawing import SCALE, Worlds

A, B, C, N = (event(name) for name in "ABCN")
AGAIN = event("A", alias="again")

EXPRESSIONS: list[Expression] = [
    A | B,
    seq(A, ~N, B).same("x").within(4),
    seq(A, B).context("chronicle"),
    seq(A, B, C).context("continuous").within(5),
    seq(A, B).same("x").context("cumulative"),
    seq(A, B).context("recent"),
    seq(A, many(B), C).selecting("next").skipping("past_last"),
    seq(A, many(B, 0, 2, greedy=False), C).within(4),
    seq(A, B, C).selecting("strict").skipping("to_first", "B"),
    seq(A, ~N).within(3).context("chronicle"),
    seq(~N, A, B, ~N).within(3),
    all_of(A, seq(AGAIN.named("inner"), B), C).within(5),
    some_of(2, A, B, C).context("chronicle"),
    seq(A, B, C).within(3).timed_out(),
    A.after(2) | seq(B, C.after(1)),
    periodic(A, 2, C).context("chronicle"),
    periodic(A, 2, C, collected=True).context("cumulative"),
    seq(every(3), A),
    seq(query("Q", seq(A, B).context("chronicle")), C).context("chronicle"),
    query("Q", seq(A, B)) | seq(A, C).skipping("to_next"),
]


def o(name: str, second: float, **params: Any) -> Occurrence:
    return occurrence(name, timestamp=second, **params)


def described(matches: list[Occurrence]) -> list[Any]:
    return [(m.us, m.name, m.params.get("n"), [part(p) for p in m.parts.items()]) for m in matches]


def part(item: tuple[str, Any]) -> Any:
    name, bound = item
    if type(bound) is tuple:
        return name, [(each.name, each.us, each.params.get("n")) for each in bound]
    return name, bound.name, bound.us, bound.params.get("n"), [*map(part, bound.parts.items())]


def history(random: Random, size: int, *, late: bool = False) -> list[Occurrence | int]:
    """Events, and times to advance to."""
    steps: list[Occurrence | int] = []
    second = 0
    for number in range(size):
        second += random.randrange(3)
        if random.random() < 0.3:
            steps.append(second * 1_000_000)
        at = second - (random.randrange(4) if late else 0)
        steps.append(o(random.choice("AABBCN"), at, x=random.randrange(2), n=number))
    return steps


def tell(detector: Detector, step: Occurrence | int) -> list[Any]:
    if isinstance(step, int):
        return described(detector.advance(step))
    return described(detector.feed(step))


@pytest.mark.long
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=repr)
def test_restored_detector_at_every_cut_goes_on_as_the_original(expression: Expression) -> None:
    worlds = Worlds(3 * SCALE, "restored", expression, made=1)
    for random in worlds:
        steps = [*history(random, 14, late=random.random() < 0.3), 10**9]
        original = Detector(expression)
        states, made = [], []
        for step in steps:
            states.append(json.loads(json.dumps(original.state())))
            made.append(tell(original, step))
        for cut, state in enumerate(states):
            restored = Detector(expression)
            restored.restore(state)
            assert [tell(restored, step) for step in steps[cut:]] == made[cut:]
        worlds.met["made"] += sum(map(len, made))


@pytest.mark.long
@pytest.mark.parametrize("on_full", ["drop_oldest", "refuse"])
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=repr)
def test_restored_detector_with_a_bound_keeps_what_the_original_keeps(
    expression: Expression, on_full: str
) -> None:
    def told(detector: Detector, step: Occurrence | int) -> tuple[Any, ...]:
        """Return what a step makes and keeps, and what is kept once older events are past."""
        try:
            made = tell(detector, step)
        except PartialsExceeded:
            made = ["refused"]
        kept = detector.partials
        detector.trim(step if isinstance(step, int) else step.us)
        return made, kept, detector.partials, detector.dropped

    worlds = Worlds(6 * SCALE, "restored with a bound", expression, on_full)
    for random in worlds:
        steps = history(random, 16)
        options: dict[str, Any] = {"partials_max": random.randint(1, 4), "on_full": on_full}
        original = Detector(expression, **options)
        states, expected = [], []
        for step in steps:
            states.append(json.loads(json.dumps(original.state())))
            expected.append(told(original, step))
        for cut, state in enumerate(states):
            restored = Detector(expression, **options)
            restored.restore(state)
            assert [told(restored, step) for step in steps[cut:]] == expected[cut:], (cut, steps)


@pytest.mark.long
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=repr)
def test_withdrawn_events_are_as_if_never_fed(expression: Expression) -> None:
    for random in Worlds(12 * SCALE, "withdrawn", expression):
        steps = history(random, 12)
        withdrawn = [s for s in steps if isinstance(s, Occurrence) and random.random() < 0.3]
        with_them, without = Detector(expression), Detector(expression)
        # The time told stays told.
        first = next(s.us if isinstance(s, Occurrence) else s for s in steps)
        for detector in (with_them, without):
            detector.advance(first)
        for step in steps:
            tell(with_them, step)
            if step not in withdrawn:
                tell(without, step)
        random.shuffle(withdrawn)
        for each in withdrawn:
            with_them.withdraw(each)
        assert with_them.partials == without.partials
        more = [*history(random, 8), 10**9]
        later = [s + 40_000_000 if isinstance(s, int) else o(s.name, s.us / 1e6 + 40, **s.params)
                 for s in more]  # fmt: skip
        for step in (*more, *later):
            assert tell(with_them, step) == tell(without, step)


def test_restored_detector_knows_a_shared_event_as_one() -> None:
    detector = Detector(all_of(seq(A, B), AGAIN, C))
    for number, name in enumerate("AB"):
        detector.feed(o(name, number))
    restored = Detector(detector.expression)
    restored.restore(json.loads(json.dumps(detector.state())))
    # The A of the sequence is the only A there is: it cannot be both.
    assert restored.feed(o("C", 5)) == detector.feed(o("C", 5)) == []
    assert len(restored.feed(o("A", 6))) == 1


def test_restore_of_another_expressions_state_is_refused() -> None:
    state = Detector(seq(A, B)).state()
    with pytest.raises(PatternError, match=r"state is one of SEQ\(A, B\)"):
        Detector(seq(A, C)).restore(state)


def test_state_with_a_value_that_cannot_be_encoded_names_it() -> None:
    detector = Detector(seq(A, B))
    detector.feed(o("A", 1, x=object()))
    with pytest.raises(BadEvent, match="parameter 'x'"):
        detector.state()


def test_reading_of_an_event_is_asked_once_and_survives_withdrawals() -> None:
    asked = []

    def says(t: Any, event_: Occurrence) -> bool:
        asked.append((t, event_.us))
        return event_.us == 1_000_000

    detector = Detector(seq(event("A", reading=says), B).context("chronicle"))
    first, other = o("A", 1), o("B", 0.5)
    detector.feed(other, "t1")
    detector.feed(first, "t2")
    detector.feed(o("A", 2), "t3")
    detector.withdraw(other)
    assert [m.parts["A"] for m in detector.feed(o("B", 3), "t4")] == [first]
    assert asked == [("t2", 1_000_000), ("t3", 2_000_000)]


def test_reading_is_asked_for_each_tick_of_a_clock_and_survives_withdrawals() -> None:
    asked = []

    def says(t: Any, parts: Any) -> bool:
        asked.append((t, parts["tick"].us // 1_000_000))
        return bool(asked[-1][1] % 2)

    detector = Detector(seq(A, every(1, alias="tick")).within(20).reading(says))
    detector.advance(0)
    other = o("A", 0)
    detector.feed(other)
    detector.feed(o("A", 1))
    # Nothing keeps the ticks, so that one may have the address of one before.
    found = detector.advance(8_000_000, "t1")
    assert [m.us for m in found if m.parts["A"] is not other] == [3_000_000, 5_000_000, 7_000_000]
    seen = len(asked)
    detector.withdraw(other)
    assert len(asked) == seen


def test_reading_of_a_match_is_asked_after_all_other_predicates() -> None:
    asked = []

    def says(t: Any, parts: Any) -> bool:
        asked.append(parts["A"].us)
        return bool(t == "yes")

    expression = seq(A, B).where(lambda parts: parts["A"].us > 1_000_000).reading(says)
    detector = Detector(expression)
    assert detector.reads
    assert not detector.is_replayable
    for second in (1, 2, 3):
        detector.feed(o("A", second))
    assert detector.feed(o("B", 4), "no") == []
    assert len(detector.feed(o("B", 5), "yes")) == 2
    assert asked == [2_000_000, 3_000_000] * 2


@pytest.mark.parametrize("policy", ["certain", "reading", "possible"])
@pytest.mark.parametrize("knows_intervals", [False, True])
def test_reading_does_not_decide_which_event_is_the_next_one(
    knows_intervals: bool, policy: str
) -> None:
    def is_second(t: Any, parts: Any) -> bool:
        return bool(parts["B"].us == 3_000_000)

    following = seq(A, B).selecting("next")
    for expression, count in [
        (following.reading(is_second), 0),
        (following.where(lambda parts: is_second(None, parts)), 1),
    ]:
        detector = Detector(expression, on_uncertain=policy)
        if knows_intervals:
            uncertain = Occurrence("A", AccuracyInterval(-9, -10, -8), {})
            detector.feed(uncertain)
            detector.withdraw(uncertain)
        found = [
            match for event_ in (o("A", 1), o("B", 2), o("B", 3)) for match in detector.feed(event_)
        ]
        assert (len(found), detector.is_inexact) == (count, knows_intervals)


def test_partials_max_drops_the_oldest_by_place() -> None:
    detector = Detector(seq(A, B).within(100), partials_max=2)
    for second in (5, 1, 7, 6):
        detector.feed(o("A", second))
    assert (detector.partials, detector.dropped) == (2, 2)
    assert [m.parts["A"].us for m in detector.feed(o("B", 9))] == [6_000_000, 7_000_000]


@pytest.mark.parametrize("expression", [seq(A, B), all_of(A, B), A.after(9)], ids=repr)
def test_partials_max_refusing_leaves_everything_as_it_was(expression: Expression) -> None:
    detector = Detector(expression, partials_max=1, on_full="refuse")
    detector.feed(o("A", 1))
    due_us = detector.due_us
    with pytest.raises(PartialsExceeded, match="more than 1"):
        detector.feed(o("A", 2))
    assert (detector.partials, detector.dropped, detector.due_us) == (1, 0, due_us)


def test_partials_max_after_a_withdrawal_counts_as_if_never_fed() -> None:
    detector = Detector(all_of(A, B), partials_max=2)
    fed = [o("A", second) for second in (1, 2, 3)]
    for each in fed:
        detector.feed(each)
    assert detector.dropped == 1
    detector.withdraw(fed[2])
    assert (detector.partials, detector.dropped) == (2, 0)
    assert len(detector.feed(o("B", 9))) == 2


@pytest.mark.parametrize(
    "expression",
    [
        seq(A, B).context("chronicle"),
        seq(A, B).context("continuous"),
        seq(A, B).same("x").context("chronicle"),
        all_of(A, B).same("x").context("chronicle"),
    ],
    ids=repr,
)
def test_what_is_used_up_is_not_kept(expression: Expression) -> None:
    detector = Detector(expression)
    for second in range(50):
        detector.feed(o("A", 2 * second, x=second))
        assert len(detector.feed(o("B", 2 * second + 1, x=second))) == 1
        assert detector.partials == 0


@pytest.mark.long
@pytest.mark.parametrize("expression", [e for e in EXPRESSIONS if Detector(e).horizon_us], ids=repr)
def test_trim_with_a_window_holds_memory_flat(expression: Expression) -> None:
    detector = Detector(expression)
    random = Random(1)
    sizes = []
    for second in range(600):
        detector.advance(second * 1_000_000)
        detector.feed(o(random.choice("ABCN"), second, x=second % 2))
        detector.trim(second * 1_000_000)
        sizes.append((detector.partials, len(detector._log)))
    for size in zip(*sizes, strict=True):
        assert max(size[300:]) <= 3 * max(size[:300])
        assert max(size) < 100
