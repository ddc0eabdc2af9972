"""Reader of a replication slot's messages, which turns changes into event occurrences."""

from __future__ import annotations

from collections.abc import Callable

from activedb.changes._replication_marks import heard_by
from activedb.events import Occurrence
from activedb.store.replication import (
    Begin,
    ChangedRows,
    Delete,
    FollowedTable,
    Insert,
    Message,
    Note,
    Relation,
    Slot,
    Truncate,
    Update,
)

__all__ = ["ChangeReader"]


class ChangeReader:
    """State of a slot's message stream, which makes occurrences of the changes in it.

    Parameters
    ----------
    slot : Slot
        The slot, open.
    is_heard : callable ``(key)``
        Returns whether any rule listens to an event; otherwise no occurrence is made.

    Attributes
    ----------
    heard : frozenset of str
        Rules that have been triggered by the next changes in the process that made them.
    changes, truncated : int
        Numbers of changes of followed tables in this transaction, and of truncated tables.
    """

    def __init__(self, slot: Slot, is_heard: Callable[[tuple[str, str]], object]):
        self.heard: frozenset[str] = frozenset()
        self.changes = 0
        self.truncated = 0
        self._slot = slot
        self._is_heard = is_heard
        self._tables: dict[int, FollowedTable] = {table.oid: table for table in slot.tables}
        self._relations: dict[int, Relation] = {}
        self._rows: dict[int, ChangedRows] = {}
        self._begin: Begin

    def begin(self, begin: Begin) -> None:
        """Start the next transaction."""
        self._begin = begin
        self.heard = frozenset()
        self.changes = self.truncated = 0

    def read(self, message: Message) -> Occurrence | None:
        """Return the occurrence of a message; None if it is no change, or no rule listens to it."""
        if isinstance(message, Insert | Update | Delete):
            table = self._tables.get(message.relation)
            return None if table is None else self._occurrence(table, message)
        if isinstance(message, Relation):
            self._relations[message.oid] = message
            self._rows.pop(message.oid, None)
        elif isinstance(message, Note):
            if message.prefix == self._slot.mark_prefix:
                self.heard = heard_by(message.content, self._slot.schema)
        elif isinstance(message, Truncate):
            self.truncated += sum(oid in self._tables for oid in message.relations)
        return None

    def _occurrence(
        self, table: FollowedTable, change: Insert | Update | Delete
    ) -> Occurrence | None:
        self.changes += 1
        name = table.spec.name
        if not self._is_heard((type(change).__name__.lower(), name)):
            return None
        rows = self._rows.get(table.oid)
        if rows is None:
            relation = self._relations[table.oid]
            rows = self._rows[table.oid] = ChangedRows(table.spec, relation, self._slot.connection)
        old, new = None, None
        if isinstance(change, Insert):
            new = rows.whole(change.new)
        elif isinstance(change, Update):
            old, new = rows.of_update(change)
        else:
            old = rows.whole(change.old) if change.is_whole else rows.key_alone(change.old)
        begin = self._begin
        # Ids sort in the order of the changes.
        id_ = f"{begin.lsn >> 32:08X}/{begin.lsn & 0xFFFFFFFF:08X}.{self.changes:08d}"
        return Occurrence(name, begin.committed_at, id=id_, old=old, new=new)
