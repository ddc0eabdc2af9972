"""Rows changed by others, from a logical replication slot."""

from activedb.store.replication._changed_rows import ChangedRows
from activedb.store.replication._pgoutput import (
    Begin,
    Commit,
    Delete,
    Insert,
    Message,
    Note,
    Relation,
    Truncate,
    Update,
)
from activedb.store.replication._slot import Peeked, Slot
from activedb.store.replication._slot_tables import (
    FOLLOWED,
    FollowedTable,
    raise_here,
    said_raised,
    say_raised,
)

__all__ = [
    "FOLLOWED",
    "Begin",
    "ChangedRows",
    "Commit",
    "Delete",
    "FollowedTable",
    "Insert",
    "Message",
    "Note",
    "Peeked",
    "Relation",
    "Slot",
    "Truncate",
    "Update",
    "raise_here",
    "said_raised",
    "say_raised",
]
