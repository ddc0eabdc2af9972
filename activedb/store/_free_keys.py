"""Guards of absent keys that can be had at once."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ARRAY, BigInteger, Connection, bindparam, text

from activedb.store._guards import guard_number
from activedb.store._tables import Key

__all__ = ["free_to_insert"]

_TRY_TABLE = text("SELECT pg_try_advisory_xact_lock_shared(:table)")
_TRY = text(
    "SELECT number, pg_try_advisory_xact_lock(number) FROM unnest(:keys) AS number"
).bindparams(bindparam("keys", type_=ARRAY(BigInteger)))


def free_to_insert(connection: Connection, table: str, keys: Sequence[Key]) -> list[Key]:
    """Guard those of `keys` that no other process guards, exclusively; returns them.

    Parameters
    ----------
    table : str
        With its schema.
    """
    if not keys or not connection.scalar(_TRY_TABLE, {"table": guard_number(table)}):
        return []
    numbers = {key: guard_number(table, key) for key in keys}
    tried = connection.execute(_TRY, {"keys": sorted(set(numbers.values()))})
    free = {number for number, is_free in tried if is_free}
    return [key for key, number in numbers.items() if number in free]
