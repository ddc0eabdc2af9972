"""Low-water marks: the oldest of the locks in one mode on one object."""

from __future__ import annotations

import threading
from heapq import heappop, heappush

from activedb.scheduling._s_transactions import At

__all__ = ["Mark", "Waiter"]


class Waiter:
    """Request that waits on its own condition until it is granted.

    Attributes
    ----------
    at : At
        Its s-transaction's timestamp.
    is_granted : bool
    """

    __slots__ = ("_condition", "at", "is_granted")

    def __init__(self, at: At, latch: threading.Lock):
        self.at = at
        self.is_granted = False
        self._condition = threading.Condition(latch)

    def wait(self) -> None:
        """Sleep until woken. REQUIRES: the latch, which is released meanwhile."""
        self._condition.wait()

    def wake(self) -> None:
        """Wake the waiting thread. REQUIRES: the latch."""
        self._condition.notify()

    def __lt__(self, other: Waiter) -> bool:
        return self.at < other.at


class Mark:
    """Locks in one mode on one object, inserted in any order, and the requests that they block.

    Its low-water mark is the oldest timestamp among the locks (Wang et al., definition 8). A
    request passes if the mark is not older than the request.

    REQUIRES, for every method: the latch of the lock table.
    """

    __slots__ = ("_ended", "_live", "_waiting")

    def __init__(self) -> None:
        self._live: list[At] = []  # a heap; members of _ended are removed when they reach its top
        self._ended: set[At] | None = None  # created lazily: most marks have one lock and no waiter
        self._waiting: list[Waiter] | None = None  # a heap

    @property
    def oldest(self) -> At | None:
        """The low-water mark; None if there is no lock."""
        return self._live[0] if self._live else None

    @property
    def is_idle(self) -> bool:
        """True if there is neither a lock nor a request."""
        return not self._live and not self._waiting

    def add(self, at: At) -> None:
        """Insert a lock; O(log locks), O(1) in timestamp order."""
        heappush(self._live, at)

    def lets_pass(self, at: At) -> bool:
        """Return whether no lock is older than a timestamp."""
        return not self._live or at <= self._live[0]

    def join(self, waiter: Waiter) -> None:
        """Make a request wait until the mark lets it pass."""
        if self._waiting is None:
            self._waiting = []
        heappush(self._waiting, waiter)

    def end(self, at: At) -> list[Waiter]:
        """Remove a lock; return the requests that need not wait any more, oldest first."""
        live, ended = self._live, self._ended
        if live[0] != at:
            if ended is None:
                ended = self._ended = set()
            ended.add(at)
            return []  # the mark is unchanged
        heappop(live)
        while ended and live[0] in ended:
            ended.remove(heappop(live))
        granted = []
        while self._waiting and self.lets_pass(self._waiting[0].at):
            granted.append(heappop(self._waiting))
        return granted
