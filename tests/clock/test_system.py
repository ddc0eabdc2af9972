from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from activedb.clock import Clock, SystemClock
from tests.patience import PATIENCE_S


def test_system_clock_reads_aware_utc_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    before = datetime.now(UTC)
    assert before <= clock.now() <= datetime.now(UTC)
    assert clock.now().tzinfo is UTC
    readings_s = [clock.monotonic_s() for _ in range(100)]
    assert readings_s == sorted(readings_s)


def test_system_clock_waiting_for_a_moment_passed_returns_at_once() -> None:
    clock, woken = SystemClock(), threading.Event()
    clock.wait_until(clock.now() - timedelta(seconds=1), woken)
    assert not woken.is_set()


def test_system_clock_waiting_for_a_moment_returns_when_it_is_reached() -> None:
    clock, woken = SystemClock(), threading.Event()
    moment = clock.now() + timedelta(milliseconds=20)
    while clock.now() < moment:  # as every caller does: it may return early
        clock.wait_until(moment, woken)
    assert not woken.is_set()


def test_system_clock_waiting_far_ahead_returns_once_woken() -> None:
    clock = SystemClock()
    for moment in (None, datetime.max.replace(tzinfo=UTC)):
        woken = threading.Event()
        waiter = threading.Thread(target=clock.wait_until, args=(moment, woken), daemon=True)
        waiter.start()
        woken.set()
        waiter.join(PATIENCE_S)
        assert not waiter.is_alive()
