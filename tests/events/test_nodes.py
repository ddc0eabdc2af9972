"""Nodes: the timestamps they give."""

from __future__ import annotations

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from activedb.clock import ClockStatus, FixedErrorClock, Reading, SimulatedClock
from activedb.errors import ConfigurationError
from activedb.events import Node, Order, order
from tests.clock.drifting import DriftingClock

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000


class Script:
    """A clock source with the readings that it is given."""

    def __init__(self, *readings: tuple[int, int]):
        self.readings = [
            Reading(reference_us, error_us, ClockStatus.SYNCHRONIZED, 10 * number)
            for number, (reference_us, error_us) in enumerate(readings)
        ]

    def read(self) -> Reading:
        return self.readings.pop(0)


def test_node_stamps_with_error_and_detection_delay_below_and_error_above() -> None:
    clock = SimulatedClock(START)
    node = Node("ward-3", FixedErrorClock(clock, 40), detection_delay_us=5)
    clock.advance(1)
    stamp = node.stamp()
    now_us = START_US + 1_000_000
    assert (stamp.lower_us, stamp.reading_us, stamp.upper_us) == (
        now_us - 45,
        now_us,
        now_us + 40,
    )
    assert (stamp.node, stamp.status, stamp.local_us) == ("ward-3", ClockStatus.FIXED, 1_000_000)
    assert stamp.local_clock is node.local_clock
    assert node.local_clock.apart_us == 6  # ldd (1 + ρ) + G, cut down


@pytest.mark.parametrize(
    ("rate", "ppb"), [(1e-4, 100_000), (0.1, 10**8), (1e-10, 1), (0, 0), (1.5e-9, 2)]
)
def test_node_takes_its_drift_rate_as_written_and_rounded_up(rate: float, ppb: int) -> None:
    assert Node("n", Script(), drift_rate=rate).local_clock.drift_ppb == ppb


def test_node_whose_error_grows_keeps_its_lower_ends_from_going_back() -> None:
    node = Node("n", Script((1000, 10), (1020, 500), (1100, 500), (2000, 20)))
    stamps = [node.stamp() for _ in range(4)]
    assert [(s.lower_us, s.upper_us) for s in stamps] == [
        (990, 1010),
        (990, 1520),
        (990, 1600),
        (1980, 2020),
    ]
    assert all(s.lower_us <= s.reading_us <= s.upper_us for s in stamps)


def test_node_told_to_begin_after_a_moment_begins_there() -> None:
    node = Node("n", Script((1000, 500), (1000, 500)))
    node.begin_after(1200)
    node.begin_after(700)
    stamps = [node.stamp(), node.stamp()]
    assert [(s.lower_us, s.reading_us, s.upper_us) for s in stamps] == [(1200, 1200, 1500)] * 2


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what nodes have logged; whatever else this process runs may log, too."""
    return [each.getMessage() for each in caplog.records if each.name == "activedb.events"]


def test_node_shared_by_threads_stamps_one_after_the_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    true = SimulatedClock(START)
    node = Node("n", DriftingClock(true, seed=1, error_us=1, drift_rate=0.0))

    def stamp(_: int) -> tuple[int, int]:
        true.advance(0.001)  # far more than the error: a reading overtaken contradicts the other
        made = node.stamp()
        return made.local_us or 0, made.lower_us

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            stamps = sorted(pool.map(stamp, range(2000)))
    finally:
        sys.setswitchinterval(interval_s)
    lowers = [lower_us for _, lower_us in stamps]
    assert lowers == sorted(lowers)
    assert complaints(caplog) == []


def test_node_whose_clock_contradicts_itself_says_so_once_and_stamps_what_it_reads(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = Node("n", Script((1000, 10), (500, 10), (600, 10), (2000, 10), (700, 10)))
    with caplog.at_level(logging.WARNING, "activedb.events"):
        stamps = [node.stamp() for _ in range(5)]
    assert [s.lower_us for s in stamps] == [990, 490, 590, 1990, 690]
    assert [s.upper_us for s in stamps] == [1010, 510, 610, 2010, 710]
    told = complaints(caplog)
    assert len(told) == 2
    assert all("clock of node 'n' was put back by more than its error" in each for each in told)


def test_node_made_anew_has_a_local_clock_that_compares_with_its_own_readings_only() -> None:
    def readings() -> Script:
        return Script((0, 10**6), (0, 10**6))

    one, other = Node("n", readings()), Node("n", readings())
    first = one.stamp()
    other.stamp()
    assert order(first, one.stamp()) is Order.BEFORE
    assert order(first, other.stamp()) is Order.UNCERTAIN
    told = [Node("n", readings(), incarnation="boot-1") for _ in range(2)]
    earlier = told[0].stamp()
    told[1].stamp()
    assert order(earlier, told[1].stamp()) is Order.BEFORE


@pytest.mark.parametrize(
    "parameters",
    [
        {"name": ""},
        {"name": None},
        {"drift_rate": 1.0},
        {"drift_rate": -1e-4},
        {"drift_rate": float("nan")},
        {"detection_delay_us": -1},
        {"granularity_us": 0},
        {"adjustment_us": -1},
    ],
)
def test_node_with_a_parameter_out_of_range_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="node"):
        Node(**{"name": "n", "source": Script(), **parameters})
