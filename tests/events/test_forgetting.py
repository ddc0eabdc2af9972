"""Detectors forget all that no later match can need, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import pytest

from activedb.events import Detector, Kleene, Occurrence, event, many, seq
from activedb.events import Sequence as Seq
from activedb.events._choices import NO_SKIP, Context
from activedb.events.detection import _forgetting, _sequence
from activedb.events.detection._entry import Entry
from activedb.events.detection._forgetting import Forgetting
from activedb.events.detection._sequence import SequenceNode
from activedb.events.detection._traits import begins_negated
from tests.drawing import SCALE, SEED, Worlds
from tests.effort import calls_of

from .comparison import compare
from .generation import CONTEXTS, Plan, random_expression
from .histories import Advance, Course, Cut, Feed, Trim, Withdraw, random_history

A, B, C, N = event("A"), event("B"), event("C"), event("N")
SECOND_US = 1_000_000
SKIPS: tuple[tuple[str, ...], ...] = (
    ("past_last",),
    ("to_next",),
    ("to_first", "B"),
    ("to_last", "B"),
)
LONG_S = 10_000_000


def note_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let detectors look at what has changed in every step; else they do once they are full."""

    def noting(*args: Any) -> Forgetting:
        forgetting = Forgetting(*args)
        forgetting._is_noting = True
        return forgetting

    monkeypatch.setattr(_sequence, "Forgetting", noting)


# -- what is fed again and again -------------------------------------------------------------------

SHAPES = {
    "A B C": (seq(A, B, C), "ABC"),
    "A B C, more of B": (seq(A, B, C), "ABCB"),
    "A B A": (seq(A, B, event("A", alias="A2")), "ABAB"),
    "A B+ C": (seq(A, many(B, 1, 3), C), "ABC"),
    "A ~N B": (seq(A, ~N, B), "ANAB"),
    "A ~N B C": (seq(A, ~N, B, C), "ANBABC"),
    "A B ~N C": (seq(A, B, ~N, C), "ABNBC"),
    "A B? C": (seq(A, many(B, 0, 1), C), "ABCB"),
    "A+ B C": (seq(many(A, 1, 2), B, C), "ABCB"),
}
CHOICES = [*SKIPS, *[(name,) for name in CONTEXTS if name != "recent"]]


def choosing(sequence: Seq, choice: tuple[str, ...]) -> Seq:
    """The sequence with one of the choices."""
    return sequence.skipping(*choice) if choice in SKIPS else sequence.context(*choice)


@pytest.mark.usefixtures("forgets_at_once")
@pytest.mark.parametrize("is_windowed", [True, False])
@pytest.mark.parametrize("choice", CHOICES, ids=" ".join)
@pytest.mark.parametrize("shape", SHAPES)
def test_periodic_input_keeps_no_more_the_longer_it_lasts(
    shape: str, choice: tuple[str, ...], is_windowed: bool
) -> None:
    sequence, names = SHAPES[shape]
    expression = choosing(sequence.within(LONG_S) if is_windowed else sequence, choice)
    trimmed, full, whole = (
        Detector(expression),
        Detector(expression, partials_max=30, on_full="refuse"),
        Detector(expression),
    )
    kept: list[int] = []
    for number in range(40 * len(names)):
        o = Occurrence(names[number % len(names)], number)
        trimmed.trim(number * SECOND_US)
        expected = shown(whole.feed(o))
        assert shown(trimmed.feed(o)) == shown(full.feed(o)) == expected
        kept.append(trimmed.partials)
    assert max(kept) <= 3 * len(names), kept


