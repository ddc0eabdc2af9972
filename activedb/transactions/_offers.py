"""Registry of children that wait for a superior, which works in parallel, to offer its locks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING

from lockmgr import Edge, EdgeKind, LockManager

if TYPE_CHECKING:
    from activedb.transactions._hierarchy import Kin

__all__ = ["Offers"]

_LOOK_EVERY_S = 0.02


class Offers:
    """Registry of children that wait for a superior to offer its locks.

    To the lock manager, a child that requests a lock held by its superior is in a deadlock: the
    superior cannot commit before the end of the child. But a superior offers its locks when it
    joins its children, or spawns one, so while the superior works, the child only has to wait. It
    waits here, outside the lock manager's graph, and polls whether the superior has come to wait
    for the child.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, locks: Callable[[], LockManager]):
        self._locks = locks
        self._latch = threading.Lock()
        self._awaited: dict[int, Edge] = {}

    def wait_of(self, tid: int) -> Edge | None:
        """Return the wait of transaction `tid` for a superior's offer, or None."""
        return self._awaited.get(tid)

    def await_one(
        self, kin: Kin, edge: Edge, is_rollback_only: Callable[[], bool], until_s: float
    ) -> bool:
        """Wait until the superior no longer holds the lock of `edge`, or the child must abort.

        Returns False if the wait would be a deadlock, or at `until_s` on the monotonic clock.

        Parameters
        ----------
        kin : Kin
            Latch and pauses of the hierarchy.
        edge : Edge
            The wait of the child for the superior; see `_locking.lock`.
        """
        assert edge.resource is not None
        assert edge.against is not None
        locks, resource, mode = self._locks(), edge.resource, edge.against
        child, superior = edge.waiter, edge.waited_for

        def is_over() -> bool:
            return is_rollback_only() or not locks.holds(superior, resource, mode)

        with self._latch:
            self._awaited[child] = edge
        try:
            while not is_over():
                left_s = until_s - time.monotonic()
                if left_s <= 0 or self._is_blocked_by(superior, child):
                    return False
                pause_s = min(left_s, _LOOK_EVERY_S)
                kin.pause(methodcaller("wait", pause_s), is_over)
            return True
        finally:
            with self._latch:
                del self._awaited[child]

    def _is_blocked_by(self, superior: int, child: int) -> bool:
        """Return whether `superior` waits for `child`, other than to commit. O(graph).

        A superior whose offer is awaited will offer its locks before it waits to commit, so its
        own commit edges do not count.
        """
        edges: dict[int, list[Edge]] = {}
        for edge in self._locks().snapshot().edges:
            edges.setdefault(edge.waiter, []).append(edge)
        with self._latch:
            awaited = dict(self._awaited)
        found = [(superior, False)]
        seen = set(found)
        for tid, counts_commit in found:  # grows while it is walked
            targets = [
                (edge.waited_for, True)
                for edge in edges.get(tid, ())
                if counts_commit or edge.kind is not EdgeKind.COMMIT
            ]
            if counts_commit and tid in awaited:
                targets.append((awaited[tid].waited_for, False))
            for target in targets:
                if target[0] == child:
                    return True
                if target not in seen:
                    seen.add(target)
                    found.append(target)
        return False
