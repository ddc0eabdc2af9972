"""Limits of this thread's waits for the server: until the time limit of its work.

A caller with a limit sets it once, around the work. Each wait below asks for it here: a wait for an
answer, for a connection, for a latch that another thread keeps while it asks the server.
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
"""Seconds a wait may go on behind a time limit, so that a server that answers can end it."""

# Of the context, not of the thread: the coroutines of one event loop have limits of their own.
_until: ContextVar[float] = ContextVar("activedb_until", default=math.inf)


def until_s() -> float:
    """Time by which each wait has to be over, on the monotonic clock; infinite without a limit."""
    return _until.get()


def bounded_s(longest_s: float) -> float:
    """Seconds that a wait may take; `longest_s` without a limit."""
    return max(0.0, min(longest_s, _until.get() - time.monotonic()))


@contextmanager
def limited(at_s: float) -> Iterator[None]:
    """Let the waits of the block end with the limit `at_s`, and its grace; an outer one holds, too.

    Parameters
    ----------
    at_s : float
        On the monotonic clock.
    """
    token = _until.set(min(_until.get(), at_s + GRACE_S))
    try:
        yield
    finally:
        _until.reset(token)


@contextmanager
def at_least(seconds: float) -> Iterator[None]:
    """Give the block so much time, whatever is left: to find out what became of a commit, say."""
    token = _until.set(max(_until.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _until.reset(token)


class PatientLatch:
    """A re-entrant latch that is kept while the server works: to enter it is a wait for that."""

    __slots__ = ("_lock", "release")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.release = self._lock.release

    def acquire(self, blocking: bool = True) -> bool:
        """Take the latch; False if it is not free and `blocking` is False.

        Raises
        ------
        StatementCancelled
            If the time limit of this thread's work is over before.
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
