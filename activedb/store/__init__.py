"""Committed rows: Postgres and its memory twin, behind one session per hierarchy.

Six rooms, from the bottom: `server`, `sql`, `flush`, `replication`, `session`, `journals`. See
README.md.
"""

from sqlalchemy import Connection

from activedb.store.flush import Change, Log
from activedb.store.server import PatientLatch, limited
from activedb.store.session import (
    TRIGGER_POINTS,
    Backend,
    BorrowedSession,
    Durable,
    Hints,
    PlainUse,
    Session,
    Store,
    borrow,
    connection_of,
    listen_to,
    new_metadata,
    open_store,
    wait_for_server,
)
from activedb.store.sql import (
    Key,
    LockingRead,
    Parameters,
    Row,
    StatementPlan,
    Tables,
    TableSpec,
    Unlocked,
    is_storable,
    listen_to_flushes,
    named_rows,
    numbering,
    plan_locks,
    plan_write,
    rows_by_default,
    tables_of,
)

__all__ = [
    "TRIGGER_POINTS",
    "Backend",
    "BorrowedSession",
    "Change",
    "Connection",
    "Durable",
    "Hints",
    "Key",
    "LockingRead",
    "Log",
    "Parameters",
    "PatientLatch",
    "PlainUse",
    "Row",
    "Session",
    "StatementPlan",
    "Store",
    "TableSpec",
    "Tables",
    "Unlocked",
    "borrow",
    "connection_of",
    "is_storable",
    "limited",
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
    "wait_for_server",
]
