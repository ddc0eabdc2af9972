"""Clock sources, with a bound on their error: fixed, or the kernel's estimate."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from activedb.clock._clocks import Clock, ClockStatus, Reading, in_microseconds
from activedb.errors import ConfigurationError

__all__ = ["FixedErrorClock", "KernelClock"]


log = logging.getLogger("activedb.clock")

_STA_UNSYNC = 0x0040
_STA_NANO = 0x2000
_TIME_OOP = 3
_TIME_ERROR = 5
_LEAP_US = 1_000_000


class Timeval(ctypes.Structure):
    """``struct timeval``; with STA_NANO the second field is in nanoseconds."""

    _fields_ = (("tv_sec", ctypes.c_long), ("tv_usec", ctypes.c_long))


class Timex(ctypes.Structure):
    """``struct timex`` of Linux, <sys/timex.h>."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", Timeval),
        ("tick", ctypes.c_long),
        ("ppsfreq", ctypes.c_long),
        ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long),
        ("jitcnt", ctypes.c_long),
        ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


class _TimexFields(Protocol):
    """Fields of ``struct timex`` that a reading uses."""

    maxerror: int
    status: int
    time: Any


class KernelClock:
    """Kernel clock: its time with the kernel's error bound, by one ``ntp_adjtime`` call.

    The error is the kernel's ``maxerror``, which the clock's discipline (ntpd, chronyd,
    systemd-timesyncd) sets to the root distance and the kernel lets grow until the next update: the
    synchronisation distance of (Liebig, Cilia, Buchmann, section III.C). The call changes nothing
    in the kernel and needs no privilege.

    If no daemon synchronises the clock, the kernel has no bound. Its readings then have
    `ClockStatus.UNKNOWN` and `fallback_error_us`; `is_synchronized` is False, and one warning is
    logged each time synchronisation is lost.

    The local clock is CLOCK_MONOTONIC_RAW, the hardware clock: no discipline adjusts its rate, so a
    node's `adjustment_us` is 0.

    Parameters
    ----------
    fallback_error_us : int
        The error of a reading while the clock is not synchronised: the administrators' upper bound.

    Raises
    ------
    ConfigurationError
        If the fallback is negative, or this platform has no ``ntp_adjtime``.
    """

    def __init__(self, *, fallback_error_us: int):
        if fallback_error_us < 0:
            raise ConfigurationError(
                f"the fallback error of a clock is 0 µs or more, not {fallback_error_us}"
            )
        self._fallback_error_us = fallback_error_us
        self._ask = ntp_adjtime()
        self._latch = threading.Lock()
        self._is_synchronized: bool | None = None  # None: not read yet; guarded by _latch
        self.read()  # so that errors show now, not at the first event

    @property
    def is_synchronized(self) -> bool:
        """True if the kernel's clock was synchronised at the last reading."""
        with self._latch:
            return bool(self._is_synchronized)

    @property
    def fallback_error_us(self) -> int:
        """The error of a reading while the clock is not synchronised, in microseconds."""
        return self._fallback_error_us

    def read(self) -> Reading:
        """Return the time now, with its error."""
        buffer = Timex()  # modes = 0: only query
        state = self._ask(ctypes.byref(buffer))
        # Read second: a detection delay bounds the time up to the end of both readings.
        local_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) // 1000
        if state < 0:
            code = ctypes.get_errno()
            raise ConfigurationError(
                f"the kernel does not tell the error of its clock (ntp_adjtime: "
                f"{os.strerror(code)}); use {OTHER_SOURCES}"
            )
        reading = interpret(state, buffer, self._fallback_error_us, local_us)
        self._note(reading.status is ClockStatus.SYNCHRONIZED)
        return reading

    def _note(self, is_synchronized: bool) -> None:
        with self._latch:
            changed = is_synchronized is not self._is_synchronized
            first = self._is_synchronized is None
            self._is_synchronized = is_synchronized
        if changed and not is_synchronized:
            log.warning(
                "the kernel's clock is not synchronised: timestamps have the configured error of "
                "%d µs and the status unknown until it is; start ntpd, chronyd or "
                "systemd-timesyncd",
                self._fallback_error_us,
            )
        elif changed and not first:
            log.info("the kernel's clock is synchronised again")


OTHER_SOURCES = "FixedErrorClock(SystemClock(), error_us=...) with an error you vouch for"


def interpret(state: int, timex: _TimexFields, fallback_error_us: int, local_us: int) -> Reading:
    """Return the reading for an ``ntp_adjtime`` call that returned `state` and filled `timex`."""
    fraction_us = timex.time.tv_usec // 1000 if timex.status & _STA_NANO else timex.time.tv_usec
    reference_us = timex.time.tv_sec * 1_000_000 + fraction_us
    if state == _TIME_ERROR or timex.status & _STA_UNSYNC:
        return Reading(reference_us, fallback_error_us, ClockStatus.UNKNOWN, local_us)
    error_us = timex.maxerror
    if fraction_us * 1000 != timex.time.tv_usec and timex.status & _STA_NANO:
        error_us += 1  # for the truncated nanoseconds
    if state == _TIME_OOP:
        # A leap second is being inserted: the clock shows its last second twice.
        error_us += _LEAP_US
    return Reading(reference_us, error_us, ClockStatus.SYNCHRONIZED, local_us)


def ntp_adjtime() -> Callable[[Any], int]:
    """Return the C library's ``ntp_adjtime``, or ``adjtimex``, which is the same on Linux.

    Raises
    ------
    ConfigurationError
        If this is not Linux (``struct timex`` differs elsewhere), or it has neither.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        for name in ("ntp_adjtime", "adjtimex"):
            function = getattr(libc, name, None)
            if function is not None:
                function.argtypes = (ctypes.c_void_p,)
                function.restype = ctypes.c_int
                return function  # type: ignore[no-any-return]  # ctypes makes them as it goes
    raise ConfigurationError(
        f"there is no ntp_adjtime to ask the kernel's clock on {sys.platform}; use {OTHER_SOURCES}"
    )


class FixedErrorClock:
    """Readings of `clock`, each with the same error.

    For nodes whose synchronisation is monitored by other means, and for platforms whose kernel does
    not report the error of its clock.

    Parameters
    ----------
    clock : Clock
        Source of the time.
    error_us : int
        Upper bound on the distance between a reading and reference time.

    Raises
    ------
    ConfigurationError
        If the error is negative.
    """

    def __init__(self, clock: Clock, error_us: int):
        if error_us < 0:
            raise ConfigurationError(f"the error of a clock is 0 µs or more, not {error_us}")
        self._clock = clock
        self._error_us = error_us

    def read(self) -> Reading:
        """Return the time now, with the fixed error."""
        reference_us = in_microseconds(self._clock.now())
        # Floor, like a clock that counts whole microseconds: the granularity covers it.
        local_us = int(self._clock.monotonic_s() * 1_000_000)
        return Reading(reference_us, self._error_us, ClockStatus.FIXED, local_us)
