"""Time consistent order (Liebig, Cilia, Buchmann, section III.D): nothing is ordered against true
time, whatever the clocks, as long as they are correct; and if one is not, these tests can tell."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.clock import ClockSource, Reading
from activedb.events import (
    AccuracyInterval,
    Node,
    Occurrence,
    Order,
    certainly_before,
    order,
    precedes,
)

from .simulation import Happening, World, honest, run

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))

worlds = st.builds(
    World,
    seed=st.integers(0, 2**32),
    nodes=st.integers(1, 5),
    events=st.integers(2, 40),
    gap_us=st.sampled_from([1, 30, 1000, 50_000, 5_000_000]),
    error_us=st.sampled_from([0, 10, 1000, 50_000]),
    drift_rate=st.sampled_from([0.0, 1e-6, 1e-4, 1e-2]),
    granularity_us=st.sampled_from([1, 7, 1000, 15_625]),
    adjustment_us=st.sampled_from([0, 3, 2000]),
    detection_delay_us=st.sampled_from([0, 5, 800, 40_000]),
    resync_s=st.sampled_from([None, 0.01, 1.0, 64.0]),
)


def violations(happenings: list[Happening]) -> list[tuple[Happening, Happening]]:
    """Return the pairs that are ordered, but not as they happened."""
    return [
        (a, b)
        for a in happenings
        for b in happenings
        if certainly_before(a.stamp, b.stamp) and not a.true_us < b.true_us
    ]


def without_local(stamp: AccuracyInterval) -> AccuracyInterval:
    return replace(stamp, local_us=None, local_clock=None)


@pytest.mark.long
@settings(max_examples=600 * SCALE, deadline=None)
@given(worlds)
def test_events_of_correct_clocks_are_never_ordered_against_true_time(world: World) -> None:
    happenings = run(world)
    for happening in happenings:
        assert happening.stamp.lower_us <= happening.true_us <= happening.stamp.upper_us
    assert violations(happenings) == []
    for a, b in combinations(happenings, 2):
        found = order(a.stamp, b.stamp)
        if found is Order.BEFORE:
            assert a.true_us < b.true_us
        elif found is Order.AFTER:
            assert a.true_us > b.true_us
        elif found is Order.SIMULTANEOUS:
            assert a.true_us == b.true_us
        else:
            # What is not ordered, and not known to be one moment, is uncertain, and said to be.
            assert found is Order.UNCERTAIN
            assert not certainly_before(a.stamp, b.stamp)
            assert not certainly_before(b.stamp, a.stamp)


@pytest.mark.long
@settings(max_examples=300 * SCALE, deadline=None)
@given(worlds)
def test_composites_of_correct_clocks_are_never_ordered_against_true_time(world: World) -> None:
    happenings = run(replace(world, events=min(world.events, 15)))
    singles = [((h.true_us, h.true_us), Occurrence("A", h.stamp)) for h in happenings]
    pairs = []
    for (a_us, a), (b_us, b) in pairwise(singles):
        assert b.stamp is not None
        span = (min(*a_us, *b_us), max(*a_us, *b_us))
        pairs.append((span, Occurrence("Q", b.stamp, parts={"A": (a,), "B": b})))
    everything = singles + pairs
    for first, a in everything:
        for second, b in everything:
            if precedes(a, b):
                assert first[1] < second[0]


def test_order_of_narrower_intervals_knows_more_and_at_last_everything() -> None:
    unknown = []
    for error_us in (100_000, 10_000, 1000, 100, 0):
        world = World(
            seed=7, nodes=4, events=60, gap_us=400, error_us=error_us, drift_rate=1e-9, resync_s=1.0
        )
        happenings = [replace(h, stamp=without_local(h.stamp)) for h in run(world)]
        assert violations(happenings) == []
        # Those a clock that counts microseconds, and adds one for what it cuts off, can tell apart.
        apart = [(a, b) for a, b in combinations(happenings, 2) if abs(a.true_us - b.true_us) > 6]
        assert len(apart) > 1000
        unknown.append(
            sum(order(a.stamp, b.stamp) is Order.UNCERTAIN for a, b in apart) / len(apart)
        )
    assert unknown == sorted(unknown, reverse=True)
    assert unknown[0] > 0.5
    assert unknown[-1] == 0


def test_order_of_one_nodes_events_is_known_locally_where_reference_time_cannot_tell() -> None:
    happenings = run(World(seed=3, nodes=2, events=80, gap_us=2000, error_us=50_000))
    assert violations(happenings) == []

    def known(happenings: list[Happening]) -> int:
        return sum(
            order(a.stamp, b.stamp) in (Order.BEFORE, Order.AFTER)
            for a, b in combinations(happenings, 2)
            if a.stamp.node == b.stamp.node
        )

    globally = known([replace(h, stamp=without_local(h.stamp)) for h in happenings])
    assert globally < known(happenings)


class Liar:
    """A clock that is off by more than it says."""

    def __init__(self, clock: ClockSource, off_us: int):
        self._clock = clock
        self._off_us = off_us

    def read(self) -> Reading:
        reading = self._clock.read()
        return replace(reading, reference_us=reading.reference_us + self._off_us)


@pytest.mark.parametrize("off_us", [-3000, 3000])
def test_events_of_one_incorrect_clock_are_ordered_against_true_time(off_us: int) -> None:
    """The violations that the first test must not find are found where there are some."""
    world = World(seed=5, nodes=3, events=60, gap_us=500, error_us=1000)
    assert violations(run(world)) == []
    found = violations(
        run(world, source=lambda number, clock: Liar(clock, off_us) if number == 1 else clock)
    )
    assert found
    assert all("node-1" in (a.stamp.node, b.stamp.node) for a, b in found)


@pytest.mark.parametrize(
    ("told", "true"),
    [
        ({"detection_delay_us": 100}, {"detection_delay_us": 5000}),
        ({"granularity_us": 1}, {"granularity_us": 5000}),
        ({"adjustment_us": 0}, {"adjustment_us": 5000}),
        ({"drift_rate": 0.0}, {"drift_rate": 0.5, "detection_delay_us": 5000}),
    ],
)
def test_events_of_a_node_that_understates_itself_are_ordered_against_true_time(
    told: dict[str, float], true: dict[str, float]
) -> None:
    """Each term of the local timestamp order is needed: without it there are violations."""

    def deluded(number: int, clock: ClockSource, world: World) -> Node:
        return honest(number, clock, replace(world, **told))  # type: ignore[arg-type]

    found = 0
    for seed in range(20):
        # Errors so large that reference time orders nothing.
        world = World(
            seed=seed, nodes=1, events=60, gap_us=300, error_us=10**9, detection_delay_us=300
        )
        world = replace(world, **true)  # type: ignore[arg-type]
        assert violations(run(world)) == []
        found += len(violations(run(world, node=deluded)))
    assert found