@pytest.mark.parametrize("names", ["ABC", "ABNABC", "AABBC", "AAAAABCB"])
@pytest.mark.parametrize("choice", CHOICES, ids=" ".join)
def test_without_a_bound_a_detector_keeps_few_that_it_does_not_need(
    choice: tuple[str, ...], names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, growth = 50, 4
    monkeypatch.setattr(_forgetting, "_FEW", few)
    monkeypatch.setattr(_forgetting, "_GROWTH", growth)
    sequence = choosing(seq(A, B, ~N, C), choice)
    detector, whole = Detector(sequence), Detector(sequence)
    number = 0
    while number < 20 * few:
        o = Occurrence(names[number % len(names)], number)
        detector.trim(number * SECOND_US)
        assert shown(detector.feed(o)) == shown(whole.feed(o))
        number += 1
        if number % few == 0:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Forgetting, "_is_due", lambda _: True)
                at_once = Detector(sequence)
                at_once.restore(json.loads(json.dumps(detector.state())))
                at_once.trim(number * SECOND_US)
            assert detector.partials <= max(few, growth * at_once.partials) + len(names)


@pytest.mark.usefixtures("forgets_at_once")
@pytest.mark.parametrize(
    ("selection", "names"),
    [
        *[(selection, names) for selection in ("next", "strict") for names in ("ABC", "ABNABC")],
        ("strict", "AB"),
        ("strict", "ABB"),
    ],
)
def test_selections_forget_what_an_event_has_come_between(selection: str, names: str) -> None:
    expression = seq(A, B, ~N, C).selecting(selection).skipping("past_last")
    trimmed, whole = Detector(expression), Detector(expression)
    for number in range(60 * len(names)):
        o = Occurrence(names[number % len(names)], number)
        trimmed.trim(number * SECOND_US)
        assert shown(trimmed.feed(o)) == shown(whole.feed(o))
        assert trimmed.partials <= 2 * len(names)


@pytest.mark.usefixtures("forgets_at_once")
def test_what_a_withdrawn_match_had_used_up_comes_back_with_what_was_forgotten() -> None:
    detector = Detector(seq(A, B, C).within(LONG_S).skipping("past_last"))
    first, *_, last = fed = [Occurrence(name, at) for at, name in enumerate("ABBC", 1)]
    for o in fed:
        detector.feed(o)
    detector.trim(10 * SECOND_US)
    assert detector.partials == 0
    detector.withdraw(last)
    assert detector.partials == 3
    assert [m.parts["A"] for m in detector.feed(Occurrence("C", 11))] == [first]


def test_a_late_event_finds_what_was_fed_after_the_time_trimmed_to() -> None:
    detector = Detector(seq(A, B, C).skipping("past_last"))
    detector.feed(Occurrence("B", 6))
    detector.trim(5 * SECOND_US)
    detector.feed(Occurrence("A", 5))
    assert len(detector.feed(Occurrence("C", 7))) == 1


def test_what_a_full_detector_forgot_for_an_event_comes_back_if_that_is_withdrawn() -> None:
    detector = Detector(seq(A, B, C).context("chronicle"), partials_max=3, on_full="refuse")
    for at, name in enumerate("BABB"):
        detector.feed(last := Occurrence(name, at))
    assert detector.partials == 3
    detector.withdraw(last)
    assert detector.partials == 3
    assert len(detector.feed(Occurrence("C", 9))) == 1


@pytest.mark.long
@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("names", ["ABC", "ABNABC", "AABBC"])
def test_the_work_for_an_event_does_not_grow_with_what_was_forgotten(
    names: str, is_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_forgetting, "_FEW", 100)
    detector = Detector(
        seq(A, B, ~N, C).within(LONG_S).skipping("past_last"),
        partials_max=20 if is_full else None,
        on_full="refuse",
    )

    def feed(begin: int, times: int) -> None:
        for number in range(begin * len(names), (begin + times) * len(names)):
            if not is_full:
                detector.trim(number * SECOND_US)
            detector.feed(Occurrence(names[number % len(names)], number))

    times = 20 if is_full else 500  # without a bound, it only forgets now and then
    feed(0, times)
    early = calls_of(lambda: feed(times, times))
    feed(2 * times, 4 * times)
    late = calls_of(lambda: feed(6 * times, times))
    assert late <= 1.2 * early, (early, late)


