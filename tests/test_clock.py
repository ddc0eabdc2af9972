from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from activedb.clock import Clock, SimulatedClock, SystemClock

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_system_clock_reads_aware_utc_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(UTC)
    assert before <= clock.now() <= datetime.now(UTC)
    assert clock.now().tzinfo is UTC
    readings_s = [clock.monotonic_s() for _ in range(100)]
    assert readings_s == sorted(readings_s)


def test_simulated_clock_untouched_stands_still() -> None:
    clock: Clock = SimulatedClock(START)
    assert (clock.now(), clock.monotonic_s()) == (START, 0.0)
    assert clock.now() == clock.now()


def test_simulated_clock_advanced_moves_both_readings() -> None:
    clock = SimulatedClock(START)
    clock.advance(90)
    clock.advance(0.5)
    assert clock.now() == START + timedelta(seconds=90.5)
    assert clock.monotonic_s() == 90.5


def test_simulated_clock_started_in_another_zone_reads_utc() -> None:
    clock = SimulatedClock(START.astimezone(timezone(timedelta(hours=2))))
    assert clock.now() == START
    assert clock.now().tzinfo is UTC


def test_simulated_clock_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        SimulatedClock(datetime(2026, 1, 31))


@pytest.mark.parametrize("seconds", [-0.1, math.nan])
def test_simulated_clock_advanced_by_no_duration_is_refused(seconds: float) -> None:
    clock = SimulatedClock(START)
    with pytest.raises(ValueError, match="cannot be advanced"):
        clock.advance(seconds)
    assert clock.now() == START
