"""The lock manager that threads use: one latch around the lock table, and blocking.

The latch is never held while a thread sleeps or wakes another, and nothing else is latched
inside it, so it takes part in no cycle.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lockmgr._core import LockTable
from lockmgr._errors import Deadlock, LockTimeout, LockUsageError, WaitCancelled
from lockmgr._modes import SUPREMUM, Mode, intention
from lockmgr._replies import (
    GRANTED,
    Blocked,
    Denial,
    Denied,
    Effects,
    Grant,
    Resource,
    resource_text,
)
from lockmgr._waiter import ThreadWaiter, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Counters", "LockManager"]


@dataclass(slots=True)
class Counters:
    """What happened since the manager was made, counted per resource and per prefix of one.

    Attributes
    ----------
    requests, grants : int
        Requests made, and those granted, at once or after a wait.
    waits : int
        Requests for which a thread went to sleep.
    wait_s_total : float
        Seconds slept, over all threads.
    deadlocks : int
        Requests denied as a deadlock's victim.
    timeouts : int
        Requests given up because their time was up, or the waiting thread was interrupted.
    """

    requests: int = 0
    grants: int = 0
    waits: int = 0
    wait_s_total: float = 0.0
    deadlocks: int = 0
    timeouts: int = 0


class _Sleeper:
    """A blocked `acquire`: where its thread sleeps, and what it will find when it is woken."""

    __slots__ = ("cancelled", "outcome", "waiter")

    def __init__(self, waiter: Waiter):
        self.waiter = waiter
        self.outcome: Grant | Denial | None = None
        self.cancelled = False


class LockManager:
    """Blocking, thread-safe access to a `LockTable`.

    Resources are paths: before ``("accounts", 7)`` is locked, ``("accounts",)`` is locked in the
    matching intention mode.

    Parameters
    ----------
    table : LockTable, optional
        The table to guard; nobody else may touch it.
    new_waiter : callable, optional
        Makes the `Waiter` for one blocked request.
    clock : callable, optional
        Seconds, never going back; used for timeouts and `Counters.wait_s_total`.
    """

    def __init__(
        self,
        table: LockTable | None = None,
        *,
        new_waiter: Callable[[], Waiter] = ThreadWaiter,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._table = LockTable() if table is None else table
        self._new_waiter = new_waiter
        self._clock = clock
        self._latch = threading.Lock()
        self._sleepers: dict[int, _Sleeper] = {}
        self._cancelled: set[int] = set()
        self._counters = Counters()

    # -- the life of a transaction -----------------------------------------------------------

    def begin(self, tid: int, parent: int | None = None) -> None:
        """Add transaction `tid`, top-level or as a child of `parent`; see `LockTable.begin`."""
        with self._latch:
            self._table.begin(tid, parent)

    def commit(self, tid: int) -> None:
        """End `tid`: its parent retains its locks, or a top-level transaction releases them."""
        with self._latch:
            woken = self._hand_over(self._table.commit(tid))
            self._cancelled.discard(tid)
        _wake(woken)

    def abort(self, tid: int, heir: int | None = None) -> None:
        """End `tid` and release its locks, or leave them to a superior; see `LockTable.abort`."""
        with self._latch:
            woken = self._hand_over(self._table.abort(tid, heir))
            self._cancelled.discard(tid)
        _wake(woken)

    def cancel(self, tid: int) -> bool:
        """Let `tid` wait no more: its `acquire`, now blocked or yet to come, is `WaitCancelled`.

        For a superior that aborts: the thread of `tid` may be on its way into `acquire`, so this
        lasts until `tid` ends. Returns whether a thread was blocked. An ended `tid` is ignored.
        """
        with self._latch:
            if tid not in self._table:
                return False
            self._cancelled.add(tid)
            sleeper = self._sleepers.pop(tid, None)
            if sleeper is None:
                return False
            sleeper.cancelled = True
            woken = [sleeper, *self._hand_over(self._table.cancel(tid))]
        _wake(woken)
        return True

    # -- locks -------------------------------------------------------------------------------

    def acquire(
        self, tid: int, resource: Resource, mode: Mode, timeout_s: float | None = None
    ) -> None:
        """Hold `resource` in `mode` (at least), blocking until that is granted.

        Parameters
        ----------
        tid : int
            The transaction; only one thread at a time may acquire for it.
        resource : tuple
            The path; the intention mode is acquired on each prefix first, and kept on failure.
        mode : Mode
            Merged with what `tid` holds already.
        timeout_s : float, optional
            The longest wait, over all prefixes; 0 never blocks, None waits without end.

        Raises
        ------
        Deadlock
            `tid` is the victim of a deadlock.
        LockTimeout
            The time was up.
        WaitCancelled
            `cancel` was called for `tid`.
        LockUsageError
            `tid` is not live or waits already, or the path is empty.
        """
        if not resource:
            raise LockUsageError("a resource is a path of at least one part")
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        if len(resource) > 1:
            enclosing = intention(mode)
            for length in range(1, len(resource)):
                self._acquire_one(tid, resource[:length], enclosing, deadline_s)
        self._acquire_one(tid, resource, mode, deadline_s)

    def downgrade(self, tid: int, resource: Resource, mode: Mode | None) -> None:
        """Hold `resource` in a weaker mode (None: not at all) and retain what was held.

        Refused while `tid` holds something inside `resource` that needs more: that comes first.
        O(locks that `tid` holds).
        """
        with self._latch:
            self._refuse_to_uncover(tid, resource, mode)
            woken = self._hand_over(self._table.downgrade(tid, resource, mode))
        _wake(woken)

    def offer(self, tid: int) -> None:
        """Downgrade everything that `tid` holds to none, so that its children may hold it."""
        with self._latch:
            woken = self._hand_over(self._table.offer(tid))
        _wake(woken)

    # -- questions ---------------------------------------------------------------------------

    def holds(self, tid: int, resource: Resource, mode: Mode) -> bool:
        """Tell whether `tid` holds `resource` in a mode that covers `mode`. O(1)."""
        with self._latch:
            return self._table.holds(tid, resource, mode)

    def dump(self) -> str:
        """Return the forest, the waits and the locks as text; see `LockTable.dump`."""
        with self._latch:
            return self._table.dump()

    @property
    def counters(self) -> Counters:
        """The counters as they are now; a copy."""
        with self._latch:
            return replace(self._counters)

    # -- blocking ----------------------------------------------------------------------------

    def _acquire_one(
        self, tid: int, resource: Resource, mode: Mode, deadline_s: float | None
    ) -> None:
        sleeper = None
        with self._latch:
            if tid in self._cancelled:
                raise _cancelled(tid, resource, mode)
            reply = self._table.request(tid, resource, mode)
            self._counters.requests += 1
            if reply is GRANTED:
                self._counters.grants += 1
                return
            woken = self._hand_over(reply.effects)
            started_s = self._clock()
            if isinstance(reply, Denied):
                self._counters.deadlocks += 1
            elif not isinstance(reply, Blocked):
                self._counters.grants += 1
            elif deadline_s is not None and deadline_s <= started_s:
                self._counters.timeouts += 1
                woken += self._hand_over(self._table.cancel(tid))
            else:
                self._counters.waits += 1
                sleeper = self._sleepers[tid] = _Sleeper(self._new_waiter())
        _wake(woken)
        if isinstance(reply, Denied):
            raise Deadlock(reply.report)
        if isinstance(reply, Blocked):
            if sleeper is None or not self._sleep(tid, sleeper, started_s, deadline_s):
                raise _timed_out(reply)
            if sleeper.cancelled:
                raise _cancelled(tid, resource, mode)
            if isinstance(sleeper.outcome, Denial):
                raise Deadlock(sleeper.outcome.report)

    def _sleep(
        self, tid: int, sleeper: _Sleeper, started_s: float, deadline_s: float | None
    ) -> bool:
        """Block until somebody ends the wait; False if nobody did and the request is withdrawn."""
        try:
            sleeper.waiter.wait(None if deadline_s is None else deadline_s - started_s)
        finally:  # an interrupt must not leave the request in the queue either
            ended = self._rise(tid, started_s)
        return ended

    def _rise(self, tid: int, started_s: float) -> bool:
        """Tell whether somebody ended the wait of `tid`; withdraw its request if not.

        Whoever ends a wait takes the sleeper out of `_sleepers` under the latch, so a grant that
        comes as the time is up is either kept or never made.
        """
        with self._latch:
            self._counters.wait_s_total += self._clock() - started_s
            if self._sleepers.pop(tid, None) is None:
                return True
            self._counters.timeouts += 1
            woken = self._hand_over(self._table.cancel(tid))
        _wake(woken)
        return False

    def _hand_over(self, effects: Effects) -> list[_Sleeper]:
        """Give each effect to the thread it ends the wait of. REQUIRES: the latch.

        Returns whom to wake once the latch is released.
        """
        woken: list[_Sleeper] = []
        for step in effects:
            sleeper = self._sleepers.pop(step.tid)
            sleeper.outcome = step
            if isinstance(step, Grant):
                self._counters.grants += 1
            else:
                self._counters.deadlocks += 1
            woken.append(sleeper)
        return woken

    def _refuse_to_uncover(self, tid: int, resource: Resource, mode: Mode | None) -> None:
        """Keep the prefixes of what `tid` holds locked. REQUIRES: the latch."""
        depth = len(resource)
        for inner, held in self._table.held(tid).items():
            if len(inner) > depth and inner[:depth] == resource:
                needed = intention(held)
                if mode is None or SUPREMUM[mode][needed] is not mode:
                    raise LockUsageError(
                        f"transaction {tid} holds {held.name} on {resource_text(inner)}, which "
                        f"needs {needed.name} on {resource_text(resource)}; downgrade that first"
                    )


def _wake(sleepers: list[_Sleeper]) -> None:
    for sleeper in sleepers:
        sleeper.waiter.wake()


def _cancelled(tid: int, resource: Resource, mode: Mode) -> WaitCancelled:
    return WaitCancelled(
        f"transaction {tid} was cancelled and cannot have {mode.name} on "
        f"{resource_text(resource)}; abort it"
    )


def _timed_out(reply: Blocked) -> LockTimeout:
    lines = ["the lock was not granted in time; when the request was made:"]
    lines += [f"  {edge.text()}" for edge in reply.edges]
    return LockTimeout("\n".join(lines))
