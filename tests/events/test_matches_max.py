"""Limit on the matches that one event may complete."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from activedb.errors import MatchesExceeded, PatternError
from activedb.events import (
    AccuracyInterval,
    Detector,
    Expression,
    Network,
    Occurrence,
    all_of,
    detect,
    event,
    many,
    periodic,
    seq,
)

A, B, C, D = event("A"), event("B"), event("C"), event("D")
EXPLODING: dict[str, Expression] = {
    "kleene": seq(A, many(B), C).within(1_000),
    "kleene with a predicate": seq(A, many(B), C)
    .within(1_000)
    .where(lambda parts: len(parts["B"]) > 0),
    "straight": seq(A, *(event("B", alias=f"b{n}") for n in range(8)), C),
    "conjunction": all_of(*(event("B", alias=f"b{n}") for n in range(7)), C),
    "recent": seq(A, many(B), C).within(1_000).context("recent"),
    "cumulative": seq(A, many(B), C).within(1_000).context("cumulative"),
    "part": seq(seq(A, many(B), C).within(1_000), D),
}


def events(count: int) -> list[Occurrence]:
    names = ["A", *"B" * count, "C", "D"]
    return [Occurrence(name, us, {"at": us}) for us, name in enumerate(names)]


@pytest.mark.parametrize("name", EXPLODING)
def test_more_matches_than_may_be_are_refused_without_looking_for_all(name: str) -> None:
    detector = Detector(EXPLODING[name], matches_max=50)
    *before, last, _ = events(60)  # of 2 to the power of 60 matches none would ever be found
    for o in before:
        detector.feed(o)
    kept = detector.state()
    with pytest.raises(MatchesExceeded, match="more than 50 matches"):
        detector.feed(last)
    again = detector.state()
    assert {**again, "arrival": 0} == {**kept, "arrival": 0}


@pytest.mark.parametrize("policy", ["certain", "raise", "possible"])
@pytest.mark.parametrize(
    "expression",
    [
        seq(A, many(B), C).within(1),
        seq(A, many(B), C).within(1).timed_out(),
        seq(A, many(B), ~D).within(1),
        seq(A, many(B), C).within(1).context("chronicle"),
        seq(A, many(B), C).within(1).skipping("past_last"),
    ],
    ids=repr,
)
def test_orders_of_events_that_overlap_are_not_all_tried(
    expression: Expression, policy: str
) -> None:
    """Sixty events may have happened in more orders than could ever be tried."""
    detector = Detector(expression, on_uncertain=policy, matches_max=10)
    detector.feed(overlapping("A", 0, 1))
    with pytest.raises(MatchesExceeded, match="more than 10 matches"):
        for _ in range(60):
            kept = detector.state()
            detector.feed(overlapping("B", 10, 500_000))
        kept = detector.state()
        detector.feed(overlapping("C", 600_000, 600_001))
        detector.advance(3_000_000)
    again = detector.state()
    assert {**again, "arrival": 0} == {**kept, "arrival": 0}


def overlapping(name: str, low_us: int, high_us: int) -> Occurrence:
    return Occurrence(name, AccuracyInterval((low_us + high_us) // 2, low_us, high_us))


@pytest.mark.parametrize("name", ["kleene", "straight", "kleene with a predicate"])
@pytest.mark.parametrize("most", [1, 7, 1_000])
def test_matches_truncated_are_the_most_preferred_ones(name: str, most: int) -> None:
    few = events(9)
    whole = shown(detect(EXPLODING[name], few, matches_max=None))
    detector = Detector(EXPLODING[name], matches_max=most, on_many="truncate")
    made = shown([match for o in few for match in detector.feed(o)])
    assert made == whole[:most]
    assert detector.truncated == (len(whole) > most)


def test_matches_max_counts_for_each_event() -> None:
    detector = Detector(seq(A, B), matches_max=3)
    for us in range(3):
        detector.feed(Occurrence("A", us))
    for us in range(3, 9):
        assert len(detector.feed(Occurrence("B", us))) == 3
    detector.feed(Occurrence("A", 10))
    with pytest.raises(MatchesExceeded):
        detector.feed(Occurrence("B", 11))


def test_matches_at_the_end_of_a_window_are_truncated_as_there_is_no_event_to_refuse() -> None:
    detector = Detector(seq(A, many(B), ~D).within(100), matches_max=10)
    for o in events(30)[:-2]:
        detector.feed(o)
    assert len(detector.advance(200_000_000)) == 10
    assert detector.truncated == 1


DAY_US = 86_400_000_000
TICKING = periodic(A, 0.001, B, collected=True)


def fed(on_many: str, start: Occurrence, end: Occurrence, context: str, **options: Any) -> Any:
    """Return a detector of ticks that was fed a start, and what an end a day later makes."""
    expression = TICKING.context(context)
    detector = Detector(expression, matches_max=50, on_many=on_many, **options)
    detector.feed(start)
    return detector, lambda: detector.feed(end)


@pytest.mark.parametrize("context", ["unrestricted", "recent", "chronicle", "cumulative"])
def test_ticks_that_one_end_collects_are_bounded(context: str) -> None:
    start, end = Occurrence("A", 0), Occurrence("B", DAY_US)
    detector, ends = fed("refuse", start, end, context)
    kept = detector.state()
    with pytest.raises(MatchesExceeded, match="more than 50"):
        ends()
    assert {**detector.state(), "arrival": 0} == {**kept, "arrival": 0}
    detector, ends = fed("truncate", start, end, context)
    (made,) = ends()
    assert [tick.us for tick in made.parts["tick"]] == [1_000 * (n + 1) for n in range(50)]
    assert detector.truncated == 1


@pytest.mark.parametrize("on_many", ["refuse", "truncate"])
def test_possible_numbers_of_ticks_are_bounded(on_many: str) -> None:
    start = Occurrence("A", AccuracyInterval(0, -10_000, 10_000))
    end = Occurrence("B", AccuracyInterval(DAY_US, DAY_US - 10_000, DAY_US + 10_000))
    detector, ends = fed(on_many, start, end, "unrestricted", on_uncertain="certain")
    kept = detector.state()
    with pytest.raises(MatchesExceeded, match="more than 50"):
        ends()
    assert {**detector.state(), "arrival": 0} == {**kept, "arrival": 0}


@pytest.mark.long
@pytest.mark.parametrize("starts", [1, 40])
def test_ticks_of_all_possible_matches_of_an_end_are_bounded(starts: int) -> None:
    # Its n-th match has n ticks, so that even few matches may have many.
    detector = Detector(TICKING.context("unrestricted"), matches_max=5_000, on_uncertain="certain")
    for n in range(starts):
        us = -1_000 * n
        detector.feed(Occurrence("A", AccuracyInterval(us, us - 400, us + 400)))
    kept = detector.state()
    end_us = 4_000_000 // starts
    end = Occurrence("B", AccuracyInterval(end_us, end_us - 400, end_us + 400))
    tracemalloc.start()
    try:
        with pytest.raises(MatchesExceeded, match="more than 5000"):
            detector.feed(end)
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()
    assert {**detector.state(), "arrival": 0} == {**kept, "arrival": 0}


def test_shared_sequences_are_bounded_for_each_detector() -> None:
    network = Network(shares_whole=True)
    expression = seq(A, event("B", alias="one"), event("B", alias="two"), C)
    low = Detector(expression, network=network, matches_max=5, on_many="truncate")
    same = Detector(expression, network=network, matches_max=5, on_many="truncate")
    high = Detector(expression, network=network, matches_max=100)
    made: list[Any] = [
        [len(detector.feed(o)) for detector in (low, same, high)] for o in events(6)[:-1]
    ]
    assert made[-1] == [5, 5, 15]
    assert (low.truncated, same.truncated, high.truncated) == (1, 1, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"matches_max": 0}, "whole number from 1"),
        ({"matches_max": True}, "whole number from 1"),
        ({"matches_max": "many"}, "whole number from 1"),
        ({"on_many": "explode"}, "'refuse' or 'truncate'"),
    ],
)
def test_matches_max_that_has_no_meaning_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PatternError, match=says):
        Detector(seq(A, B), **options)


def shown(found: list[Occurrence]) -> list[list[Any]]:
    return [
        [o.us for part in m.parts.values() for o in (part if isinstance(part, tuple) else (part,))]
        for m in found
    ]
