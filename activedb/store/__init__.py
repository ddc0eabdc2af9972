"""Committed rows: Postgres and its memory twin, behind one session per hierarchy."""

from sqlalchemy import Connection

from activedb.store._borrowed import BorrowedSession, borrow, connection_of, listen_to
from activedb.store._connect import new_metadata, open_store
from activedb.store._flushes import listen_to_flushes
from activedb.store._hints import Hints
from activedb.store._journal import Journal
from activedb.store._locking_reads import LockingRead, plan_locks
from activedb.store._overlay import Unlocked, tables_of
from activedb.store._rows import named_rows
from activedb.store._rule_rows import RuleRows
from activedb.store._server_waits import Backend
from activedb.store._session import Durable, Session
from activedb.store._statements import (
    Parameters,
    StatementPlan,
    numbering,
    plan_write,
    rows_by_default,
)
from activedb.store._store import Store
from activedb.store._stream_journal import LedgerEntry, StreamJournal
from activedb.store._tables import Key, Row, Tables, TableSpec, is_storable
from activedb.store._write_set import Change, Log

__all__ = [
    "Backend",
    "BorrowedSession",
    "Change",
    "Connection",
    "Durable",
    "Hints",
    "Journal",
    "Key",
    "LedgerEntry",
    "LockingRead",
    "Log",
    "Parameters",
    "Row",
    "RuleRows",
    "Session",
    "StatementPlan",
    "Store",
    "StreamJournal",
    "TableSpec",
    "Tables",
    "Unlocked",
    "borrow",
    "connection_of",
    "is_storable",
    "listen_to",
    "listen_to_flushes",
    "named_rows",
    "new_metadata",
    "numbering",
    "open_store",
    "plan_locks",
    "plan_write",
    "rows_by_default",
    "tables_of",
]
