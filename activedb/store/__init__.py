"""Committed rows: Postgres and its memory twin, behind one session per hierarchy."""

from activedb.store._connect import new_metadata, open_store
from activedb.store._journal import Journal
from activedb.store._overlay import tables_of
from activedb.store._session import Durable, Session
from activedb.store._statements import StatementPlan, plan_write
from activedb.store._store import Store
from activedb.store._stream_journal import LedgerEntry, StreamJournal
from activedb.store._tables import Key, Row, Tables, TableSpec, is_storable
from activedb.store._write_set import Change, Log

__all__ = [
    "Change",
    "Durable",
    "Journal",
    "Key",
    "LedgerEntry",
    "Log",
    "Row",
    "Session",
    "StatementPlan",
    "Store",
    "StreamJournal",
    "TableSpec",
    "Tables",
    "is_storable",
    "new_metadata",
    "open_store",
    "plan_write",
    "tables_of",
]
