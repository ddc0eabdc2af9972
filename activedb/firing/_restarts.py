"""Restarts, after a pause, of work stopped by a conflict or a lost connection."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import heappop, heappush

from activedb.clock import Clock
from activedb.config import Settings
from activedb.functions import typed_text

__all__ = ["Restarts"]

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Scheduled call, the number of its pause, and the reason why it waits."""

    at: datetime
    call: Callable[[], None]
    number: int
    reason: str


class Restarts:
    """Scheduler of calls after a backoff, which grows with the number of earlier pauses.

    A pause is a random part, at least half, of a length that doubles from ``restart_pause_ms`` to
    ``restart_pause_ms_max``, in the time of the clock. The thread starts with the first call. A
    call that raises is made again after the next pause, unless another one of its name waits then.

    Parameters
    ----------
    on_called : callable
        Called after each call.

    Attributes
    ----------
    random : random.Random
        Source of the pauses' lengths.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, clock: Clock, settings: Settings, on_called: Callable[[], None]):
        self.random = random.Random()  # noqa: S311  # spreads restarts, no secret
        self._clock = clock
        self._settings = settings
        self._latch = threading.Lock()
        self._on_called = on_called
        self._waiting: dict[str, _Waiting] = {}
        self._called: dict[str, _Waiting] = {}  # calls in progress
        # Heap of due times; an entry with another time than `_waiting` is stale.
        self._times: list[tuple[datetime, int, str]] = []
        self._serials = itertools.count()
        self._woken = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def later(self, name: str, call: Callable[[], None], number: int, reason: str) -> None:
        """Schedule a call on the thread of this object, after the `number`-th pause, from 0 on.

        The call replaces a waiting call of the same name. O(log n).
        """
        self._schedule(name, call, number, reason, replaces=True)

    def _schedule(
        self, name: str, call: Callable[[], None], number: int, reason: str, *, replaces: bool
    ) -> None:
        at = self._clock.now() + timedelta(seconds=self.delay_s(number))
        with self._latch:
            if self._is_closed or (name in self._waiting and not replaces):
                return
            self._waiting[name] = _Waiting(at, call, number, reason)
            heappush(self._times, (at, next(self._serials), name))
            is_first = self._times[0][0] == at
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="activedb-restarts", daemon=True
                )
                self._thread.start()
        if is_first:
            self._woken.set()

    def delay_s(self, number: int) -> float:
        """Return a random length for the `number`-th pause, from 0 on, in seconds."""
        longest_ms = self._longest_ms(number)
        return self.random.uniform(longest_ms / 2, longest_ms) / 1_000

    def is_last(self, number: int) -> bool:
        """Return whether the `number`-th pause has reached the maximum length."""
        return self._longest_ms(number) >= self._settings.restart_pause_ms_max

    def _longest_ms(self, number: int) -> float:
        s = self._settings
        doubled: float = s.restart_pause_ms * 2 ** min(number, 40)
        return min(doubled, s.restart_pause_ms_max)

    def drop(self, name: str) -> bool:
        """Cancel a waiting call; return False if none waits under this name."""
        with self._latch:
            return self._waiting.pop(name, None) is not None

    def call_all(self, *, but: str = "") -> int:
        """Make all waiting calls `but` one now, on this thread; return their number."""
        with self._latch:
            due = [name for name in self._waiting if name != but]
        return sum(self._call(name) for name in due)

    def waiting(self) -> dict[str, str]:
        """Return the names of waiting calls and calls in progress, each with its reason."""
        with self._latch:
            return {
                name: each.reason for name, each in (*self._called.items(), *self._waiting.items())
            }

    def close(self) -> None:
        """End the thread, and drop the waiting calls."""
        with self._latch:
            self._is_closed = True
            self._waiting.clear()
            self._times.clear()
            thread = self._thread
        self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # -- the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._woken.clear()
            if self._is_closed:
                return
            for name in self._due():
                self._call(name)
            self._clock.wait_until(self._first(), self._woken)

    def _due(self) -> list[str]:
        now = self._clock.now()
        due = []
        with self._latch:
            while self._times and self._times[0][0] <= now:
                at, _, name = heappop(self._times)
                each = self._waiting.get(name)
                if each is not None and each.at == at:
                    due.append(name)
        return due

    def _call(self, name: str) -> bool:
        """Make a call unless another thread has meanwhile; return whether it was made."""
        with self._latch:
            each = self._waiting.pop(name, None)
            if each is None:
                return False
            self._called[name] = each
        try:
            each.call()
        except Exception as error:
            _LOG.warning("%s is tried again later", name, exc_info=True)
            number, reason = each.number + 1, typed_text(error)
            self._schedule(name, each.call, number, reason, replaces=False)
        finally:
            with self._latch:
                if self._called.get(name) is each:
                    del self._called[name]
            self._on_called()
        return True

    def _first(self) -> datetime | None:
        with self._latch:
            return self._times[0][0] if self._times else None
