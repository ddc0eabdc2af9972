"""Locks on keys that may have no rows: advisory locks, which all activedb processes take.

Who relies on the absence of a key has its guard shared, who inserts it has it exclusive, and both
have the table's guard shared. Who has many keys takes the table's guard exclusive instead, because
the server has room for some thousands of locks in all.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
from decimal import Decimal
from typing import Any

from sqlalchemy import ARRAY, BigInteger, bindparam, text

from activedb.store._tables import Key

__all__ = ["GUARD_ABSENT", "GUARD_TABLE", "GUARD_TO_INSERT", "guard_number"]

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


def guard_number(table: str, key: Key | None = None) -> int:
    """Number of a key's guard, or of the table's; the same in every process.

    Keys that are equal to the database have one number; two others, by chance, seldom.
    """
    named = f"activedb rows of {table}"
    if key is not None:
        named += "\0" + "\0".join(_canonical(value) for value in key)  # no text has a NUL
    digest = hashlib.blake2b(named.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _canonical(value: Any) -> str:
    """Text of a key's value; the same for all that a database takes for equal."""
    if isinstance(value, Decimal | float):
        # Not Decimal.normalize, which rounds as each thread's context says.
        text = format(Decimal(str(value)), "f")
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text == "-0" else text
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).isoformat()
    if isinstance(value, enum.Enum):
        return value.name  # what the database keeps of it
    if isinstance(value, memoryview):
        return str(bytes(value))
    return str(value)
