"""Locks on keys that may have no rows: advisory locks, which all activedb processes take.

A transaction that relies on the absence of a key holds the key's guard shared, one that inserts it
holds the guard exclusively, and both hold the table's guard shared. For many keys a transaction
takes the table's guard exclusively instead, because the server has room for only some thousands of
locks.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sqlalchemy import ARRAY, BigInteger, Connection, Select, Text, bindparam, func, select, text
from sqlalchemy import cast as sql_cast

from activedb.store.sql._tables import Key

__all__ = [
    "GUARD_ABSENT",
    "GUARD_ABSENT_ONE",
    "GUARD_TABLE",
    "GUARD_TO_INSERT",
    "GUARD_TO_INSERT_ONE",
    "GUARD_TO_INSERT_ONE_ALONE",
    "free_to_insert",
    "guard_number",
    "table_guard_number",
]

_KEYS = bindparam("keys", type_=ARRAY(BigInteger))
_OF_KEYS = "(SELECT count({}(number)) FROM unnest(:keys) AS number)"

GUARD_TABLE = text("SELECT pg_advisory_xact_lock(:table)")
GUARD_TO_INSERT = text(
    f"SELECT pg_advisory_xact_lock_shared(:table), {_OF_KEYS.format('pg_advisory_xact_lock')}"
).bindparams(_KEYS)
GUARD_ABSENT = text(
    f"SELECT pg_advisory_xact_lock_shared(:table), "
    f"{_OF_KEYS.format('pg_advisory_xact_lock_shared')}"
).bindparams(_KEYS)

_TABLE_SHARED = func.pg_advisory_xact_lock_shared(bindparam("table", type_=BigInteger))
_KEY = bindparam("key", type_=BigInteger)

GUARD_TO_INSERT_ONE: Select[Any] = select(
    _TABLE_SHARED,
    func.pg_advisory_xact_lock(_KEY),
    sql_cast(func.pg_current_xact_id(), Text),
)
"""The last column is the transaction's number, which an inserting transaction needs anyway."""

GUARD_TO_INSERT_ONE_ALONE: Select[Any] = select(_TABLE_SHARED, func.pg_advisory_xact_lock(_KEY))
"""Statement without the number, for a role that may not query it."""

GUARD_ABSENT_ONE: Select[Any] = select(_TABLE_SHARED, func.pg_advisory_xact_lock_shared(_KEY))

_TRY_TABLE = text("SELECT pg_try_advisory_xact_lock_shared(:table)")
_TRY = text(
    "SELECT number, pg_try_advisory_xact_lock(number) FROM unnest(:keys) AS number"
).bindparams(_KEYS)


def guard_number(table: str, key: Key | None = None) -> int:
    """Return the number of a key's guard, or of the table's; the same in every process.

    Keys that are equal to the database have the same number; different keys rarely collide.
    """
    named = f"activedb rows of {table}"
    if key is not None:
        named += "\0" + "\0".join(_canonical(value) for value in key)  # no text has a NUL
    digest = hashlib.blake2b(named.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


@lru_cache(maxsize=1_024)
def table_guard_number(table: str) -> int:
    """Return `guard_number` of a table, cached."""
    return guard_number(table)


def free_to_insert(connection: Connection, table: str, keys: Sequence[Key]) -> list[Key]:
    """Guard exclusively, without waiting, the `keys` that are not guarded by others; return them.

    Parameters
    ----------
    table : str
        Name with its schema.
    """
    if not keys or not connection.scalar(_TRY_TABLE, {"table": guard_number(table)}):
        return []
    numbers = {key: guard_number(table, key) for key in keys}
    tried = connection.execute(_TRY, {"keys": sorted(set(numbers.values()))})
    free = {number for number, is_free in tried if is_free}
    return [key for key, number in numbers.items() if number in free]


def _canonical(value: Any) -> str:
    """Return the text of a key's value; the same for values that a database considers equal."""
    if isinstance(value, Decimal | float):
        # Not Decimal.normalize, which rounds as each thread's context says.
        text = format(Decimal(str(value)), "f")
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).isoformat()
    if isinstance(value, enum.Enum):
        return value.name  # as stored by the database
    if isinstance(value, memoryview):
        return str(bytes(value))
    return str(value)
