"""Where activedb gets the time from; tests and replays bring their own clock."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

__all__ = ["Clock", "SimulatedClock", "SystemClock"]


class Clock(Protocol):
    """A source of time."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    """The clock of the operating system."""

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        """Return seconds since some fixed moment; never goes back."""
        return time.monotonic()


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
        self._elapsed_s = 0.0  # guarded by _latch
        self._latch = threading.Lock()

    def now(self) -> datetime:
        """Return the time of day, aware, in UTC."""
        return self._start + timedelta(seconds=self.monotonic_s())

    def monotonic_s(self) -> float:
        """Return the seconds advanced so far."""
        with self._latch:
            return self._elapsed_s

    def advance(self, seconds: float) -> None:
        """Move both readings forward.

        Raises
        ------
        ValueError
            ``seconds`` is negative or not a number.
        """
        if not seconds >= 0:
            raise ValueError(f"a clock cannot be advanced by {seconds} s; give 0 or more")
        with self._latch:
            self._elapsed_s += seconds