# -- a naive check of every entry ------------------------------------------------------------------


@pytest.mark.usefixtures("forgets_at_once")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_each_kept_entry_may_be_in_a_match_or_prevent_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        note_changes(monkeypatch)
    worlds = Worlds(100 * SCALE, "needless", seed, kept=20, forgotten=20)
    for random in worlds:
        expression = simple_sequence(random)
        detector = Detector(expression)
        names = [random.choice("AABBCN") for _ in range(random.randrange(3, 12))]
        for number, name in enumerate(names):
            detector.advance(number * SECOND_US)
            detector.feed(Occurrence(name, number, {}, id=f"{number:03}"))
            if random.random() < 0.3:
                detector.trim(number * SECOND_US)
        now_us = (len(names) - 1) * SECOND_US + 1
        detector.advance(now_us)
        detector.trim(now_us)
        needless = needless_entries(detector, expression, now_us)
        assert not needless, (
            f"{expression!r} keeps {needless} of {' '.join(names)} (ACTIVEDB_TEST_SEED={SEED})"
        )
        worlds.met["kept"] += detector.partials > 0
        worlds.met["forgotten"] += detector.partials < len(names)


def simple_sequence(random: Random) -> Seq:
    """A sequence of two to four parts that skips, or whose context uses events up."""
    parts: list[Any] = []
    for place in range(random.randrange(1, 4)):
        name = random.choice("ABC")
        match random.randrange(6):
            # After a part that repeats, or may be empty, several N may prevent the same match.
            case 0 | 1 if not parts or (parts[-1] != ~N and not isinstance(parts[-1], Kleene)):
                parts.append(~N)
            case 2:
                least = random.randrange(3)
                parts.append(many(event(name, alias=f"p{place}"), least, max(least, 1) + 1))
            case _:
                parts.append(event(name, alias=f"p{place}"))
    parts.append(event(random.choice("ABC"), alias="last"))
    if not begins_negated(seq(*parts)) and random.random() < 0.2:
        parts.append(~N)  # at both ends, the windows alone decide what is forgotten
    needs_window = [part == ~N for part in (parts[0], parts[-1])]
    needs_window += [isinstance(part, Kleene) and part.minimum == 0 for part in parts]
    made = seq(*parts)
    if any(needs_window) or random.random() < 0.5:
        made = made.within(random.choice([4, 1000]))
    skip = random.choice([None, "past_last", "to_next", "to_first", "to_last"])
    if skip is None:
        return made.context(random.choice(["chronicle", "continuous", "cumulative"]))
    return made.skipping(skip, "last" if skip in ("to_first", "to_last") else None)


def needless_entries(detector: Detector, expression: Seq, now_us: int) -> list[str]:
    """The entries that are in no match of any continuation, and whose absence adds none."""
    (node,) = [node for node in detector._nodes if isinstance(node, SequenceNode)]
    state = json.loads(json.dumps(detector.state()))
    forbidden = {entry[3] for entry in node.kept() if entry[3].name == "N"}
    starts = [now_us]
    if expression.window_us is not None:  # right after the windows that forbidden events reach
        starts += [e.us + expression.window_us + 1 for e in forbidden]
    tried = [(way, us) for way in ways(expression) for us in starts if us >= now_us]
    with_all = [matches(expression, state, None, *each) for each in tried]
    in_matches = {identity for found in with_all for match in found for identity in match}
    needless = []
    for entry in node.kept():
        if entry[3].id not in in_matches:
            without = (matches(expression, state, entry, *each) for each in tried)
            if all(found == other for found, other in zip(with_all, without, strict=True)):
                needless.append(f"{entry[3].name} {entry[3].id}")
    return needless


