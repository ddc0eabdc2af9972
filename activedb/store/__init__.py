"""Committed rows: Postgres and its in-memory twin, behind one session per hierarchy.

Six subpackages, from the bottom up: `server`, `sql`, `flush`, `replication`, `session`,
`journals`. See README.md.
"""

from sqlalchemy import Connection

from activedb.store.flush import Change, Log
from activedb.store.server import PatientLatch, limited
from activedb.store.session import (
    TRIGGER_POINTS,
    Backend,
    Durable,
    ExternalSession,
    Session,
    Store,
    UserConnection,
    Wakeups,
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
    "Change",
    "Connection",
    "Durable",
    "ExternalSession",
    "Key",
    "LockingRead",
    "Log",
    "Parameters",
    "PatientLatch",
    "Row",
    "Session",
    "StatementPlan",
    "Store",
    "TableSpec",
    "Tables",
    "Unlocked",
    "UserConnection",
    "Wakeups",
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
