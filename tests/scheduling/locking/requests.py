"""Requests of a lock table on threads of their own, step by step: who waits, who is granted."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from activedb.scheduling import At
from activedb.scheduling.locking import ObjectLock, TimestampLockTable
from activedb.scheduling.locking._gate import Stopped
from activedb.scheduling.locking._lock_table import Compatibility
from tests.patience import PATIENCE_S

__all__ = ["Requests"]


class Requests:
    """A lock table whose gate reports when every request is granted or waits.

    Attributes
    ----------
    table : TimestampLockTable
    granted, stopped : set of At
        Whose request has returned; has been stopped.
    """

    def __init__(self, figure: Compatibility):
        self.table = TimestampLockTable(figure, self)
        self.granted: set[At] = set()
        self.stopped: set[At] = set()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._running = 0
        self._blocked: set[At] = set()

    def ask(self, at: At, locks: Iterable[ObjectLock]) -> bool:
        """Request locks on a new thread; return whether they are granted at once."""
        with self._changed:
            self._running += 1
        thread = threading.Thread(target=self._ask, args=(at, tuple(locks)), daemon=True)
        self._threads.append(thread)
        thread.start()
        self.settle()
        return at in self.granted

    def settle(self) -> None:
        """Wait until every request is granted, stopped or waits."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._running, timeout=PATIENCE_S)

    def end(self) -> None:
        """Stop all that waits."""
        self.table.stop()
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def _ask(self, at: At, locks: tuple[ObjectLock, ...]) -> None:
        try:
            self.table.request(at, locks)
        except Stopped:
            self._rests(self.stopped, at)
        else:
            self._rests(self.granted, at)

    def _rests(self, among: set[At], at: At) -> None:
        with self._changed:
            among.add(at)
            if at in self._blocked:  # it was stopped as it slept
                self._blocked.remove(at)
            else:
                self._running -= 1
            self._changed.notify_all()

    # -- what the table tells its gate -----------------------------------------------------------

    def blocked(self, at: At) -> None:
        with self._changed:
            self._blocked.add(at)
            self._running -= 1
            self._changed.notify_all()

    def unblocked(self, at: At) -> None:
        with self._changed:
            self._blocked.remove(at)
            self._running += 1

    def start(self, threads: int) -> None: ...

    def access(self, at: At, what: str) -> None: ...

    def leave(self) -> None: ...

    def stop(self) -> None: ...
