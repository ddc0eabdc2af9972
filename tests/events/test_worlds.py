"""The worlds that timestamps allow: all of them, and no others."""

from __future__ import annotations

import os
from itertools import combinations
from random import Random
from typing import Any

import pytest

from activedb.events import (
    AccuracyInterval,
    Expression,
    LocalClock,
    Occurrence,
    event,
    every,
    many,
    periodic,
    precedes,
    seq,
)
from activedb.events._worlds import Worlds as Tried
from activedb.events._worlds import moved_apart

from .judging import END_US, shown
from .worlds import SECOND_US, Worlds, durations, has_clock, made_at, tied_orders

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
SEED = os.environ["ACTIVEDB_TEST_SEED"]  # set by tests/conftest.py if it is not given
A, B, C, N = (event(name) for name in "ABCN")


def events_of(*ends: tuple[float, float], names: str = "AAAAAA") -> list[Occurrence]:
    in_us = [(round(low * SECOND_US), round(high * SECOND_US)) for low, high in ends]
    return [
        Occurrence(name, AccuracyInterval(low, low, high), {"n": n})
        for n, ((low, high), name) in enumerate(zip(in_us, names, strict=False))
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("ends", "differences", "count"),
    [
        ([(1, 3), (2, 4)], [0], 3),  # before, at once, after
        ([(1, 2), (2, 4)], [0], 2),
        ([(1, 1), (1, 2)], [0], 2),
        ([(1, 1), (1, 1)], [0], 1),
        ([(1, 1), (2, 2)], [0], 1),
        ([(0, 2), (9, 12)], [0, 10], 3),  # less than 10 s apart, 10 s, more
        ([(0, 2), (9, 12)], [0, 7], 2),
        ([(0, 9)] * 3, [0], 13),  # all weak orders of three
        ([(0, 9)] * 4, [0], 75),
    ],
)
def test_worlds_of_few_events_by_hand(
    ends: list[tuple[float, float]], differences: list[int], count: int
) -> None:
    random, events = Random(SEED), events_of(*ends)
    worlds = Worlds(events, [each * SECOND_US for each in differences])
    found = list(worlds.worlds(random))
    assert len(found) == count
    for times in found:
        assert all(o.low_us <= us <= o.high_us for o, us in zip(events, times, strict=True))
    signs = {tuple((a < b) - (a > b) for a, b in combinations(times, 2)) for times in found}
    assert len(signs) == count or len(differences) > 1


@pytest.mark.long
def test_worlds_keep_the_order_that_a_local_clock_tells() -> None:
    clock = LocalClock("started at noon")
    first, second, third = (
        Occurrence(
            "A",
            AccuracyInterval(low, low, high, node="n", local_us=local, local_clock=clock),
            {"n": n},
        )
        for n, (low, high, local) in enumerate(
            [(0, 4 * SECOND_US, 1), (0, 4 * SECOND_US, 5), (SECOND_US, SECOND_US, 9)]
        )
    )
    found = list(Worlds([first, second, third], [0]).worlds(Random(SEED)))
    assert found
    assert all(times[0] < times[1] < times[2] for times in found)
    # Within one microsecond there is no time between: the clock orders them all the same.
    moments = [
        Occurrence(
            o.name, AccuracyInterval(1, 1, 1, node="n", local_us=k, local_clock=clock), {"n": n}
        )
        for n, (o, k) in enumerate([(first, 1), (second, 5)])
    ]
    assert list(Worlds(moments, [0]).worlds(Random(SEED))) == [(1, 1)]
    assert made_at(seq(A, event("A", alias="B")), moments, (1, 1), END_US).total() == 1


@pytest.mark.long
def test_worlds_of_clocks_that_contradict_are_none() -> None:
    clock = LocalClock("set back")
    events = [
        Occurrence(
            "A",
            AccuracyInterval(low, low, low, node="n", local_us=local, local_clock=clock),
            {"n": n},
        )
        for n, (low, local) in enumerate([(5, 1), (1, 9)])
    ]
    assert not Worlds(events, [0]).are_possible
    assert not list(Worlds(events, [0]).worlds(Random(SEED)))


EXPRESSIONS = [
    seq(A, B).context("chronicle"),
    seq(A, B).within(3).context("recent"),
    seq(A, ~N, B).gap(2).selecting("next"),
    seq(A, B, ~N).within(4),
    seq(A, many(B), C).within(5).skipping("past_last"),
    seq(seq(A, ~N).within(2), B).within(4),
    seq(A.after(2), B.after(1)).within(3),
    seq(A, B).within(3).timed_out(),
    seq(A, every(3, alias="T"), B),
    periodic(A, 2, B, collected=True),
]


