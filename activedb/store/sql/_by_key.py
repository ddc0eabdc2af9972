"""Row reads by key: of one locked row, the most common request, or of many rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Text, and_, bindparam, cast, func, select

from activedb.store.server import Step, converting, fetch
from activedb.store.sql._key_locks import (
    GUARD_ABSENT_ONE,
    GUARD_TO_INSERT_ONE,
    GUARD_TO_INSERT_ONE_ALONE,
)
from activedb.store.sql._tables import Key, Row, TableSpec

__all__ = ["lock_row", "locking_step", "rows_by_key"]

_KEYS_MAX = 10_000  # in one statement; below every bound on parameters


def lock_row(
    connection: Connection,
    spec: TableSpec,
    key: Key,
    *,
    exclusive: bool,
    numbered: bool,
    guard: tuple[int, int] | None = None,
    plain: bool = False,
) -> tuple[Row | None, str | None]:
    """Return the committed row, locked on Postgres; one round trip, two on a caller's connection.

    Parameters
    ----------
    numbered : bool
        Whether to return the transaction's number; not with `plain`, and only on Postgres.
    guard : (int, int), optional
        Numbers of the guards of the table and of the key, which are taken before the row is read.
    plain : bool
        Whether to leave the row unlocked; only without `exclusive`.

    Returns
    -------
    row : Row or None
        None if there is no such row.
    number : str or None
        The server's number of the transaction, which a lock on a row assigns anyway; None if it
        was not requested, if there is neither row nor guard, or without a server.
    """
    is_postgres = connection.dialect.name == "postgresql"
    exclusive, numbered = exclusive and is_postgres, numbered and is_postgres
    values = _values(key)
    steps: list[Step] = [(_statement(spec, exclusive, numbered, plain), values)]
    if guard is not None:
        one = GUARD_ABSENT_ONE
        if exclusive:
            one = GUARD_TO_INSERT_ONE if numbered else GUARD_TO_INSERT_ONE_ALONE
        steps.insert(0, (one, {"table": guard[0], "key": guard[1]}))
    answers = fetch(connection, steps)
    found = answers[-1]
    if not found:
        return None, answers[0][0][-1] if guard is not None and numbered and exclusive else None
    if numbered:
        return spec.row(found[0][:-1]), found[0][-1]
    return spec.row(found[0]), None


def locking_step(spec: TableSpec, key: Key) -> Step:
    """Return a step of a message that locks a row for writing, on Postgres."""
    return _locking(spec), _values(key)


def rows_by_key(
    connection: Connection, spec: TableSpec, statement: Select[Any], keys: Sequence[Key]
) -> dict[Key, Row]:
    """Return the rows that a SELECT by key finds; one round trip per some thousands of keys."""
    # A composite key makes a tree of conditions, whose depth the server limits.
    is_single = len(spec.key_columns) == 1
    at_once = _KEYS_MAX if is_single else _KEYS_MAX // 5
    found: dict[Key, Row] = {}
    for start in range(0, len(keys), at_once):
        part = keys[start : start + at_once]
        wanted = [key[0] for key in part] if is_single else list(part)
        with converting():
            rows = connection.execute(statement, {"keys": wanted}).all()
        for row in map(spec.row, rows):
            found[spec.key_of(row)] = row
    return found


def _values(key: Key) -> dict[str, Any]:
    if len(key) == 1:
        return {"key_0": key[0]}  # most keys
    return {f"key_{n}": value for n, value in enumerate(key)}


def _same_key(spec: TableSpec) -> ColumnElement[bool]:
    c = spec.table.c
    return and_(*(c[name] == bindparam(f"key_{n}") for n, name in enumerate(spec.key_columns)))


@lru_cache(maxsize=1_024)
def _locking(spec: TableSpec) -> Select[Any]:
    keys = [spec.table.c[name] for name in spec.key_columns]
    return select(*keys).where(_same_key(spec)).with_for_update(key_share=True)


@lru_cache(maxsize=1_024)
def _statement(spec: TableSpec, exclusive: bool, numbered: bool, plain: bool) -> Select[Any]:
    number = [cast(func.pg_current_xact_id(), Text)] if numbered else []
    found = select(*spec.table.columns, *number).where(_same_key(spec))
    if plain:
        return found
    return found.with_for_update(key_share=True) if exclusive else found.with_for_update(read=True)
