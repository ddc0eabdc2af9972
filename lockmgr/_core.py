"""The lock table: the locking rules and deadlock detection, without threads.

Rules 1 to 5 are those of (Saygin, Ulusoy, Chakravarthy, section 3.1), after (Härder, Rothermel
1993); the README says how the queue and the wait-for graph complete them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr._deadlock import break_cycles
from lockmgr._dump import dump
from lockmgr._errors import LockUsageError
from lockmgr._graph import lock_edges
from lockmgr._modes import SUPREMUM, Mode
from lockmgr._replies import (
    GRANTED,
    NOTHING,
    Blocked,
    Denial,
    Denied,
    Effects,
    Grant,
    Granted,
    Reply,
    Resource,
    resource_text,
)
from lockmgr._structures import Entry, Request, Transaction

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["LockTable"]


class LockTable:
    """Who holds, retains and waits for what; deterministic, and never blocks.

    Each call that changes locks returns, in order, the grants and denials that it caused for
    *other*, waiting transactions. A call that the protocol does not allow raises
    `LockUsageError` and changes nothing. A resource is any path; that a path's prefixes must be
    locked first is the business of `LockManager`.

    Not thread-safe: one latch around every call, as in `LockManager`.
    """

    def __init__(self) -> None:
        self._transactions: dict[int, Transaction] = {}
        self._entries: dict[Resource, Entry] = {}

    # -- the life of a transaction -----------------------------------------------------------

    def begin(self, tid: int, parent: int | None = None) -> None:
        """Add transaction `tid`, top-level or as a child of `parent`; from now on `parent` waits.

        The new wait-for-commit edge closes no cycle: the child waits for nobody yet.
        """
        if tid in self._transactions:
            raise LockUsageError(f"transaction {tid} has begun already; use a new number")
        superior = None if parent is None else self._live(parent)
        transaction = Transaction(tid, superior)
        self._transactions[tid] = transaction
        if superior is not None:
            superior.children[tid] = transaction

    def commit(self, tid: int) -> Effects:
        """End `tid`: its parent inherits and retains its locks (rule 2), or all go (rule 3).

        O(locks of `tid`), and a search of the wait-for graph if somebody waits for one of them.
        """
        transaction = self._ending(tid)
        parent = transaction.parent
        contested = self._hand_on(transaction, heir=parent)
        if not contested:
            return NOTHING
        if parent is None:
            return self._sweep(contested)
        denials, touched = break_cycles(parent, inherited=True)
        return (*denials, *self._sweep(contested + touched))

    def abort(self, tid: int, heir: int | None = None) -> Effects:
        """End `tid` and release all it holds or retains; superiors keep theirs (rule 4).

        Its children must have ended before, and its request been cancelled. With `heir`, a
        superior, that one retains the locks instead: for a store beneath that cannot give up the
        locks of a part of a hierarchy. O(locks of `tid`), and a search as in `commit` then.
        """
        transaction = self._ending(tid)
        superior = None if heir is None else self._live(heir)
        if superior is not None and not (
            superior is not transaction and transaction.is_in_sphere_of(superior)
        ):
            raise LockUsageError(f"transaction {heir} is no superior of {tid} and inherits nothing")
        contested = self._hand_on(transaction, heir=superior)
        if not contested:
            return NOTHING
        if superior is None:
            return self._sweep(contested)
        denials, touched = break_cycles(superior, inherited=True)
        return (*denials, *self._sweep(contested + touched))

    # -- locks -------------------------------------------------------------------------------

    def request(self, tid: int, resource: Resource, mode: Mode) -> Reply:
        """Ask for `resource` in `mode`, or in the supremum of `mode` and the mode held.

        O(1) when nothing conflicts. A request that must wait takes its place in the queue; a
        cycle closed by that is broken at once, by moving a soft waiter ahead (maybe this one, to
        where it need not wait), else by denying this request.
        """
        transaction = self._acting(tid)
        entry = self._entries.get(resource)
        if entry is None:
            entry = self._entries[resource] = Entry(resource)
        held = entry.holders.get(transaction)
        if held is not None:
            mode = SUPREMUM[held][mode]
            if mode is held:
                return GRANTED
        if entry.admits(transaction, mode) and not (
            entry.queue and entry.conflicts_with_waiters(mode)
        ):
            entry.hold(transaction, mode)
            return GRANTED
        request = Request(transaction, entry, mode, upgrade=held is not None)
        return self._wait(request)

    def cancel(self, tid: int) -> Effects:
        """Withdraw the waiting request of `tid`, if it has one."""
        request = self._live(tid).waiting
        if request is None:
            return NOTHING
        request.entry.withdraw(request)
        return self._sweep([request.entry])

    def downgrade(self, tid: int, resource: Resource, mode: Mode | None) -> Effects:
        """Hold `resource` in the weaker `mode` (None: not at all), retain what was held (rule 5).

        No wait-for edge is added: whom `tid` blocked from outside its sphere it still blocks, and
        inferiors are blocked less.
        """
        transaction = self._acting(tid)
        entry = self._entries.get(resource)
        held = None if entry is None else entry.holders.get(transaction)
        if entry is None or held is None:
            raise LockUsageError(f"transaction {tid} does not hold {resource_text(resource)}")
        if mode is not None and (mode is held or SUPREMUM[held][mode] is not held):
            raise LockUsageError(
                f"transaction {tid} holds {held.name} on {resource_text(resource)}; "
                f"{mode.name} is not weaker"
            )
        entry.retain(transaction, held)
        if mode is None:
            entry.drop_held(transaction)
            del transaction.held[entry]
        else:
            entry.hold(transaction, mode)
        return self._sweep([entry]) if entry.queue else NOTHING

    def offer(self, tid: int) -> Effects:
        """Downgrade everything that `tid` holds to none, for its children. O(locks held)."""
        transaction = self._acting(tid)
        contested: list[Entry] = []
        for entry, mode in transaction.held.items():
            entry.drop_held(transaction)
            entry.retain(transaction, mode)
            if entry.queue:
                contested.append(entry)
        transaction.held.clear()
        return self._sweep(contested) if contested else NOTHING

    # -- questions ---------------------------------------------------------------------------

    def __contains__(self, tid: int) -> bool:
        return tid in self._transactions

    def held(self, tid: int) -> dict[Resource, Mode]:
        """Return what `tid` holds, in the order of the grants. O(locks held)."""
        return {entry.resource: mode for entry, mode in self._live(tid).held.items()}

    def retained(self, tid: int) -> dict[Resource, Mode]:
        """Return what `tid` retains. O(locks retained)."""
        return {entry.resource: mode for entry, mode in self._live(tid).retained.items()}

    def holds(self, tid: int, resource: Resource, mode: Mode) -> bool:
        """Tell whether `tid` holds `resource` in a mode that covers `mode`. O(1)."""
        transaction = self._live(tid)
        entry = self._entries.get(resource)
        held = None if entry is None else entry.holders.get(transaction)
        return held is not None and SUPREMUM[held][mode] is held

    def dump(self) -> str:
        """Return the whole state as text that depends on nothing but the state."""
        return dump(self._transactions.values(), self._entries.values())

    # -- the moves behind the calls ----------------------------------------------------------

    def _wait(self, request: Request) -> Reply:
        """Queue a request, break the cycles that its wait closes, grant what is free to go."""
        transaction, entry = request.transaction, request.entry
        entry.enqueue(request)
        denials, touched = break_cycles(transaction)
        steps = (*denials, *self._sweep([entry, *touched]))
        own = next((step for step in steps if step.tid == transaction.tid), None)
        if own is None:
            return Blocked(lock_edges(request), steps)
        others = tuple(step for step in steps if step is not own)
        return Denied(own.report, others) if isinstance(own, Denial) else Granted(others)

    def _hand_on(self, transaction: Transaction, heir: Transaction | None) -> list[Entry]:
        """Forget `transaction`; let `heir` retain its locks, or nobody have them.

        Returns the entries for which somebody waits.
        """
        contested: list[Entry] = []
        for locks, drop in (
            (transaction.held, Entry.drop_held),
            (transaction.retained, Entry.drop_retained),
        ):
            for entry, mode in locks.items():
                drop(entry, transaction)
                if heir is not None:
                    entry.retain(heir, mode)
                if entry.queue:
                    contested.append(entry)
                elif entry.is_idle():
                    del self._entries[entry.resource]
        if transaction.parent is not None:
            del transaction.parent.children[transaction.tid]
        del self._transactions[transaction.tid]
        return contested

    def _sweep(self, entries: Iterable[Entry]) -> Effects:
        """Grant what rule 1 and the queues of `entries` allow. No search: see README."""
        return tuple(
            Grant(request.transaction.tid, entry.resource, request.mode)
            for entry in entries
            for request in entry.sweep()
        )

    # -- who may call ------------------------------------------------------------------------

    def _live(self, tid: int) -> Transaction:
        try:
            return self._transactions[tid]
        except KeyError:
            raise LockUsageError(f"transaction {tid} has not begun, or has ended") from None

    def _acting(self, tid: int) -> Transaction:
        transaction = self._live(tid)
        if transaction.waiting is not None:
            raise LockUsageError(
                f"transaction {tid} waits for {resource_text(transaction.waiting.entry.resource)}; "
                "it can do nothing before that is granted, denied or cancelled"
            )
        return transaction

    def _ending(self, tid: int) -> Transaction:
        transaction = self._acting(tid)
        if transaction.children:
            raise LockUsageError(
                f"transaction {tid} has live children, which must end first: "
                f"{sorted(transaction.children)}"
            )
        return transaction
