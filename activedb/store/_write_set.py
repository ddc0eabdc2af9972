"""The write set of a top-level commit: which rows, in which order, by which statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from sqlalchemy import (
    Connection,
    Insert,
    MetaData,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    insert,
    tuple_,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.ddl import sort_tables

from activedb.errors import ConstraintViolation, SerializationConflict, UniqueViolation
from activedb.store import _bulk
from activedb.store._faults import translated
from activedb.store._tables import Key, Row, TableSpec
from activedb.store._violations import named

__all__ = ["Change", "Log", "naming", "write", "write_step_by_step"]

Log: TypeAlias = Sequence[tuple[TableSpec, Key, Row | None]]
"""Versions in the order in which they were written; None is a tombstone."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row of a write set: `old` is the committed row (None: absent), `new` what to make it."""

    spec: TableSpec
    key: Key
    old: Row | None
    new: Row | None


def _nothing() -> None:
    """Do nothing."""


def write(
    connection: Connection,
    changes: Iterable[Change],
    metadata: MetaData,
    inside: Callable[[], object] = _nothing,
) -> None:
    """Write `changes`: deletes, children of foreign keys first, then the rest, parents first.

    Keys are sorted, so that two processes flushing the same rows take their locks in one order.
    Many rows of one table go in one statement where that is sure to store the same (`_bulk`);
    one row is one round trip.

    Parameters
    ----------
    inside : callable
        Called when the first table has been written, and the others have not.

    Raises
    ------
    ConstraintViolation, InvalidRow
        When the server refuses a row; the connection's transaction is unusable then.
    SerializationConflict
        When another process inserted one of the keys meanwhile.
    """
    groups: dict[Table, list[Change]] = {}
    for change in changes:
        if change.old is not None or change.new is not None:
            groups.setdefault(change.spec.table, []).append(change)
    order = list(groups)
    if len(order) > 1:
        order = [t for t in _parents_first(tuple(metadata.tables.values())) if t in groups]
        order += sorted(groups.keys() - set(order), key=lambda table: str(table.fullname))
    for table in order:
        _sort(groups[table])
    steps = [(_delete, groups[table]) for table in reversed(order)]
    steps += [(_save, groups[table]) for table in order]
    is_first = True
    for step, group in steps:
        if step(connection, group) and is_first:
            is_first = False
            inside()
    if is_first:
        inside()


def write_step_by_step(
    connection: Connection,
    changes: Iterable[Change],
    log: Log,
    metadata: MetaData,
    inside: Callable[[], object] = _nothing,
) -> None:
    """Write `changes` as `log` came to them, one row at a time.

    Slower than `write`, but right wherever the steps were: a unique value handed from row to
    row, rows that refer to rows of the same table.
    """
    now = {(change.spec, change.key): change.old for change in changes}
    for spec, key, new in log:
        write(connection, [Change(spec, key, now[spec, key], new)], metadata, inside)
        now[spec, key] = new
        inside = _nothing


@contextmanager
def naming(connection: Connection, doing: str, changes: Sequence[Change]) -> Iterator[None]:
    """`translated`, with the refused row of `changes` named."""
    try:
        with translated(doing):
            yield
    except ConstraintViolation as error:
        raise named(error, connection, changes) from error.__cause__


@lru_cache(maxsize=16)
def _parents_first(tables: tuple[Table, ...]) -> Sequence[Table]:
    return sort_tables(sorted(tables, key=lambda table: str(table.fullname)))


def _sort(changes: list[Change]) -> None:
    """Sort the changes of one table by key, the same way in every process."""
    if len(changes) > 1:
        try:
            changes.sort(key=lambda change: change.key)
        except TypeError:  # values without an order of their own, such as members of an enum
            changes.sort(key=lambda change: [f"{value!r:>24}" for value in change.key])


# -- one table -----------------------------------------------------------------------------------


