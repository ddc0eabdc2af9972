"""Predicate locks: which writers meet them, and which predicates a writer must lock.

A predicate is a resource like a row. Readers lock it in S; a writer of rows that it covers locks it
in IX, as if it wrote something inside. So all rules of the lock table apply to it as they are. Two
things are needed besides: a writer asks which locked predicates cover its rows, and a predicate
that is locked for the first time gets the IX locks of the writers that came before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr._modes import WRITES, Mode
from lockmgr._predicates import Predicate, PredicateIndex
from lockmgr._structures import DeclaredRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lockmgr._predicates import Columns
    from lockmgr._replies import Resource
    from lockmgr._structures import Entry, LockOwner

__all__ = ["PredicateLocks"]


class PredicateLocks:
    """Locked predicates of all tables, and the rows that transactions have declared.

    Parameters
    ----------
    entries : dict
        Entries of the lock table.
    """

    __slots__ = ("_by_table", "_entries")

    def __init__(self, entries: dict[Resource, Entry]):
        self._entries = entries
        self._by_table: dict[Resource, PredicateIndex] = {}

    def added(self, entry: Entry) -> None:
        """Lock a predicate that is new in the table for the writers of rows that it covers.

        A writer that has not declared its rows may have written any row. O(transactions that have
        locked the table + rows declared).
        """
        predicate, table = entry.resource[-1], entry.resource[:-1]
        assert isinstance(predicate, Predicate)
        self._by_table.setdefault(table, PredicateIndex()).add(predicate)
        enclosing = self._entries.get(table)
        for lock in () if enclosing is None else enclosing.owners():
            if not WRITES[lock.mode]:
                continue
            owner = lock.owner
            declared = None if owner.declared is None else owner.declared.get(table)
            if declared is not None:
                rows = declared.held if lock.is_held else declared.retained
                if not any(predicate.covers(row) for row in rows):
                    continue
            if lock.is_held:
                entry.hold(owner, Mode.IX)
            else:
                entry.retain(owner, Mode.IX)

    def removed(self, entry: Entry) -> None:
        """Forget a predicate that no transaction locks any more."""
        predicate, table = entry.resource[-1], entry.resource[:-1]
        assert isinstance(predicate, Predicate)
        predicates = self._by_table[table]
        predicates.remove(predicate)
        if not predicates:
            del self._by_table[table]

    def declare(
        self, owner: LockOwner, table: Resource, rows: Sequence[Columns] | None, *, first: bool
    ) -> Predicate | None:
        """Declare rows that `owner` will write.

        Returns
        -------
        Predicate or None
            A predicate that it must lock first; None if the rows are declared now.
        """
        predicates = self._by_table.get(table)
        if predicates is not None and not self._holds_all(owner, table):
            for predicate in predicates.covering(rows):
                if not owner.holds(self._entries[*table, predicate], Mode.IX):
                    return predicate
        if owner.declared is None:
            owner.declared = {}
        declared = owner.declared.get(table)
        if rows is None:
            owner.declared[table] = None
        elif declared is not None:
            declared.held += rows
        elif table not in owner.declared:
            is_whole = first and not self._has_retained(owner, table)
            owner.declared[table] = known = DeclaredRows() if is_whole else None
            if known is not None:
                known.held += rows
        return None

    def bequeath(self, owner: LockOwner, heir: LockOwner) -> None:
        """Pass the declared rows of an ending transaction to its heir.

        REQUIRES: `owner` still has its locks.
        """
        if heir.declared is None:
            heir.declared = {}
        for table in heir.declared:
            if table not in (owner.declared or {}) and self._has_written(owner, table):
                heir.declared[table] = None
        for table, declared in (owner.declared or {}).items():
            if table not in heir.declared:
                heir.declared[table] = None if self._has_written(heir, table) else DeclaredRows()
            known = heir.declared[table]
            if declared is None or known is None:
                heir.declared[table] = None
            else:
                known.inherit(declared)

    def _holds_all(self, owner: LockOwner, table: Resource) -> bool:
        """Return whether a transaction holds a table in a mode that makes other locks needless."""
        return owner.holds(self._entries.get(table), Mode.X)

    def _has_retained(self, owner: LockOwner, table: Resource) -> bool:
        entry = self._entries.get(table)
        lock = None if entry is None else owner.retained.get(entry)
        return lock is not None and WRITES[lock.mode]

    def _has_written(self, owner: LockOwner, table: Resource) -> bool:
        """Return whether a transaction may have written in a table."""
        entry = self._entries.get(table)
        lock = None if entry is None else owner.held.get(entry)
        return self._has_retained(owner, table) or (lock is not None and WRITES[lock.mode])
