from __future__ import annotations

import math
import threading
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from activedb.clock import Clock, SimulatedClock
from tests.patience import PATIENCE_S

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


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


def waiting(
    clock: SimulatedClock, moment: datetime | None, woken: threading.Event
) -> threading.Thread:
    # A daemon, so that a test that fails ends all the same.
    thread = threading.Thread(target=clock.wait_until, args=(moment, woken), daemon=True)
    thread.start()
    return thread


def until_waiting(clock: SimulatedClock, count: int) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while clock.waiting != count:
        assert time.monotonic() < deadline_s
        time.sleep(0)


def test_simulated_clock_advanced_to_a_moment_wakes_those_who_wait_for_it() -> None:
    clock = SimulatedClock(START)
    soon, late = threading.Event(), threading.Event()
    threads = [
        waiting(clock, START + timedelta(seconds=s), woken) for s, woken in ((5, soon), (9, late))
    ]
    until_waiting(clock, 2)
    clock.advance(4.999_999)
    assert not soon.is_set()
    clock.advance(0.000_001)
    threads[0].join(PATIENCE_S)
    assert soon.is_set()
    assert not late.is_set()
    until_waiting(clock, 1)
    clock.advance(4)
    threads[1].join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert clock.waiting == 0


def test_simulated_clock_waiting_for_a_moment_reached_returns_at_once() -> None:
    clock, woken = SimulatedClock(START), threading.Event()
    clock.wait_until(START, woken)
    clock.wait_until(START - timedelta(seconds=1), woken)
    assert not woken.is_set()
    assert clock.waiting == 0


@pytest.mark.parametrize("moment", [None, START + timedelta(days=1)])
def test_simulated_clock_waiting_is_woken_by_others_too(moment: datetime | None) -> None:
    clock, woken = SimulatedClock(START), threading.Event()
    thread = waiting(clock, moment, woken)
    if moment is not None:
        until_waiting(clock, 1)
    woken.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert clock.waiting == 0
    assert clock.now() == START


def test_simulated_clock_with_one_event_waited_for_twice_forgets_each_wait_once() -> None:
    clock, woken = SimulatedClock(START), threading.Event()
    moment = START + timedelta(seconds=1)
    threads = [waiting(clock, moment, woken) for _ in range(2)]
    until_waiting(clock, 2)
    clock.advance(1)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert clock.waiting == 0
