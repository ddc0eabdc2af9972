"""Rows changed by any program, read from a logical replication slot."""

from activedb.store.replication._pgoutput import (
    Begin,
    ChangeConverter,
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
    session_mark,
    set_local_mark,
    set_session_mark,
)

__all__ = [
    "FOLLOWED",
    "Begin",
    "ChangeConverter",
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
    "session_mark",
    "set_local_mark",
    "set_session_mark",
]