@pytest.mark.long
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=repr)
def test_worlds_are_all_that_can_be_told_apart(expression: Expression) -> None:
    # At whatever times within the intervals: what is made is made in one of the worlds.
    random = Random(f"{SEED} {expression!r}")
    names = sorted(name for kind, name in expression.keys if kind == "event")
    for _ in range(2 * SCALE):
        lows = [random.randint(0, 5) for _ in range(3)]
        ends = [(low, low + random.choice([0, 1, 2])) for low in lows]
        events = events_of(*ends, names="".join(random.choices(names, k=3)))
        worlds = Worlds(events, durations(expression, END_US), clock=has_clock(expression))
        known = [made_at(expression, events, times, END_US) for times in worlds.worlds(random)]
        for _ in range(30):
            times = [
                random.choice(
                    [
                        o.high_us,
                        random.randint(o.low_us, o.high_us),
                        *range(o.low_us, o.high_us, SECOND_US // 2),
                    ]
                )
                for o in events
            ]
            made = made_at(expression, events, times, END_US)
            assert made in known, f"{expression!r} {ends} {times}: {shown(made)}"


def test_tied_orders_are_all_but_of_exact_times() -> None:
    events = events_of((1, 1), (1, 1), (0, 2), (3, 3))
    found = list(tied_orders(events, [SECOND_US] * 3 + [3 * SECOND_US]))
    assert len(found) == 3
    assert all(ranks[0] < ranks[1] for ranks in found)
    assert not precedes(events[0], events[1])


@pytest.mark.long
def test_worlds_that_a_detector_tries_are_as_many() -> None:
    """Cells are enumerated twice, here and in the detector, by different code."""
    random = Random(f"{SEED} cells")
    clock = LocalClock("started at noon")
    compared = 0
    while compared < 100 * SCALE:
        events = []
        for n in range(random.randint(1, 4)):
            low, width = random.randint(0, 4), random.choice([0, 1, 2, 3])
            us = low * SECOND_US
            more: dict[str, Any] = {"node": "n", "local_us": us + n * 7, "local_clock": clock}
            stamp = AccuracyInterval(
                us, us, us + width * SECOND_US, **(more if random.random() < 0.4 else {})
            )
            events.append(Occurrence("A", stamp, {"n": n}))
        differences = {0, random.randint(1, 4) * SECOND_US}
        expected = Worlds(events, differences)
        if not expected.are_possible:
            continue
        count = sum(1 for _ in expected.cells())
        tried = Tried(events, differences).all(10**6, random)
        assert tried is not None
        assert len(set(tried)) == len(tried) <= count
        # Cells that lie within one microsecond have no times.
        if not any(o.stamp is not None and o.stamp.local_clock for o in events):
            assert len(tried) == count
            compared += 1
        for times in tried:
            assert all(o.low_us <= us <= o.high_us for o, us in zip(events, times, strict=True))
            for a, b in combinations(range(len(events)), 2):
                if precedes(events[a], events[b]) and not precedes(events[b], events[a]):
                    assert times[a] <= times[b]


@pytest.mark.long
@pytest.mark.parametrize("is_ordered", [True, False])
def test_times_that_are_moved_apart_tell_the_order_of_a_local_clock(*, is_ordered: bool) -> None:
    """Differences are kept otherwise: which time is before which, and within which duration."""
    random, clock = Random(f"{SEED} apart {is_ordered}"), LocalClock("started at noon")
    found = 0
    for _ in range(300 * SCALE):
        times = [random.randint(0, 3) * SECOND_US for _ in range(random.randint(1, 6))]
        durations_us = sorted(random.sample(range(1, 4), random.randint(0, 2)))
        durations_us = [us * SECOND_US for us in durations_us]
        readings = random.sample(range(0, 40, 2 if is_ordered else 1), len(times))
        events = [
            Occurrence(
                "A",
                AccuracyInterval(us, us, us, node="n", local_us=local_us, local_clock=clock),
            )
            for us, local_us in zip(times, readings, strict=True)
        ]
        end_us = 4 * SECOND_US
        moved = moved_apart((*times, end_us), events, durations_us)
        assert moved is not None or not is_ordered
        if moved is None:
            continue
        found += 1
        for (a, was_a), (b, was_b) in combinations(enumerate([*times, end_us]), 2):
            told_us, is_us = was_b - was_a, moved[b] - moved[a]
            for us in durations_us:
                assert (abs(told_us) <= us) == (abs(is_us) <= us), (times, readings, moved)
            if told_us:
                assert (told_us > 0) == (is_us > 0)
            else:
                assert (is_us > 0) == precedes(events[a], events[b]), (times, readings, moved)
                assert (is_us < 0) == precedes(events[b], events[a]), (times, readings, moved)
    assert found
