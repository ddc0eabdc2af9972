"""Lock tables with a fault, to see whether the tests find it.

The faults are in what a table answers, not in its structures: they stand on whatever table there
is, and nothing but the answers gives them away.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockmgr import (
    Blocked,
    DeadlockReport,
    Denied,
    Effects,
    Grant,
    Granted,
    LockTable,
    Mode,
    Predicate,
    Reply,
    Resource,
)
from lockmgr._predicates import Columns
from tests.lockmgr.scheduler import ScheduledWaiter


class SilentAbort(LockTable):
    """Table that does not report what an abort has granted."""

    def abort(self, tid: int, heir: int | None = None) -> Effects:
        super().abort(tid, heir)
        return ()


class SilentCancel(LockTable):
    """Table that does not report what a withdrawn request has granted."""

    def cancel(self, tid: int) -> Effects:
        super().cancel(tid)
        return ()


class BlindRequest(LockTable):
    """Table that lets a request wait although it closes a cycle."""

    def request(self, tid: int, resource: Resource, mode: Mode, *, wait: bool = True) -> Reply:
        reply = super().request(tid, resource, mode, wait=wait)
        if isinstance(reply, Denied):
            return Blocked(reply.effects)
        return reply


class BlindInheritance(LockTable):
    """Table that overlooks the cycles that an inherited lock closes."""

    def commit(self, tid: int) -> Effects:
        return tuple(step for step in super().commit(tid) if isinstance(step, Grant))


class Jumpy(LockTable):
    """Table that sees a deadlock in every wait."""

    def request(self, tid: int, resource: Resource, mode: Mode, *, wait: bool = True) -> Reply:
        reply = super().request(tid, resource, mode, wait=wait)
        if not isinstance(reply, Blocked):
            return reply
        there = self.edges(tid)[0]
        back = there._replace(waiter=there.waited_for, waited_for=tid)
        return Denied(DeadlockReport((there, back), "none"), self.cancel(tid))


class Generous(LockTable):
    """Table that grants what is not free."""

    def request(self, tid: int, resource: Resource, mode: Mode, *, wait: bool = True) -> Reply:
        reply = super().request(tid, resource, mode, wait=wait)
        return Granted(self.cancel(tid)) if isinstance(reply, Blocked) else reply


class BlindWriter(LockTable):
    """Table that does not look for the predicates which rows satisfy."""

    def declare(
        self, tid: int, table: Resource, rows: Sequence[Columns] | None, *, first: bool = True
    ) -> Predicate | None:
        return super().declare(tid, table, [], first=first)


class Forgetful(ScheduledWaiter):
    """Loses a wake-up that comes before the wait."""

    _asleep = False

    def wait(self, timeout_s: float | None) -> None:
        self._asleep = True
        super().wait(timeout_s)

    def wake(self) -> None:
        super().wake()
        self._woken = self._asleep
