"""Limits on this thread's waits for the server, from the time limit of its work.

A caller with a limit sets it once, around the work. Each wait below looks it up here: for an
answer, for a connection, for a latch that another thread holds while it waits for the server.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

from activedb.errors import StatementCancelled

__all__ = ["GRACE_S", "PatientLatch", "at_least", "bounded_s", "limited", "until_s"]

GRACE_S = 2.0
"""Seconds a wait may continue after a time limit, so that a responsive server can end it."""

# Per context, not per thread: the coroutines of one event loop have separate limits.
_until: ContextVar[float] = ContextVar("activedb_until", default=math.inf)


def until_s() -> float:
    """Return when each wait must end, on the monotonic clock; infinity without a limit."""
    return _until.get()


def bounded_s(longest_s: float) -> float:
    """Return the seconds that a wait may take; `longest_s` without a limit."""
    return max(0.0, min(longest_s, _until.get() - time.monotonic()))


@contextmanager
def limited(at_s: float) -> Iterator[None]:
    """End the waits of the block at `at_s` plus a grace period; an outer limit also holds.

    Parameters
    ----------
    at_s : float
        Time on the monotonic clock.
    """
    token = _until.set(min(_until.get(), at_s + GRACE_S))
    try:
        yield
    finally:
        _until.reset(token)


@contextmanager
def at_least(seconds: float) -> Iterator[None]:
    """Grant the block this much time, whatever is left: to resolve an in-doubt commit, say."""
    token = _until.set(max(_until.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _until.reset(token)


class PatientLatch:
    """Re-entrant latch that its holder keeps while it waits for the server."""

    __slots__ = ("_lock", "release")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True) -> bool:
        """Take the latch; return False if it is not free and `blocking` is False.

        Raises
        ------
        StatementCancelled
            If the time limit of this thread's work is reached first.
        """
        if self._lock.acquire(blocking=False):
            return True
        if not blocking:
            return False
        left_s = bounded_s(threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=left_s):
            raise StatementCancelled(
                "the time limit was over while another thread of the transaction waited for the "
                "server"
            )
        return True

    def __enter__(self) -> bool:
        return self._lock.acquire(blocking=False) or self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
