"""Withdrawing what was trimmed since: nothing is counted twice, nothing forgotten comes back."""

from __future__ import annotations

import pytest

from activedb.errors import PartialsExceeded
from activedb.events import (
    AccuracyInterval,
    Detector,
    Expression,
    Occurrence,
    aperiodic,
    event,
    every,
    many,
    periodic,
    seq,
)
from tests.drawing import SCALE, Worlds

from .generation import CONTEXTS, EVERYTHING, Plan, random_expression

A, B, C = event("A"), event("B"), event("C")
SECOND_US = 1_000_000


def test_withdraw_of_what_trim_has_forgotten_leaves_the_count_of_partials() -> None:
    detector = Detector(seq(C, ~A).within(3))
    detector.advance(10 * SECOND_US)
    late = Occurrence("A", 0)
    detector.feed(late)
    detector.trim(5 * SECOND_US)
    assert detector.partials == 0
    detector.feed(Occurrence("B", 5))
    detector.withdraw(late)
    assert detector.partials == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "expression",
    [
        seq(C, ~A).within(3),
        seq(~A, B, ~A, C).within(4).context("chronicle"),
        seq(A, B).within(3).context("cumulative").same("k"),
        seq(A, many(B, 0), C).within(4).selecting("next").context("continuous").same("k"),
        seq(A, seq(B, ~A, C).within(3).context("chronicle")).within(5).context("recent"),
        seq(A, B, ~C, A.named("last")).within(3).timed_out(),
    ],
    ids=repr,
)
def test_partials_after_withdrawals_and_trims_are_what_is_kept(expression: Expression) -> None:
    for random in Worlds(40 * SCALE, expression):
        detector, second = Detector(expression), 0.0
        fed: list[Occurrence] = []
        for _ in range(30):
            second += random.choice([0, 0.5, 1])
            match random.randrange(6):
                case 0:
                    detector.advance(round(second * SECOND_US))
                case 1:
                    detector.advance(round(second * SECOND_US))
                    detector.trim(round(second * SECOND_US))
                case 2 if fed:
                    detector.withdraw(fed.pop(random.choice([-1, random.randrange(len(fed))])))
                case _:
                    late = random.choice([0, 0, 2])
                    o = Occurrence(random.choice("ABC"), second - late, {"k": random.randrange(2)})
                    fed.append(o)
                    detector.feed(o)
            fresh = Detector(expression)
            fresh.restore(detector.state())
            assert detector.partials == fresh.partials
        detector.advance(10**9)
        detector.trim(10**9)
        assert detector.partials == 0
        for o in reversed(fed):
            detector.withdraw(o)
            assert detector.partials == 0


REPEATED = [
    made.context(context)
    for made in (
        periodic(A, 2, B),
        periodic(A, 2, B, collected=True),
        aperiodic(A, C, B),
        aperiodic(A, C, B, collected=True),
    )
    for context in CONTEXTS
]


@pytest.mark.long
def test_events_withdrawn_after_a_trim_are_as_if_never_fed() -> None:
    worlds = Worlds(150 * SCALE, "withdrawn after a trim", made=75)
    for random in worlds:
        expression = random.choice([random_expression(random, EVERYTHING), random.choice(REPEATED)])
        detector, never = Detector(expression), Detector(expression)
        for each in (detector, never):
            each.advance(0)
        second, fed = 0.0, list[str]()
        for _ in range(5):
            since_us, withdrawn = round(second * SECOND_US), list[Occurrence]()
            for _ in range(random.randint(1, 5)):
                second += random.choice([0.25, 0.5, 1])
                o = Occurrence(random.choice("ABC"), second, {"w": 0, "x": random.randrange(3)})
                is_withdrawn = random.random() < 0.4
                fed.append(f"{o}{' (withdrawn)' * is_withdrawn}")
                for each in (detector, never):
                    each.advance(o.us)
                detector.feed(o)
                if is_withdrawn:
                    withdrawn.append(o)
                else:
                    never.feed(o)
            for each in (detector, never):
                each.trim(since_us)
            random.shuffle(withdrawn)
            for o in withdrawn:
                detector.withdraw(o)
        until_us = round((second + 6) * SECOND_US)
        last = [Occurrence(name, second + 0.5, {"w": 0, "x": 2}) for name in "ABC"]
        made = [
            [*(match for o in last for match in each.feed(o)), *each.advance(until_us)]
            for each in (detector, never)
        ]
        assert repr(made[0]) == repr(made[1]), f"{expression}: {fed}"
        worlds.met["made"] += len(made[1])


def is_taken(detector: Detector, o: Occurrence) -> bool:
    """Feed an event; return whether the detector takes it, rather than refuse it as it is full."""
    try:
        detector.feed(o)
    except PartialsExceeded:
        return False
    return True


def made_until(detector: Detector, us: int) -> list[Occurrence]:
    """Return what time completes; nothing if it would fill the detector beyond its bound."""
    try:
        return detector.advance(us)
    except PartialsExceeded:
        return []


