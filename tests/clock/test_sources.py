"""Clock sources: the kernel's, one with a fixed error, a drifting one."""

from __future__ import annotations

import ctypes
import logging
import os
import random
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime
from fractions import Fraction
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.clock import (
    ClockSource,
    ClockStatus,
    FixedErrorClock,
    KernelClock,
    Reading,
    SimulatedClock,
    SystemClock,
)
from activedb.clock import _sources as kernel
from activedb.errors import ConfigurationError
from tests.clock.drifting import DriftingClock
from tests.patience import PATIENCE_S

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
TIME_OK, TIME_OOP, TIME_ERROR = 0, 3, 5
STA_UNSYNC, STA_NANO = 0x40, 0x2000


def timex(
    status: int = STA_NANO, fraction: int = 123_456_789, maxerror: int = 5000
) -> SimpleNamespace:
    return SimpleNamespace(
        status=status, maxerror=maxerror, time=SimpleNamespace(tv_sec=1000, tv_usec=fraction)
    )


@pytest.mark.parametrize(
    ("state", "answer", "reading"),
    [
        (TIME_OK, timex(), (1000_123_456, 5001, ClockStatus.SYNCHRONIZED)),
        (TIME_OK, timex(fraction=123_456_000), (1000_123_456, 5000, ClockStatus.SYNCHRONIZED)),
        (TIME_OK, timex(0, 123_456), (1000_123_456, 5000, ClockStatus.SYNCHRONIZED)),
        (TIME_OOP, timex(0, 123_456), (1000_123_456, 1_005_000, ClockStatus.SYNCHRONIZED)),
        (TIME_ERROR, timex(), (1000_123_456, 77, ClockStatus.UNKNOWN)),
        (TIME_OK, timex(STA_NANO | STA_UNSYNC), (1000_123_456, 77, ClockStatus.UNKNOWN)),
        (TIME_ERROR, timex(STA_UNSYNC, 123_456), (1000_123_456, 77, ClockStatus.UNKNOWN)),
    ],
)
def test_kernel_answer_is_read_as_the_manual_says(
    state: int, answer: SimpleNamespace, reading: tuple[int, int, ClockStatus]
) -> None:
    assert kernel.interpret(state, answer, 77, 9) == Reading(*reading, 9)


def test_kernel_struct_has_the_size_and_places_of_the_header() -> None:
    # From <sys/timex.h>: where the C compiler puts them on 64-bit Linux.
    assert ctypes.sizeof(kernel.Timex) == 208
    assert (kernel.Timex.maxerror.offset, kernel.Timex.status.offset) == (24, 40)
    assert (kernel.Timex.time.offset, kernel.Timex.tai.offset) == (72, 160)


def test_kernel_clock_tells_the_time_and_whether_it_is_synchronized() -> None:
    clock = KernelClock(fallback_error_us=250_000)
    source: ClockSource = clock
    before_us, before_local_us = time.time_ns() // 1000, clock.read().local_us
    reading = source.read()
    assert before_us <= reading.reference_us <= time.time_ns() // 1000
    assert reading.local_us >= before_local_us
    assert clock.is_synchronized is (reading.status is ClockStatus.SYNCHRONIZED)
    if not clock.is_synchronized:
        assert (reading.status, reading.error_us) == (ClockStatus.UNKNOWN, 250_000)
    assert clock.fallback_error_us == 250_000


def test_kernel_clock_losing_its_synchronization_says_so_once_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    states: list[int] = []

    def ask(pointer: object) -> int:
        return states.pop(0)

    # The kernel's state cannot be changed for a test: what it answers is.
    monkeypatch.setattr(kernel, "ntp_adjtime", lambda: ask)
    states[:] = [TIME_ERROR, TIME_ERROR, TIME_OK, TIME_OK, TIME_ERROR]
    with caplog.at_level(logging.INFO, "activedb.clock"):
        clock = KernelClock(fallback_error_us=250_000)
        seen = [clock.is_synchronized]
        for _ in range(4):
            clock.read()
            seen.append(clock.is_synchronized)
    assert seen == [False, False, True, True, False]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
    assert "configured error of 250000 µs" in caplog.text


def test_kernel_clock_refused_by_the_kernel_names_the_other_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(pointer: object) -> int:
        ctypes.set_errno(1)
        return -1

    monkeypatch.setattr(kernel, "ntp_adjtime", lambda: refuse)
    with pytest.raises(ConfigurationError, match=r"not permitted.*FixedErrorClock\(SystemClock"):
        KernelClock(fallback_error_us=1)