def ways(expression: Seq) -> Iterator[Sequence[str]]:
    """All continuations in which each part, or twice that if it repeats, can come."""
    names = sorted({name for _, name in expression.keys} - {"N"})
    least = sum(getattr(part, "minimum", 1) or 1 for part in expression.parts if part != ~N)
    for length in range(least + 1):
        yield from product(names, repeat=length)


def matches(
    expression: Seq, state: Any, but: Entry | None, way: Sequence[str], now_us: int
) -> set[tuple[str | None, ...]]:
    """Return what the kept entries and a continuation make if no match excludes another.

    A match that a span of the state skips does not count.
    """
    free = replace(expression, consumption=Context.UNRESTRICTED, skip=NO_SKIP)
    detector = Detector(free)
    (group,) = state["nodes"][0] or [None]
    if group is None:
        return set()
    nodes = [[{**group, "spans": []}]]
    detector.restore({**state, "expression": detector.state()["expression"], "nodes": nodes})
    spans = [(tuple(low), tuple(high), closed) for low, high, closed in group["spans"]]
    (node,) = detector._nodes
    if but is not None:
        (entry,) = [each for each in node.kept() if each[2] == but[2]]
        node.drop(entry, [])
    found = []
    for number, name in enumerate(way):
        o = Occurrence(name, (now_us + number) / SECOND_US, {}, id=f"new {number}")
        found += detector.feed(o)
    found += detector.advance(2**60)
    made: set[tuple[str | None, ...]] = set()
    for match in found:
        constituents = match.constituents
        place = (constituents[0].us, constituents[0].id)
        if not any(
            low[:2] <= place < high[:2] or (is_closed and place == high[:2])
            for low, high, is_closed in spans
        ):
            made.add(tuple(o.id for o in constituents))
    return made


# -- nothing else ----------------------------------------------------------------------------------

SKIP_NAMES = ("to_next", "past_last", "to_first", "to_last")
EVERY_CHOICE = Plan(
    ending=True,
    contexts=["unrestricted", *CONTEXTS],
    selections=["any", "next", "strict"],
    skips=("none", *SKIP_NAMES),
)
PLANS = {
    "skips": Plan(skips=SKIP_NAMES),
    "contexts": Plan(contexts=CONTEXTS),
    "skips, contexts, selections": EVERY_CHOICE,
    "clocks": replace(EVERY_CHOICE, timed=True),
    "nested": replace(EVERY_CHOICE, nested=True, conjunctions=True),
    "predicates that read": replace(EVERY_CHOICE, reading=True),
}


@pytest.mark.usefixtures("forgets_at_once")
@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("plan", PLANS)
def test_forgetting_at_every_step_changes_no_match(
    plan: str, is_ordered: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        note_changes(monkeypatch)
    worlds = Worlds(60 * SCALE, "forgetting", plan, is_ordered, seed, matches=1)
    shapes = PLANS[plan]
    # What is read where a step is done again depends on what the search had left out before.
    withdrawals = None if shapes.reading else 3
    for random in worlds:
        expression = random_expression(random, shapes)
        course = Course(14, is_ordered, withdrawals, late=not is_ordered)
        steps: list[Any] = []
        fed: list[int] = []
        trimmed = -1
        history = random_history(random, course)
        for number, step in enumerate(history):
            if isinstance(step, Feed | Advance) and random.random() < 0.7:
                steps.append(Trim())
            if isinstance(step, Trim) or steps[-1:] == [Trim()]:
                trimmed = min(s.at for s in history[number:] if isinstance(s, Feed | Advance))
            if isinstance(step, Feed):
                fed.append(step.at)
            if isinstance(step, Withdraw):
                if step.back >= len(fed) or fed[-1 - step.back] < trimmed:
                    continue  # what is trimmed stays
                fed.pop(-1 - step.back)
            if isinstance(step, Cut):
                fed.clear()
            steps.append(step)
        worlds.met["matches"] += compare(expression, steps)


def shown(found: Sequence[Occurrence]) -> list[list[Any]]:
    return [[(o.name, o.us) for o in match.constituents] for match in found]