def _delete(connection: Connection, changes: list[Change]) -> bool:
    gone = [c for c in changes if c.old is not None and c.new is None]
    if not gone:
        return False
    spec, keys = gone[0].spec, [c.key for c in gone]
    with naming(connection, f"delete rows of {spec.name}", gone):
        if len(keys) >= _bulk.UNNEST_ROWS_MIN and _bulk.delete_rows(connection, spec, keys):
            return True
        columns = tuple_(*(spec.table.c[name] for name in spec.key_columns))
        statement = delete(spec.table).where(columns.in_(bindparam("keys", expanding=True)))
        for start in range(0, len(keys), _KEYS_MAX):
            connection.execute(statement, {"keys": keys[start : start + _KEYS_MAX]})
    return True


_KEYS_MAX = 1_000  # keys in one DELETE; keeps the statement below every bound on parameters


def _save(connection: Connection, changes: list[Change]) -> bool:
    updated = _update(connection, changes)
    return _insert(connection, changes) or updated


def _update(connection: Connection, changes: list[Change]) -> bool:
    by_columns: dict[tuple[str, ...], list[Change]] = {}
    for change in changes:
        old, new = change.old, change.new
        if old is None or new is None:
            continue
        columns = tuple([n for n in change.spec.written if _differ(new[n], old[n])])
        if columns:
            by_columns.setdefault(columns, []).append(change)
    for columns, group in by_columns.items():
        spec = group[0].spec
        with naming(connection, f"update {spec.name}", group):
            rows = [change.new for change in group if change.new is not None]
            if len(rows) >= _bulk.UNNEST_ROWS_MIN and _bulk.update_rows(
                connection, spec, columns, rows
            ):
                continue
            names = [(f"new_{n}", n) for n in columns] + [(f"key_{n}", n) for n in spec.key_columns]
            connection.execute(
                _update_by_key(spec, columns), [{p: row[n] for p, n in names} for row in rows]
            )
    return bool(by_columns)


def _differ(a: Any, b: Any) -> bool:
    """Whether two values are different to a database; True and 1, alike to Python, are."""
    return a is not b and (a != b or repr(a) != repr(b))


@lru_cache(maxsize=1_024)
def _update_by_key(spec: TableSpec, columns: tuple[str, ...]) -> Update:
    c = spec.table.c
    same_key = and_(*(c[name] == bindparam(f"key_{name}") for name in spec.key_columns))
    return update(spec.table).where(same_key).values({n: bindparam(f"new_{n}") for n in columns})


def _insert(connection: Connection, changes: list[Change]) -> bool:
    added = [c for c in changes if c.old is None and c.new is not None]
    if not added:
        return False
    spec, rows = added[0].spec, [c.new for c in added if c.new is not None]
    try:
        with naming(connection, f"insert into {spec.name}", added):
            if len(rows) < _bulk.COPY_ROWS_MIN or not _bulk.copy_rows(connection, spec, rows):
                names = spec.written
                connection.execute(_insertion(spec), [{n: row[n] for n in names} for row in rows])
    except UniqueViolation as error:
        if error.constraint == spec.key_constraint or set(error.key) == set(spec.key_columns):
            # The key was absent when this hierarchy locked it: another process came first.
            raise SerializationConflict(
                f"table {spec.name}: another process inserted the key first "
                f"({error.detail}); retry the transaction"
            ) from error
        raise
    return True


@lru_cache(maxsize=1_024)
def _insertion(spec: TableSpec) -> Insert:
    # Inline: nothing is wanted back.
    return (_WithIdentity if spec.overrides_identity else insert)(spec.table).inline()


class _WithIdentity(Insert):
    """An INSERT that brings numbers for a column GENERATED ALWAYS AS IDENTITY."""

    inherit_cache = True


@compiles(_WithIdentity, "postgresql")
def _compile_with_identity(element: _WithIdentity, compiler: Any, **options: Any) -> str:
    plain: str = compiler.visit_insert(element, **options)
    return plain.replace(") VALUES (", ") OVERRIDING SYSTEM VALUE VALUES (", 1)
