"""Statements: the tables, keys and rows they refer to, and the versions they see."""

from activedb.store.sql._by_key import lock_row, locking_step, rows_by_key
from activedb.store.sql._by_predicate import (
    checking_step,
    is_refused_by_check,
    keys_covered,
    lock_single_row,
    lock_table,
)
from activedb.store.sql._defaults import sqlite_default
from activedb.store.sql._key_locks import (
    GUARD_ABSENT,
    GUARD_TABLE,
    GUARD_TO_INSERT,
    free_to_insert,
    guard_number,
    table_guard_number,
)
from activedb.store.sql._orm import listen_to_flushes, named_rows, rows_of
from activedb.store.sql._overlay import Dirty, LockedRows, Sphere, Unlocked, tables_of
from activedb.store.sql._pinned_keys import LockingRead, PinnedKeys, pinned_keys, plan_locks
from activedb.store.sql._restrictions import KEYS_PINNED_MAX, restricted_keys
from activedb.store.sql._server_types import SERVER_TYPES
from activedb.store.sql._statements import (
    Parameters,
    SqlPiece,
    StatementPlan,
    delete_of,
    insert_of,
    insert_of_rows,
    numbering,
    plan_write,
    rows_by_default,
    select_of,
    update_of,
)
from activedb.store.sql._tables import Key, KeyedValues, Row, Tables, TableSpec, differ, is_storable

__all__ = [
    "GUARD_ABSENT",
    "GUARD_TABLE",
    "GUARD_TO_INSERT",
    "KEYS_PINNED_MAX",
    "SERVER_TYPES",
    "Dirty",
    "Key",
    "KeyedValues",
    "LockedRows",
    "LockingRead",
    "Parameters",
    "PinnedKeys",
    "Row",
    "Sphere",
    "SqlPiece",
    "StatementPlan",
    "TableSpec",
    "Tables",
    "Unlocked",
    "checking_step",
    "delete_of",
    "differ",
    "free_to_insert",
    "guard_number",
    "insert_of",
    "insert_of_rows",
    "is_refused_by_check",
    "is_storable",
    "keys_covered",
    "listen_to_flushes",
    "lock_row",
    "lock_single_row",
    "lock_table",
    "locking_step",
    "named_rows",
    "numbering",
    "pinned_keys",
    "plan_locks",
    "plan_write",
    "restricted_keys",
    "rows_by_default",
    "rows_by_key",
    "rows_of",
    "select_of",
    "sqlite_default",
    "table_guard_number",
    "tables_of",
    "update_of",
]
