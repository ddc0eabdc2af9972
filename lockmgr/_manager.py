"""Lock manager for threads: one latch around the lock table, and blocking.

The latch is never held while a thread sleeps or wakes another, and no other latch is taken inside
it, so it takes part in no cycle.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from lockmgr import _refusals as refusals
from lockmgr._core import LockTable
from lockmgr._modes import INTENTION, SUPREMUM, Mode
from lockmgr._refusals import Deadlock, LockTimeout, WaitCancelled
from lockmgr._replies import (
    GRANTED,
    Blocked,
    Busy,
    Denial,
    Denied,
    Edge,
    Effects,
    Ended,
    Grant,
    Reply,
    Resource,
)
from lockmgr._snapshot import Census, Counters, PartialSnapshot, Snapshot
from lockmgr._waiter import ThreadWaiter, Waiter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    from lockmgr._predicates import Columns, Predicate

    OnWait: TypeAlias = "Callable[[tuple[Edge, ...]], object]"
    OnSleep: TypeAlias = "Callable[[], object]"

__all__ = ["LockManager"]


class _Sleeper:
    """Blocked call: the waiter on which its thread sleeps, and the outcome it finds when woken."""

    __slots__ = ("cancelled", "outcome", "waiter")

    def __init__(self, waiter: Waiter):
        self.waiter = waiter
        self.outcome: Grant | Denial | Ended | None = None
        self.cancelled = False


class LockManager:
    """Blocking, thread-safe access to a `LockTable`.

    Resources are paths: before ``("accounts", 7)`` is locked, ``("accounts",)`` is locked in the
    matching intention mode.

    Parameters
    ----------
    table : LockTable, optional
        Table to guard, which sets the victim policy and escalation; no other code may use it.
    new_waiter : callable, optional
        Creates the `Waiter` for one blocked call.
    clock : callable, optional
        Monotonic clock in seconds; used for timeouts and `Counters.wait_s_total`.
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

    # -- transactions ------------------------------------------------------------------------

    def begin(
        self,
        tid: int,
        parent: int | None = None,
        *,
        causes: Iterable[int] = (),
        inline: bool = False,
    ) -> None:
        """Add transaction `tid`, top-level or as a child of `parent`; see `LockTable.begin`."""
        with self._latch:
            self._table.begin(tid, parent, causes=causes, inline=inline)

    def commit(self, tid: int) -> None:
        """End `tid`: its parent retains its locks, or a top-level transaction releases them."""
        with self._latch:
            effects = self._table.commit(tid)
            woken = self._hand_over(effects) if effects else []
            self._cancelled.discard(tid)
        if woken:
            _wake(woken)

    def abort(self, tid: int, heir: int | None = None) -> None:
        """End `tid` and release its locks, or leave them to a superior; see `LockTable.abort`.

        If the thread of `tid` was interrupted before it slept, its request is withdrawn.
        """
        with self._latch:
            woken: list[_Sleeper] = []
            if tid in self._table and tid not in self._sleepers:
                woken = self._hand_over(self._table.cancel(tid))
            woken += self._hand_over(self._table.abort(tid, heir))
            self._cancelled.discard(tid)
        _wake(woken)

    def cancel(self, tid: int) -> bool:
        """End the wait of `tid`: its call, now blocked or yet to come, raises `WaitCancelled`.

        For a superior that aborts: the thread of `tid` may be about to enter `acquire`, so the
        cancellation lasts until `tid` ends. Returns whether a thread was blocked. An ended `tid` is
        ignored.
        """
        with self._latch:
            if tid not in self._table:
                return False
            self._cancelled.add(tid)
            sleeper = self._sleepers.get(tid)
            effects = self._table.cancel(tid)
            if sleeper is not None:
                sleeper.cancelled = True
                del self._sleepers[tid]
            woken = self._hand_over(effects)
        _wake(woken if sleeper is None else [sleeper, *woken])
        return sleeper is not None

    # -- locks -------------------------------------------------------------------------------

    def acquire(
        self,
        tid: int,
        resource: Resource,
        mode: Mode,
        timeout_s: float | None = None,
        on_wait: OnWait | None = None,
        on_sleep: OnSleep | None = None,
    ) -> None:
        """Hold `resource` in `mode` (at least), blocking until the lock is granted.

        Parameters
        ----------
        tid : int
            The transaction; only one thread at a time may acquire for it.
        resource : tuple
            The path; the intention mode is acquired on each prefix first, and kept on failure.
        mode : Mode
            Merged with the mode that `tid` holds already.
        timeout_s : float, optional
            The longest wait, over all prefixes; with 0 or less the call never waits and does not
            disturb waiters; None waits without limit.
        on_wait : callable ``(edges)``, optional
            Called before the thread goes to sleep, with the edges of the wait; no latch is held.
        on_sleep : callable ``()``, optional
            Called after `on_wait`, for callers that know of waits outside the table: it may call
            `overtake`, and an exception that it raises ends the wait.

        Raises
        ------
        Deadlock
            `tid` is the victim of a deadlock.
        LockTimeout
            The timeout expired.
        WaitCancelled
            `cancel` was called for `tid`.
        LockUsageError
            `tid` is not live or waits already, or the path is empty.
        """
        if mode.__class__ is not Mode or resource.__class__ is not tuple or not resource:
            raise refusals.neither_path_nor_mode(refusals.GRANT, tid, resource, mode)
        deadline_s = self._deadline_s(timeout_s)
        wait = timeout_s is None or timeout_s > 0
        enclosing = INTENTION[mode]
        request = self._table.request
        asked = 0
        while asked < len(resource):
            with self._latch:
                self._refuse_cancelled(tid)
                reply: Reply = GRANTED
                while reply is GRANTED and asked < len(resource):
                    asked += 1
                    if asked < len(resource):
                        reply = request(tid, resource[:asked], enclosing, wait=wait)
                    else:
                        reply = request(tid, resource, mode, wait=wait)
                if reply is GRANTED:
                    return
                woken, sleeper = self._receive(tid, reply)
                edges = () if on_wait is None or sleeper is None else self._table.edges(tid)
            _wake(woken)
            tell = None if on_wait is None else partial(on_wait, edges)
            self._await_outcome(tid, reply, sleeper, deadline_s, tell, on_sleep)
            wait = deadline_s is None or self._clock() < deadline_s

    def declare(
        self,
        tid: int,
        table: Resource,
        rows: Sequence[Columns] | None,
        *,
        first: bool = True,
    ) -> Predicate | None:
        """Declare rows that `tid` will write; return a predicate to lock in IX before.

        Once it is locked, call again; see `LockTable.declare`.

        Raises
        ------
        WaitCancelled
            `cancel` was called for `tid`.
        """
        with self._latch:
            self._refuse_cancelled(tid)
            return self._table.declare(tid, table, rows, first=first)

    def overtake(self, tid: int) -> bool:
        """Let `tid` pass its queue (`LockTable.overtake`); return whether its wait is over."""
        with self._latch:
            woken = self._hand_over(self._table.overtake(tid))
            is_over = tid not in self._sleepers
        _wake(woken)
        return is_over

    def await_end(
        self,
        tid: int,
        of: int,
        timeout_s: float | None = None,
        on_wait: OnWait | None = None,
        on_sleep: OnSleep | None = None,
    ) -> None:
        """Block until transaction `of` has ended, for a transaction that depends on it.

        The end of a committing subtransaction is final for the inferiors of its parent only; for
        others the wait continues for the parent. Parameters and errors are as for `acquire`.
        """
        deadline_s = self._deadline_s(timeout_s)
        wait = timeout_s is None or timeout_s > 0
        with self._latch:
            self._refuse_cancelled(tid)
            reply = self._table.await_end(tid, of, wait=wait)
            woken, sleeper = self._receive(tid, reply)
            edges = () if on_wait is None or sleeper is None else self._table.edges(tid)
        _wake(woken)
        tell = None if on_wait is None else partial(on_wait, edges)
        self._await_outcome(tid, reply, sleeper, deadline_s, tell, on_sleep)

    def await_causes(self, tid: int, timeout_s: float | None = None) -> None:
        """Block until `tid` causally depends on no live transaction, so that it may commit.

        `timeout_s` and errors are as for `acquire`.
        """
        deadline_s = self._deadline_s(timeout_s)
        while True:
            with self._latch:
                causes = self._table.causes(tid)
            if not causes:
                return
            if deadline_s is not None:
                timeout_s = deadline_s - self._clock()
            self.await_end(tid, causes[0], timeout_s)

    def downgrade(self, tid: int, resource: Resource, mode: Mode | None) -> None:
        """Hold `resource` in a weaker mode (None: not at all) and retain the mode held before.

        Refused while `tid` holds a resource inside `resource` that needs more; downgrade that
        first. O(locks that `tid` holds).
        """
        with self._latch:
            self._check_prefixes(tid, resource, mode)
            woken = self._hand_over(self._table.downgrade(tid, resource, mode))
        _wake(woken)

    def offer(self, tid: int) -> None:
        """Downgrade all locks that `tid` holds to none, so that its children may hold them."""
        with self._latch:
            effects = self._table.offer(tid)
            woken = self._hand_over(effects) if effects else []
        if woken:
            _wake(woken)

    # -- queries -----------------------------------------------------------------------------

    def holds(self, tid: int, resource: Resource, mode: Mode) -> bool:
        """Return whether `tid` may use `resource` in `mode`; see `LockTable.holds`."""
        with self._latch:
            return self._table.holds(tid, resource, mode)

    def dump(self) -> str:
        """Return the forest, the waits and the locks as text; see `LockTable.dump`."""
        return self.snapshot().text()

    def snapshot(self) -> Snapshot:
        """Return the whole state as values, which can be read without the latch."""
        with self._latch:
            return self._table.snapshot()

    def glance(self, limit: int) -> PartialSnapshot:
        """Return a bounded part of the state, blocked calls first; see `LockTable.glance`."""
        with self._latch:
            return self._table.glance(self._sleepers, limit)

    def census(self) -> Census:
        """Return the numbers of live and waiting transactions; see `LockTable.census`."""
        with self._latch:
            return self._table.census()

    @property
    def counters(self) -> Counters:
        """Copy of the counters' current values."""
        with self._latch:
            return replace(self._table.counters)

    # -- blocking ----------------------------------------------------------------------------

    def _deadline_s(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self._clock() + timeout_s

    def _refuse_cancelled(self, tid: int) -> None:
        """Raise `WaitCancelled` if `tid` was cancelled. REQUIRES: the latch."""
        if tid in self._cancelled:
            raise _cancelled(tid)

    def _receive(self, tid: int, reply: Reply) -> tuple[list[_Sleeper], _Sleeper | None]:
        """Process the effects of a reply on other transactions. REQUIRES: the latch.

        Returns the sleepers to wake once the latch is released, and the sleeper of `tid` if it must
        wait.
        """
        woken = self._hand_over(reply.effects)
        sleeper = None
        if isinstance(reply, Busy):
            self._table.counters.timeouts += 1
        elif isinstance(reply, Blocked):
            try:
                sleeper = self._sleepers[tid] = _Sleeper(self._new_waiter())
            except BaseException:  # no request may stay queued without a thread
                _wake(woken + self._hand_over(self._table.cancel(tid)))
                raise
            self._table.counters.waits += 1
        return woken, sleeper

    def _await_outcome(
        self,
        tid: int,
        reply: Reply,
        sleeper: _Sleeper | None,
        deadline_s: float | None,
        tell: Callable[[], object] | None = None,
        on_sleep: OnSleep | None = None,
    ) -> None:
        """Sleep if necessary until the call may return; raise if the request failed."""
        if isinstance(reply, Denied):
            raise Deadlock(reply.report)
        if isinstance(reply, Busy):
            raise _timed_out(reply.edges)
        if sleeper is None or not isinstance(reply, Blocked):
            return
        edges = self._sleep(tid, sleeper, deadline_s, tell, on_sleep)
        if edges is not None:
            raise _timed_out(edges)
        if sleeper.cancelled:
            raise _cancelled(tid)
        if isinstance(sleeper.outcome, Denial):
            raise Deadlock(sleeper.outcome.report)

    def _sleep(
        self,
        tid: int,
        sleeper: _Sleeper,
        deadline_s: float | None,
        tell: Callable[[], object] | None,
        on_sleep: OnSleep | None,
    ) -> tuple[Edge, ...] | None:
        """Block until the wait is ended; return None, or the wait's edges if it timed out."""
        started_s = self._clock()
        try:
            if tell is not None:
                tell()
            if on_sleep is not None:
                on_sleep()
            sleeper.waiter.wait(None if deadline_s is None else max(0.0, deadline_s - started_s))
        finally:  # an interrupt must not leave the request in the queue either
            edges = self._rise(tid, started_s)
        return edges

    def _rise(self, tid: int, started_s: float) -> tuple[Edge, ...] | None:
        """Withdraw the wait of `tid` and return its edges; None if another thread has ended it.

        Any thread that ends a wait removes the sleeper from `_sleepers` under the latch, so a grant
        that races with the timeout is either kept or never made.
        """
        with self._latch:
            self._table.counters.wait_s_total += self._clock() - started_s
            if tid not in self._sleepers:
                return None
            edges = self._table.edges(tid)
            woken = self._hand_over(self._table.cancel(tid))
            del self._sleepers[tid]
            self._table.counters.timeouts += 1
        _wake(woken)
        return edges

    def _hand_over(self, effects: Effects) -> list[_Sleeper]:
        """Assign each effect to the sleeper whose wait it ends. REQUIRES: the latch.

        Returns the sleepers to wake once the latch is released.
        """
        woken: list[_Sleeper] = []
        for step in effects:
            sleeper = self._sleepers.pop(step.tid, None)
            if sleeper is not None:  # else its thread was interrupted and is about to withdraw
                sleeper.outcome = step
                woken.append(sleeper)
        return woken

    def _check_prefixes(self, tid: int, resource: Resource, mode: Mode | None) -> None:
        """Refuse a mode too weak for a resource that `tid` holds inside. REQUIRES: the latch."""
        if mode is not None and mode.__class__ is not Mode:
            return  # the table rejects it
        depth = len(resource)
        for inner, held in self._table.held(tid).items():
            if len(inner) > depth and inner[:depth] == resource:
                needed = INTENTION[held]
                if mode is None or SUPREMUM[mode][needed] is not mode:
                    raise refusals.needed_inside(tid, resource, needed, inner, held)


def _wake(sleepers: list[_Sleeper]) -> None:
    for sleeper in sleepers:
        sleeper.waiter.wake()


def _cancelled(tid: int) -> WaitCancelled:
    return WaitCancelled(f"transaction {tid} was cancelled and can wait for nothing; abort it")


def _timed_out(edges: tuple[Edge, ...]) -> LockTimeout:
    lines = ["not granted in time:"]
    lines += [f"  {edge.text()}" for edge in edges]
    return LockTimeout("\n".join(lines))
