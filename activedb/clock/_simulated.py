"""Clock driven by tests and replays."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

__all__ = ["SimulatedClock"]


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
        """Number of threads that wait for a moment: a test waits for it before it advances."""
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
