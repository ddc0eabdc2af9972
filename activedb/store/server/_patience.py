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

__all__ = [
    "GRACE_S",
    "PatientLatch",
    "at_least",
    "bounded_s",
    "forget_limits",
    "limited",
    "until_s",
    "wait_for_holder",
]

GRACE_S = 2.0
"""Seconds a wait may continue after a time limit, so that a responsive server can end it."""


class _WaitLimit:
    """Time at which waits must end, on the monotonic clock; within an outer limit, or over it.

    It can be voided: a block may end where its context cannot be reset.
    """

    __slots__ = ("at_s", "floor_s", "outer")

    def __init__(self, at_s: float, outer: _WaitLimit | None, floor_s: float = -math.inf):
        self.at_s = at_s
        self.floor_s = floor_s
        self.outer = outer

    @property
    def until_s(self) -> float:
        """Time at which waits must end. O(limits around it)."""
        outer_s = math.inf if self.outer is None else self.outer.until_s
        return max(self.floor_s, min(self.at_s, outer_s))

    def void(self) -> None:
        """Limit nothing from now on."""
        self.at_s, self.floor_s = math.inf, -math.inf


# Per context, not per thread: the coroutines of one event loop have separate limits.
_limit: ContextVar[_WaitLimit | None] = ContextVar("activedb_limit", default=None)


def until_s() -> float:
    """Return when each wait must end, on the monotonic clock; infinity without a limit."""
    limit = _limit.get()
    return math.inf if limit is None else limit.until_s


def bounded_s(longest_s: float) -> float:
    """Return the seconds that a wait may take; `longest_s` without a limit."""
    return max(0.0, min(longest_s, until_s() - time.monotonic()))


class limited:  # noqa: N801 - a context manager, used like a function
    """Context manager: end the waits of the block at `at_s` plus a grace period.

    An outer limit also holds.

    Parameters
    ----------
    at_s : float
        Time on the monotonic clock.
    """

    def __init__(self, at_s: float):
        self._limit = _WaitLimit(at_s + GRACE_S, None)

    def __enter__(self) -> None:
        self._limit.outer = _limit.get()
        self._token = _limit.set(self._limit)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _limit.reset(self._token)

    def void(self) -> None:
        """End the limit on another thread than it began on, whose context stays as it is."""
        self._limit.void()


@contextmanager
def at_least(seconds: float) -> Iterator[None]:
    """Grant the block this much time, whatever is left: to resolve an in-doubt commit, say."""
    token = _limit.set(_WaitLimit(math.inf, _limit.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _limit.reset(token)


def forget_limits() -> None:
    """Void the limits of the work that has forked this process. REQUIRES: a forked child."""
    limit = _limit.get()
    while limit is not None:
        limit.void()
        limit = limit.outer


def wait_for_holder(lock: threading.RLock) -> bool:
    """Take a lock that its holder keeps while it waits for the server, and return True.

    Raises
    ------
    StatementCancelled
        If the time limit of this thread's work is reached first.
    """
    if not lock.acquire(timeout=bounded_s(threading.TIMEOUT_MAX)):
        raise StatementCancelled(
            "the time limit was over while another thread of the transaction waited for the server"
        )
    return True


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
        lock = self._lock
        return lock.acquire(blocking=False) or (blocking and wait_for_holder(lock))

    def __enter__(self) -> bool:
        return self._lock.acquire(blocking=False) or wait_for_holder(self._lock)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