@pytest.mark.long
@pytest.mark.usefixtures("forgets_at_once")
@pytest.mark.parametrize("on_full", ["drop_oldest", "refuse"])
@pytest.mark.parametrize("shape", ["memoryless", "everything"])
def test_events_withdrawn_from_a_full_detector_are_as_if_never_fed(
    shape: str, on_full: str
) -> None:
    wanted = {"made": 20, "full": 150, "withdrawn": 100}
    plan = EVERYTHING if shape == "everything" else Plan(ending=False)
    worlds = Worlds(300 * SCALE, "withdrawn when full", shape, on_full, **wanted)
    for random in worlds:
        expression, partials_max = random_expression(random, plan), random.randint(1, 4)
        detector, never = (
            Detector(expression, partials_max=partials_max, on_full=on_full) for _ in range(2)
        )
        if detector.horizon_us is None:
            continue  # a skip without a window: what a trim forgets depends on withdrawn matches
        for each in (detector, never):
            each.advance(0)
        second, fed = 0.0, list[str]()
        for _ in range(5):
            withdrawn = list[Occurrence]()
            is_withdrawn = random.random() < 0.6
            for _ in range(random.randint(1, 5)):
                second += random.choice([0, 0.5, 1])
                o = Occurrence(random.choice("ABC"), second, {"w": 0, "x": random.randrange(3)})
                fed.append(f"{o}{' (withdrawn)' * is_withdrawn}")
                dropped, taken = detector.dropped, is_taken(detector, o)
                worlds.met["full"] += not taken or detector.dropped > dropped
                if not is_withdrawn:
                    assert is_taken(never, o) == taken, f"{expression}: {fed}"
                elif taken:
                    withdrawn.append(o)
            for o in reversed(withdrawn):
                detector.withdraw(o)
                worlds.met["withdrawn"] += 1
            assert (detector.partials, detector.dropped) == (never.partials, never.dropped), fed
            for each in (detector, never):
                each.trim(round(second * SECOND_US))
        until_us = round((second + 6) * SECOND_US)
        last = [Occurrence(name, second + 0.5, {"w": 0, "x": 2}) for name in "ABC"]
        assert len({tuple([is_taken(each, o) for o in last]) for each in (detector, never)}) == 1
        made = [made_until(each, until_us) for each in (detector, never)]
        assert repr(made[0]) == repr(made[1]), f"{expression}: {fed}"
        worlds.met["made"] += len(made[1])


@pytest.mark.long
@pytest.mark.usefixtures("forgets_at_once")
@pytest.mark.parametrize("shape", ["memoryless", "contexts"])
def test_detector_refuses_an_event_only_if_what_has_not_expired_fills_it(shape: str) -> None:
    plan = Plan(ending=False)
    if shape == "contexts":
        plan = Plan(ending=False, conjunctions=True, contexts=["unrestricted", *CONTEXTS])
    worlds = Worlds(300 * SCALE, "expired when full", shape, refused=50, expired=100)
    for random in worlds:
        expression, partials_max = random_expression(random, plan), random.randint(1, 4)
        detector = Detector(expression, partials_max=partials_max, on_full="refuse")
        unbounded = Detector(expression)
        if detector.horizon_us is None:
            continue
        second, fed = 0.0, list[str]()
        for _ in range(20):
            second += random.choice([0, 0.5, 1, 3])
            o = Occurrence(random.choice("ABC"), second, {"w": 0, "x": random.randrange(3)})
            fed.append(str(o))
            fresh = Detector(expression)
            fresh.restore(unbounded.state())
            fresh.feed(o)
            before = fresh.partials
            fresh.trim(o.us)
            worlds.met["expired"] += fresh.partials <= partials_max < before
            is_full = fresh.partials > partials_max
            assert is_taken(detector, o) != is_full, f"{expression}: {fed}"
            if not is_full:
                unbounded = fresh
            else:
                worlds.met["refused"] += 1


def test_end_withdrawn_after_a_trim_does_not_end_a_periodic_event() -> None:
    detector, end = Detector(periodic(A, 2, B)), Occurrence("B", 4)
    for o in (Occurrence("A", 1), end):
        detector.advance(o.us)
        detector.feed(o)
    detector.trim(2 * SECOND_US)
    detector.withdraw(end)
    assert [match.us for match in detector.advance(6 * SECOND_US)] == [5 * SECOND_US]


def test_undo_resets_the_clocks_that_have_started_since_the_mark() -> None:
    detector = Detector(every(2))
    mark = detector.mark()
    assert detector.advance(SECOND_US) == []
    detector.undo(mark)
    assert detector.due_us is None
    detector.advance(2 * SECOND_US)
    assert detector.due_us == 4 * SECOND_US


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1, 2])
def test_choice_does_not_outlive_the_events_that_are_withdrawn(number: int) -> None:
    def about(name: str, us: int) -> Occurrence:
        return Occurrence(name, AccuracyInterval(us, us - 10, us + 10, node=f"{name}{us}"))

    events = [about("A", 100), about("A", 101), about("B", 105)]
    detector = Detector(seq(event("A"), event("B")), on_uncertain="certain")
    for o in events:
        detector.feed(o)
    detector.take_undecided()
    detector.withdraw(events[number])
    fresh = Detector(seq(event("A"), event("B")), on_uncertain="certain")
    for o in events[:number] + events[number + 1 :]:
        fresh.feed(o)
    left = {each.identity for each in fresh.undecided}
    assert {each.identity for each in detector.undecided} == left
    assert {each.identity for each in detector.take_undecided()} == left
