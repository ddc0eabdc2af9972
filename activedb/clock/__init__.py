"""Clocks and clock sources; tests and replays can supply their own. See README.md."""

from __future__ import annotations

from activedb.clock._drifting import DriftingClock
from activedb.clock._epoch import in_microseconds, moment_of, timedelta_us
from activedb.clock._fixed import FixedErrorClock
from activedb.clock._kernel import KernelClock
from activedb.clock._protocol import Clock, ClockSource, ClockStatus, Reading
from activedb.clock._simulated import SimulatedClock
from activedb.clock._system import SystemClock

__all__ = [
    "Clock",
    "ClockSource",
    "ClockStatus",
    "DriftingClock",
    "FixedErrorClock",
    "KernelClock",
    "Reading",
    "SimulatedClock",
    "SystemClock",
    "in_microseconds",
    "moment_of",
    "timedelta_us",
]
