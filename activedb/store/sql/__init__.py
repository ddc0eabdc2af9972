"""Statements: the tables, keys and rows they refer to, and the versions they see."""

from activedb.store.sql._checked_sql import (
    Piece,
    delete_of,
    insert_of,
    insert_of_rows,
    select_of,
    update_of,
)
from activedb.store.sql._key_locks import (
    GUARD_ABSENT,
    GUARD_ABSENT_ONE,
    GUARD_TABLE,
    GUARD_TO_INSERT,
    GUARD_TO_INSERT_ONE,
    GUARD_TO_INSERT_ONE_ALONE,
    free_to_insert,
    guard_number,
    table_guard_number,
)
from activedb.store.sql._keyed_values import KeyedValues
from activedb.store.sql._locking_reads import LockingRead, plan_locks
from activedb.store.sql._orm_flushes import listen_to_flushes
from activedb.store.sql._overlay import Sphere, Unlocked, tables_of
from activedb.store.sql._rows import named_rows, rows_of
from activedb.store.sql._shadow import Dirty
from activedb.store.sql._statements import (
    Parameters,
    StatementPlan,
    numbering,
    plan_write,
    rows_by_default,
)
from activedb.store.sql._tables import Key, Row, Tables, TableSpec, is_storable

__all__ = [
    "GUARD_ABSENT",
    "GUARD_ABSENT_ONE",
    "GUARD_TABLE",
    "GUARD_TO_INSERT",
    "GUARD_TO_INSERT_ONE",
    "GUARD_TO_INSERT_ONE_ALONE",
    "Dirty",
    "Key",
    "KeyedValues",
    "LockingRead",
    "Parameters",
    "Piece",
    "Row",
    "Sphere",
    "StatementPlan",
    "TableSpec",
    "Tables",
    "Unlocked",
    "delete_of",
    "free_to_insert",
    "guard_number",
    "insert_of",
    "insert_of_rows",
    "is_storable",
    "listen_to_flushes",
    "named_rows",
    "numbering",
    "plan_locks",
    "plan_write",
    "rows_by_default",
    "rows_of",
    "select_of",
    "table_guard_number",
    "tables_of",
    "update_of",
]
