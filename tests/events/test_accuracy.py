"""Accuracy intervals and their orders, case by case and against exact fractions."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.clock import ClockStatus
from activedb.errors import BadEvent
from activedb.events import (
    AccuracyInterval,
    LocalClock,
    Occurrence,
    Order,
    certainly_before,
    order,
    precedes,
)

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


def interval(lower_us: int, upper_us: int) -> AccuracyInterval:
    return AccuracyInterval(lower_us, lower_us, upper_us)


def local(
    local_us: int,
    clock: LocalClock | None = None,
    *,
    node: str = "n",
    lower_us: int = 0,
    upper_us: int = 1000,
) -> AccuracyInterval:
    if clock is None:
        clock = LocalClock("boot-1", 10, 0, 1, 0)
    return AccuracyInterval(lower_us, lower_us, upper_us, ClockStatus.FIXED, node, local_us, clock)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((0, 4), (5, 9), Order.BEFORE),
        ((5, 9), (0, 4), Order.AFTER),
        ((0, 5), (5, 9), Order.UNCERTAIN),  # the ends belong to it
        ((0, 9), (3, 4), Order.UNCERTAIN),
        ((5, 5), (5, 9), Order.UNCERTAIN),
        ((5, 5), (4, 5), Order.UNCERTAIN),
        ((5, 5), (5, 5), Order.SIMULTANEOUS),
        ((5, 6), (5, 6), Order.UNCERTAIN),  # equal, but not exact
        ((5, 5), (6, 6), Order.BEFORE),
    ],
)
def test_order_of_intervals_is_that_of_their_ends(
    a: tuple[int, int], b: tuple[int, int], expected: Order
) -> None:
    assert order(interval(*a), interval(*b)) is expected


def test_order_of_readings_of_one_local_clock_is_theirs_if_far_enough_apart() -> None:
    # ldd 10 µs and G 1 µs: more than 11 µs apart.
    assert order(local(100), local(112)) is Order.BEFORE
    assert order(local(112), local(100)) is Order.AFTER
    assert order(local(100), local(111)) is Order.UNCERTAIN
    assert order(local(100), local(100)) is Order.UNCERTAIN


def test_order_of_readings_of_different_local_clocks_is_uncertain() -> None:
    clock = LocalClock("boot-1", 10, 0, 1, 0)
    others = [
        local(10**9, LocalClock("boot-2", 10, 0, 1, 0)),
        local(10**9, LocalClock("boot-1", 9, 0, 1, 0)),
        local(10**9, clock, node="m"),
        interval(0, 1000),
    ]
    for other in others:
        assert order(local(100, clock), other) is Order.UNCERTAIN
    assert order(local(100, clock), local(112, LocalClock("boot-1", 10, 0, 1, 0))) is Order.BEFORE


def test_order_of_readings_that_contradict_themselves_is_uncertain() -> None:
    early = local(500, lower_us=0, upper_us=1)
    later = local(100, lower_us=5, upper_us=6)
    assert certainly_before(early, later)
    assert certainly_before(later, early)
    assert order(early, later) is Order.UNCERTAIN


def test_order_of_exact_readings_told_apart_by_the_local_clock_is_known() -> None:
    first, second = (local(us, lower_us=7, upper_us=7) for us in (100, 200))
    assert order(first, second) is Order.BEFORE


numbers = st.integers(0, 1000) | st.integers(0, 10**12)


@settings(max_examples=500 * SCALE, deadline=None)
@given(
    delay_us=numbers,
    drift_ppb=st.integers(0, 10**9 - 1),
    granularity_us=numbers.map(lambda g: g + 1),
    adjustment_us=numbers,
    start_us=st.integers(-(10**15), 10**15),
    data=st.data(),
)
def test_local_order_is_the_papers_formula_in_exact_fractions(
    delay_us: int,
    drift_ppb: int,
    granularity_us: int,
    adjustment_us: int,
    start_us: int,
    data: st.DataObject,
) -> None:
    clock = LocalClock("boot", delay_us, drift_ppb, granularity_us, adjustment_us)
    near_us = delay_us + delay_us * drift_ppb // 10**9 + granularity_us + adjustment_us
    apart_us = data.draw(st.integers(near_us - 2, near_us + 2) | st.integers(-(10**15), 10**15))
    rate = Fraction(drift_ppb, 10**9)
    # ldd < (C(k) − C(j) − G − u) / (1 + ρ)
    expected = delay_us < (apart_us - granularity_us - adjustment_us) / (1 + rate)
    a, b = local(start_us, clock), local(start_us + apart_us, clock)
    assert certainly_before(a, b) is expected


ends = st.tuples(st.integers(0, 12), st.integers(0, 6), st.integers(0, 30), st.sampled_from("mn"))


@settings(max_examples=300 * SCALE, deadline=None)
@given(ends, ends)
def test_order_is_antisymmetric_and_says_uncertain_of_all_it_does_not_know(
    a: tuple[int, int, int, str], b: tuple[int, int, int, str]
) -> None:
    clock = LocalClock("boot", 3, 0, 1, 0)
    x, y = (
        AccuracyInterval(low, low, low + width, ClockStatus.FIXED, node, reading, clock)
        for low, width, reading, node in (a, b)
    )
    found, turned = order(x, y), order(y, x)
    opposite = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}
    assert turned is opposite.get(found, found)
    if found is Order.BEFORE:
        assert certainly_before(x, y)
        assert not certainly_before(y, x)
    elif found is Order.SIMULTANEOUS:
        assert x.width_us == y.width_us == 0
        assert x.lower_us == y.lower_us
    elif found is Order.UNCERTAIN:
        assert certainly_before(x, y) is certainly_before(y, x)


@pytest.mark.parametrize(
    "fields",
    [
        {"reading_us": 4, "lower_us": 5, "upper_us": 6},
        {"reading_us": 7, "lower_us": 5, "upper_us": 6},
        {"reading_us": 5, "lower_us": 6, "upper_us": 5},
        {"reading_us": 5.0, "lower_us": 5, "upper_us": 6},
        {"reading_us": 5, "lower_us": True, "upper_us": 6},
        {"reading_us": 0, "lower_us": -(2**63) - 1, "upper_us": 6},
        {"reading_us": 0, "lower_us": 0, "upper_us": 2**63},
        {"status": "fixed"},
        {"node": ""},
        {"node": 7},
        {"node": "n", "local_us": 5},
        {"node": "n", "local_clock": LocalClock("boot")},
        {"local_us": 5, "local_clock": LocalClock("boot")},
        {"node": "n", "local_us": 5.0, "local_clock": LocalClock("boot")},
        {"node": "n", "local_us": 5, "local_clock": "boot"},
    ],
)
def test_interval_without_meaning_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadEvent, match="AccuracyInterval"):
        AccuracyInterval(**{"reading_us": 5, "lower_us": 5, "upper_us": 6, **fields})


@pytest.mark.parametrize(
    "parameters",
    [(7,), ("b", -1), ("b", 0, -1), ("b", 0, 0, 0), ("b", 0, 0, 1, -1), ("b", 0.5), ("b", True)],
)
def test_local_clock_without_meaning_is_refused(parameters: Any) -> None:
    with pytest.raises(BadEvent, match="not a local clock"):
        LocalClock(*parameters)


def event(stamp: AccuracyInterval) -> Occurrence:
    return Occurrence("A", stamp)


def test_precedes_of_occurrences_is_by_extent_or_by_one_nodes_local_clock() -> None:
    first, second, third = event(local(100)), event(local(150)), event(local(200))
    assert precedes(first, second)
    assert not precedes(second, first)
    assert not precedes(first, first)
    exact = [Occurrence("A", at) for at in (1, 1, 2)]
    assert [precedes(a, b) for a in exact for b in exact] == [
        *(False, False, True),
        *(False, False, True),
        *(False, False, False),
    ]
    assert not precedes(first, Occurrence("A", 500e-6))  # within
    assert precedes(first, Occurrence("A", 1001e-6))
    pair = Occurrence("Q", third.timestamp, parts={"A": second, "B": (third,)})
    assert precedes(first, pair)
    assert not precedes(pair, first)
    assert not precedes(event(local(145)), pair)  # too near to its first part
    assert precedes(pair, event(local(300)))
    assert not precedes(pair, event(local(205)))  # too near to its last part


def test_precedes_of_a_composite_of_another_node_or_with_an_exact_end_is_by_extent() -> None:
    first, other = event(local(100)), event(local(999, node="m"))
    mixed = Occurrence("Q", local(900), parts={"A": event(local(800)), "B": other})
    assert not precedes(first, mixed)
    ended = Occurrence("Q", 1e-3, parts={"A": event(local(800))})
    assert not precedes(first, ended)
    inner = Occurrence("Q", 0.9e-3, parts={"A": event(local(800))})
    outer = Occurrence("P", local(900), parts={"Q": inner})
    assert not precedes(first, outer)