@pytest.mark.long
@pytest.mark.parametrize("platform", ["darwin", "win32", "linux"])
def test_kernel_clock_on_another_platform_names_the_other_sources(platform: str) -> None:
    """The error names the other sources, also on Linux if both functions are missing.

    The program runs in a process of its own, which takes itself to be on that platform.
    """
    program = f"""
        import ctypes, sys
        from activedb.clock import KernelClock
        from activedb.errors import ConfigurationError
        sys.platform = {platform!r}
        ctypes.CDLL = lambda *_, **__: object()
        try:
            KernelClock(fallback_error_us=1)
        except ConfigurationError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert f"no ntp_adjtime to ask the kernel's clock on {platform}" in done.stdout
    assert "FixedErrorClock" in done.stdout


@pytest.mark.parametrize(
    "build",
    [
        lambda: KernelClock(fallback_error_us=-1),
        lambda: FixedErrorClock(SystemClock(), -1),
        lambda: DriftingClock(SimulatedClock(START), seed=1, error_us=-1),
        lambda: DriftingClock(SimulatedClock(START), seed=1, granularity_us=0),
        lambda: DriftingClock(SimulatedClock(START), seed=1, adjustment_us=-1),
        lambda: DriftingClock(SimulatedClock(START), seed=1, drift_rate=1.0),
        lambda: DriftingClock(SimulatedClock(START), seed=1, error_us=5, offset_us=-6),
    ],
)
def test_source_with_a_number_out_of_range_is_refused(build: object) -> None:
    with pytest.raises(ConfigurationError, match="clock"):
        build()  # type: ignore[operator]


def test_fixed_error_clock_reads_its_clock_with_its_error() -> None:
    clock = SimulatedClock(START)
    source: ClockSource = FixedErrorClock(clock, 40)
    clock.advance(1.5)
    assert source.read() == Reading(START_US + 1_500_000, 40, ClockStatus.FIXED, 1_500_000)


steps = st.lists(st.integers(0, 200_000_000), min_size=1, max_size=40)


@pytest.mark.long
@settings(max_examples=400 * SCALE, deadline=None)
@given(
    steps_us=steps,
    seed=st.integers(0, 2**32),
    error_us=st.integers(0, 10**6),
    drift_ppm=st.integers(0, 5000),
    granularity_us=st.integers(1, 20_000),
    adjustment_us=st.integers(0, 100_000),
    resync_s=st.none() | st.floats(0.001, 100),
)
def test_drifting_clock_is_correct_and_its_local_clock_within_its_bounds(
    steps_us: list[int],
    seed: int,
    error_us: int,
    drift_ppm: int,
    granularity_us: int,
    adjustment_us: int,
    resync_s: float | None,
) -> None:
    true = SimulatedClock(START)
    clock = DriftingClock(
        true,
        seed=seed,
        error_us=error_us,
        drift_rate=drift_ppm / 1_000_000,
        granularity_us=granularity_us,
        adjustment_us=adjustment_us,
        resync_s=resync_s,
    )
    rate = Fraction(drift_ppm, 1_000_000)
    readings: list[tuple[int, Reading]] = []
    draw = random.Random(seed)
    for step_us in steps_us:
        true.advance(step_us / 1_000_000)
        now_us = round((true.now() - START).total_seconds() * 1_000_000) + START_US
        if draw.random() < 0.1:
            clock.resync()
        readings.append((now_us, clock.read()))
    for i, (now_us, reading) in enumerate(readings):
        assert abs(reading.reference_us - now_us) <= reading.error_us
        assert reading.status is ClockStatus.SIMULATED
        assert reading.local_us % granularity_us == 0
        for earlier_us, earlier in readings[:i]:
            grown_us = reading.local_us - earlier.local_us
            bound = (1 + rate) * (now_us - earlier_us) + granularity_us + adjustment_us
            assert 0 <= grown_us <= bound


def test_drifting_clock_not_synchronized_tells_a_growing_error_until_it_is() -> None:
    true = SimulatedClock(START)
    clock = DriftingClock(true, seed=3, error_us=100, drift_rate=1e-3, resync_s=None)
    errors = []
    for _ in range(5):
        errors.append(clock.read().error_us)
        true.advance(1)
    assert errors == [101, 1101, 2101, 3101, 4101]
    clock.resync()
    assert clock.read().error_us == 101


def test_drifting_clock_given_an_offset_is_off_by_it() -> None:
    clock = DriftingClock(SimulatedClock(START), seed=3, error_us=100, offset_us=-100)
    assert clock.read().reference_us == START_US - 100


def test_drifting_clocks_with_one_seed_read_the_same() -> None:
    def run(seed: int) -> list[Reading]:
        true = SimulatedClock(START)
        clock = DriftingClock(true, seed=seed, adjustment_us=50)
        readings = []
        for _ in range(20):
            true.advance(7)
            readings.append(clock.read())
        return readings

    assert run(5) == run(5)
    assert run(5) != run(6)
