"""Time limits, and the one thread that enforces them."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from activedb.errors import ConfigurationError, TransactionTimeout

__all__ = ["Alarm", "Deadlines", "Limit"]

_LOG = logging.getLogger(__name__)
_DEAD_MIN = 64  # dropped alarms before the heap is rebuilt


@dataclass(frozen=True, slots=True)
class Limit:
    """Time limit of a transaction, for all its tries together.

    Attributes
    ----------
    timeout_s : float
        Length of the limit.
    at_s : float
        End of the limit, on the monotonic clock.
    """

    timeout_s: float
    at_s: float

    @classmethod
    def after(cls, timeout_s: float | None) -> Self | None:
        """Return a limit that begins now; None if `timeout_s` is None.

        Raises
        ------
        ConfigurationError
            If `timeout_s` is not a positive, finite number.
        """
        if timeout_s is None:
            return None
        is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
        if not is_number or not 0 < timeout_s < math.inf:
            raise ConfigurationError(
                f"timeout {timeout_s!r} is not a time limit; give seconds greater than 0, or None "
                f"for no limit"
            )
        return cls(timeout_s, time.monotonic() + timeout_s)

    @property
    def left_s(self) -> float:
        """Remaining seconds; negative when the limit is over."""
        return self.at_s - time.monotonic()

    def error(self, path: str) -> TransactionTimeout:
        """Return the error with which the transaction of this path aborts."""
        return TransactionTimeout(
            f"transaction {path} did not end within its limit of {self.timeout_s:g} s; give it "
            f"more time or less to do"
        )


class Alarm:
    """Call scheduled by `Deadlines`."""

    __slots__ = ("_deadlines", "ring")

    def __init__(self, deadlines: Deadlines, ring: Callable[[], object]):
        self._deadlines = deadlines
        self.ring: Callable[[], object] | None = ring

    def drop(self) -> None:
        """Cancel the alarm. Amortised O(1)."""
        self._deadlines._drop(self)


class Deadlines:
    """Scheduler of alarms on one daemon thread, started by the first alarm and ended by `close`.

    Latch: ``_wake``; no other latch is taken under it, and no alarm rings under it.
    """

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._heap: list[tuple[float, int, Alarm]] = []
        self._dropped = 0
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def at(self, at_s: float, ring: Callable[[], object]) -> Alarm:
        """Call `ring` at `at_s` on the monotonic clock, unless the alarm is dropped. O(log alarms).

        `ring` must not block, because the next alarm waits for it.
        """
        alarm = Alarm(self, ring)
        with self._wake:
            if self._closed:
                return alarm
            heapq.heappush(self._heap, (at_s, next(self._numbers), alarm))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="activedb-deadlines", daemon=True
                )
                self._thread.start()
            elif self._heap[0][2] is alarm:
                self._wake.notify()
        return alarm

    def close(self) -> None:
        """End the thread; no alarm rings any more. Idempotent."""
        with self._wake:
            self._closed = True
            self._heap.clear()
            self._wake.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _drop(self, alarm: Alarm) -> None:
        with self._wake:
            if alarm.ring is None:
                return
            alarm.ring = None
            self._dropped += 1
            if self._dropped > max(_DEAD_MIN, len(self._heap) // 2):
                self._heap = [entry for entry in self._heap if entry[2].ring is not None]
                heapq.heapify(self._heap)
                self._dropped = 0

    def _watch(self) -> None:
        while True:
            with self._wake:
                ring = self._next_due()
                if ring is None:
                    return
            try:
                ring()
            except Exception:
                _LOG.exception("a time limit could not be enforced")

    def _next_due(self) -> Callable[[], object] | None:
        """Wait for the next alarm and return its call; None when closed. REQUIRES: the latch."""
        while not self._closed:
            if not self._heap:
                self._wake.wait()
                continue
            at_s, _, alarm = self._heap[0]
            delay_s = at_s - time.monotonic()
            if alarm.ring is not None and delay_s > 0:
                self._wake.wait(min(delay_s, threading.TIMEOUT_MAX))
                continue
            heapq.heappop(self._heap)
            ring, alarm.ring = alarm.ring, None
            if ring is not None:
                return ring
            self._dropped = max(0, self._dropped - 1)
        return None
