"""Lock escalation: many locks inside a resource become one lock on the resource.

Escalation only saves memory and is never a reason to wait: it is done only if rule 1 grants the
coarser lock at once and no request waits for the resource or for a lock that is given up, so it
adds no edge to the wait-for graph. It relies on every transaction having an intention lock on the
resources that enclose those it locks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr._modes import COMPATIBLE, COVERING, SUPREMUM, Mode
from lockmgr._predicates import Predicate
from lockmgr._structures import Inside

if TYPE_CHECKING:
    from lockmgr._precision import PredicateLocks
    from lockmgr._replies import Resource
    from lockmgr._structures import Entry, Lock, LockOwner

__all__ = ["Escalation"]


class Escalation:
    """Lock counts per transaction and enclosing resource, with escalation above a limit.

    Parameters
    ----------
    limit : int
        Maximum number of locks that a transaction may own directly inside one resource.
    entries : dict
        Entries of the lock table.
    predicates : PredicateLocks
        Predicates among them.
    """

    __slots__ = ("_entries", "_limit", "_predicates")

    def __init__(self, limit: int, entries: dict[Resource, Entry], predicates: PredicateLocks):
        self._limit = limit
        self._entries = entries
        self._predicates = predicates

    def count(self, transaction: LockOwner, enclosing: Resource, locks: int) -> bool:
        """Add to the number of locks inside `enclosing`; escalate if the limit is exceeded.

        Return whether it escalated. An attempt scans all locks that the transaction owns; after a
        failure, the next attempt is made when the number of locks inside has doubled.
        """
        if transaction.inside is None:
            transaction.inside = {}
        inside = transaction.inside.get(enclosing)
        if inside is None:
            inside = transaction.inside[enclosing] = Inside(self._limit)
        inside.count += locks
        if inside.count <= inside.due:
            return False
        escalated = self._escalate(transaction, enclosing, inside)
        if escalated:
            del transaction.inside[enclosing]
        else:
            inside.due = max(self._limit, 2 * inside.count)
        return escalated

    def inherit(self, parent: LockOwner, child: LockOwner) -> int:
        """Add the child's lock counts to those of its parent; return the number of escalations."""
        if child.inside is None:
            return 0
        inherited = [(enclosing, inside.count) for enclosing, inside in child.inside.items()]
        return sum(self.count(parent, enclosing, locks) for enclosing, locks in inherited)

    def _escalate(self, transaction: LockOwner, enclosing: Resource, inside: Inside) -> bool:
        """Replace the locks inside `enclosing` by one that covers them all, if possible."""
        held = _inside(transaction.held, enclosing)
        retained = _inside(transaction.retained, enclosing)
        depth = len(enclosing) + 1
        inside.count = sum(len(e.resource) == depth for e in held.keys() | retained.keys())
        if inside.count <= self._limit or any(e.queue for e in (*held, *retained)):
            return False
        entry = self._entries.get(enclosing)
        if entry is None or entry.queue:
            return False
        hold = _coarse(held, transaction.held.get(entry))
        retain = _coarse(retained, transaction.retained.get(entry))
        if hold is not None and (transaction.children or not entry.admits(transaction, hold)):
            return False  # live children that need the coarser lock could only deadlock with it
        if retain is not None and not _may_retain(entry, transaction, retain):
            return False
        if hold is not None:
            entry.hold(transaction, hold)
        if retain is not None:
            entry.retain(transaction, retain)
        for owned, given_up in ((transaction.held, held), (transaction.retained, retained)):
            for inner, lock in given_up.items():
                del owned[inner]
                inner.drop(lock)
                if inner.is_idle():
                    del self._entries[inner.resource]
                    if isinstance(inner.resource[-1], Predicate):
                        self._predicates.removed(inner)
        return True


def _inside(locks: dict[Entry, Lock], enclosing: Resource) -> dict[Entry, Lock]:
    depth = len(enclosing)
    return {
        entry: lock
        for entry, lock in locks.items()
        if len(entry.resource) > depth and entry.resource[:depth] == enclosing
    }


def _coarse(given_up: dict[Entry, Lock], own: Lock | None) -> Mode | None:
    """Return the mode that covers all locks given up and the lock owned already."""
    mode: Mode | None = None
    for lock in given_up.values():
        covers = COVERING[lock.mode]
        mode = covers if mode is None else SUPREMUM[mode][covers]
    if mode is None or own is None:
        return mode
    return SUPREMUM[mode][own.mode]


def _may_retain(entry: Entry, transaction: LockOwner, mode: Mode) -> bool:
    """Return whether no transaction outside the sphere has a conflicting lock: invariant I6."""
    line = transaction.line()
    for lock in entry.owners():
        owner = lock.owner
        if COMPATIBLE[mode][lock.mode] or (owner in line and not lock.is_held):
            continue
        if owner is not transaction and transaction not in owner.line():
            return False
    return True
