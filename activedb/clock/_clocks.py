"""Clocks: their interfaces, the clock of the operating system, and a simulated one."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Protocol

__all__ = [
    "Clock",
    "ClockSource",
    "ClockStatus",
    "Reading",
    "SimulatedClock",
    "SystemClock",
    "in_microseconds",
    "moment_of",
    "timedelta_us",
]


class SimulatedClock:
    """A clock that stands still until it is advanced; safe to share between threads.

    Parameters
    ----------
    start : datetime
        The first reading; must be aware.
    """

    def __init__(self, start: datetime):
        if start.tzinfo is None:
            raise ValueError(f"{start!r} has no time zone; write datetime(..., tzinfo=UTC)")
        self._start = start.astimezone(UTC)
        self._latch = threading.Lock()
        self._elapsed_s = 0.0  # guarded by _latch
        # The moment that each thread waits for; guarded by _latch. A list, as one event may wait
        # twice.
        self._waiters: list[tuple[datetime, threading.Event]] = []

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        return self._start + timedelta(seconds=self.monotonic_s())

    def monotonic_s(self) -> float:
        """Return the seconds advanced so far."""
        with self._latch:
            return self._elapsed_s

    def advance(self, seconds: float) -> None:
        """Move both readings forward, and wake the threads whose moment is reached.

        Raises
        ------
        ValueError
            ``seconds`` is negative or not a number.
        """
        if not seconds >= 0:
            raise ValueError(f"a clock cannot be advanced by {seconds} s; give 0 or more")
        with self._latch:
            self._elapsed_s += seconds
            now = self._start + timedelta(seconds=self._elapsed_s)
            due = [woken for moment, woken in self._waiters if moment <= now]
        for woken in due:
            woken.set()

    @property
    def waiting(self) -> int:
        """Number of threads that wait for a moment."""
        # A test waits for it before it advances the clock.
        with self._latch:
            return len(self._waiters)

    def wait_until(self, moment: datetime | None, woken: threading.Event) -> None:
        """Block until `woken` is set, by another thread or by `advance` reaching `moment`."""
        if moment is None:
            woken.wait()
            return
        waiter = (moment, woken)
        with self._latch:
            # Under the latch: an advance comes either before this check or after the registration.
            if moment <= self._start + timedelta(seconds=self._elapsed_s):
                return
            self._waiters.append(waiter)
        try:
            woken.wait()
        finally:
            with self._latch:
                self._waiters.remove(waiter)


# Longer waits are cut: the time of day may be set, and threading has a maximum time-out.
_WAIT_S_MAX = 3600.0


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        return time.monotonic()

    def wait_until(self, moment: datetime | None, woken: threading.Event) -> None:
        """Block until `woken` is set or `moment` is reached, at most an hour; None: until set."""
        if moment is None:
            woken.wait()
            return
        remaining_s = (moment - self.now()).total_seconds()
        if remaining_s > 0:
            woken.wait(min(remaining_s, _WAIT_S_MAX))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US


def timedelta_us(delta: timedelta) -> int:
    """Return `delta` in microseconds."""
    return delta.days * _DAY_US + delta.seconds * _SECOND_US + delta.microseconds


def in_microseconds(moment: datetime) -> int:
    """Return `moment`, which is aware, in microseconds since the epoch."""
    return timedelta_us(moment - _EPOCH)


def moment_of(us: int) -> datetime:
    """Return the time of day, in UTC, that is `us` microseconds after the epoch.

    Raises
    ------
    OverflowError
        If it is not within the years 1 to 9999.
    """
    return _EPOCH + timedelta(microseconds=us)


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        ...

    def wait_until(self, moment: datetime | None, woken: threading.Event) -> None:
        """Block until `woken` is set or `moment` is reached; None: until `woken` is set.

        The call may return early, and may set `woken` itself, so the caller checks both afterwards.
        """
        ...


class ClockStatus(Enum):
    """Trustworthiness of a reading's error."""

    SYNCHRONIZED = "synchronized"
    """Synchronised to reference time; the error is the synchronisation distance."""
    UNKNOWN = "unknown"
    """Unsynchronised clock; the error is a configured value, not a bound."""
    FIXED = "fixed"
    """The error is a configured bound, vouched for by the user."""
    SIMULATED = "simulated"
    """Simulated; the error is a bound."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a node's clock (Liebig, Cilia, Buchmann, section III.C: ``get_time``).

    Attributes
    ----------
    reference_us : int
        The reading of the virtual clock: microseconds since the epoch.
    error_us : int
        Reference time is within `reference_us` ± `error_us`, subject to `status`: the
        synchronisation distance.
    status : ClockStatus
        Trustworthiness of the error.
    local_us : int
        The reading of the local clock: microseconds since some fixed moment, never going back.
    """

    reference_us: int
    error_us: int
    status: ClockStatus
    local_us: int


class ClockSource(Protocol):
    """Source of timestamps: a clock that reports its own error; safe to share."""

    def read(self) -> Reading:
        """Return the time now, with its error."""
        ...
