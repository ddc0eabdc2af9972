"""Clocks and clock sources; tests and replays can supply their own. See README.md."""

from __future__ import annotations

from activedb.clock._clocks import (
    Clock,
    ClockSource,
    ClockStatus,
    Reading,
    SimulatedClock,
    SystemClock,
    in_microseconds,
    moment_of,
    timedelta_us,
)
from activedb.clock._sources import FixedErrorClock, KernelClock

__all__ = [
    "Clock",
    "ClockSource",
    "ClockStatus",
    "FixedErrorClock",
    "KernelClock",
    "Reading",
    "SimulatedClock",
    "SystemClock",
    "in_microseconds",
    "moment_of",
    "timedelta_us",
]
