"""The write set of a top-level commit: which rows, in which order, by which statements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from sqlalchemy import Connection, MetaData, Update, and_, bindparam, delete, insert, tuple_, update

from activedb.errors import ConstraintViolation, SerializationConflict
from activedb.store._faults import translated
from activedb.store._tables import Key, Row, TableSpec

__all__ = ["Change", "Log", "write", "write_step_by_step"]

Log: TypeAlias = Sequence[tuple[TableSpec, Key, Row | None]]
"""Versions in the order in which they were written; None is a tombstone."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row of a write set: `old` is the committed row (None: absent), `new` what to make it."""

    spec: TableSpec
    key: Key
    old: Row | None
    new: Row | None


def write(connection: Connection, changes: Iterable[Change], metadata: MetaData) -> None:
    """Write `changes`: deletes, children of foreign keys first, then the rest, parents first.

    Keys are sorted, so that two processes flushing the same rows take their locks in one order.

    Raises
    ------
    ConstraintViolation, InvalidRow
        When the server refuses a row; the connection's transaction is unusable then.
    SerializationConflict
        When another process inserted one of the keys meanwhile.
    """
    tables: dict[str, list[Change]] = {}
    for change in changes:
        if change.old is not None or change.new is not None:
            tables.setdefault(change.spec.name, []).append(change)
    order = [t.fullname for t in metadata.sorted_tables if t.fullname in tables]
    order += sorted(tables.keys() - set(order))
    for group in tables.values():
        group.sort(key=_sort_key)
    for name in reversed(order):
        _delete(connection, tables[name])
    for name in order:
        _update(connection, tables[name])
        _insert(connection, tables[name])


def write_step_by_step(
    connection: Connection, changes: Iterable[Change], log: Log, metadata: MetaData
) -> None:
    """Write `changes` as `log` came to them, one row at a time.

    Slower than `write`, but right wherever the steps were: a unique value handed from row to
    row, rows that refer to rows of the same table.
    """
    now = {(change.spec, change.key): change.old for change in changes}
    for spec, key, new in log:
        write(connection, [Change(spec, key, now[spec, key], new)], metadata)
        now[spec, key] = new


def _sort_key(change: Change) -> tuple[str, ...]:
    # Keys of one table have one type per column; text is a total order for all of them.
    return tuple(f"{value!r:>24}" for value in change.key)


def _delete(connection: Connection, changes: list[Change]) -> None:
    keys = [c.key for c in changes if c.old is not None and c.new is None]
    if keys:
        spec = changes[0].spec
        columns = tuple_(*(spec.table.c[name] for name in spec.key_columns))
        statement = delete(spec.table).where(columns.in_(bindparam("keys", expanding=True)))
        with translated(f"delete rows of {spec.name}"):
            for start in range(0, len(keys), _KEYS_MAX):
                connection.execute(statement, {"keys": keys[start : start + _KEYS_MAX]})


_KEYS_MAX = 1_000  # keys in one DELETE; keeps the statement below every bound on parameters


def _update(connection: Connection, changes: list[Change]) -> None:
    by_columns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for change in changes:
        old, new = change.old, change.new
        if old is None or new is None:
            continue
        columns = tuple(name for name in new if _differ(new[name], old[name]))
        if columns:
            values = {f"new_{name}": new[name] for name in columns}
            keys = dict(zip(change.spec.key_columns, change.key, strict=True))
            values |= {f"key_{name}": value for name, value in keys.items()}
            by_columns.setdefault(columns, []).append(values)
    for columns, rows in by_columns.items():
        spec = changes[0].spec
        with translated(f"update {spec.name}"):
            connection.execute(_update_by_key(spec, columns), rows)


def _differ(a: Any, b: Any) -> bool:
    """Whether two values are different to a database; True and 1, alike to Python, are."""
    return a is not b and (a != b or repr(a) != repr(b))


@lru_cache(maxsize=1_024)
def _update_by_key(spec: TableSpec, columns: tuple[str, ...]) -> Update:
    c = spec.table.c
    same_key = and_(*(c[name] == bindparam(f"key_{name}") for name in spec.key_columns))
    return update(spec.table).where(same_key).values({n: bindparam(f"new_{n}") for n in columns})


def _insert(connection: Connection, changes: list[Change]) -> None:
    rows = [dict(c.new) for c in changes if c.old is None and c.new is not None]
    if not rows:
        return
    spec = changes[0].spec
    try:
        with translated(f"insert into {spec.name}"):
            connection.execute(insert(spec.table), rows)
    except ConstraintViolation as error:
        if error.constraint and error.constraint == spec.key_constraint:
            # The key was absent when this hierarchy locked it: another process came first.
            raise SerializationConflict(
                f"table {spec.name}: another process inserted the key first "
                f"({error.detail}); retry the transaction"
            ) from error
        raise
