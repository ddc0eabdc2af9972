"""Reading of rows by predicate, with statements that are compiled once for a form of predicate."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import psycopg
from sqlalchemy import (
    ARRAY,
    BindParameter,
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Select,
    Table,
    Text,
    all_,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ClauseElement, Executable

from activedb.store.server import Step, fetch
from activedb.store.sql._restrictions import KEYS_PINNED_MAX
from activedb.store.sql._tables import Key, Row, TableSpec
from lockmgr import NullTest, OneOf, Predicate

__all__ = [
    "LockingOfTable",
    "checking_step",
    "is_refused_by_check",
    "keys_covered",
    "lock_single_row",
    "lock_table",
]

_Form: TypeAlias = tuple[tuple[str, int | str], ...]
"""Columns of a predicate, each with the number of its values, or with the comparisons."""
_NULL, _NOT_NULL = "is null", "is not null"
_MOST: ColumnElement[int] = literal_column(str(KEYS_PINNED_MAX + 1))
_FOUND = "activedb: a row that satisfies a predicate"


class LockingOfTable(Executable, ClauseElement):
    """Statement that locks a table."""

    inherit_cache = False

    def __init__(self, table: Table, mode: str):
        self.table = table
        self.mode = mode


@compiles(LockingOfTable)
def _compile_lock(element: LockingOfTable, compiler: Any, **options: Any) -> str:
    return f"LOCK TABLE {compiler.preparer.format_table(element.table)} IN {element.mode} MODE"


@lru_cache(maxsize=1_024)
def lock_table(spec: TableSpec, mode: str) -> LockingOfTable:
    """Return LOCK TABLE in a mode, such as SHARE; for Postgres."""
    return LockingOfTable(spec.table, mode)


def lock_single_row(
    connection: Connection,
    spec: TableSpec,
    predicate: Predicate,
    *,
    exclusive: bool,
    numbered: bool,
) -> tuple[Row | None, list[Key], str | None]:
    """Lock the committed row that satisfies a predicate, if it is the only one and free.

    On Postgres; never waits. One round trip. Of several rows none is locked: they would not be
    locked in the order of their keys, as everybody else locks them.

    Parameters
    ----------
    exclusive : bool
        True to lock it for writing, False for reading.
    numbered : bool
        Whether to return the transaction's number.

    Returns
    -------
    row : Row or None
        The row, if it is locked.
    keys : list of Key
        The keys of all rows that satisfy the predicate, at most one more than `KEYS_PINNED_MAX`.
        With inheritance there may be duplicates.
    number : str or None
        The server's number of the transaction, which a lock on a row assigns anyway; None if it
        was not requested, or no row is locked.
    """
    form, values = _parts(predicate)
    cells = {f"value_{n}": value for n, value in enumerate(values)}
    locked, keys = fetch(
        connection,
        [(_single_row(spec, form, exclusive, numbered), cells), (_some_keys(spec, form), cells)],
    )
    number = locked[0][-1] if locked and numbered else None
    row = spec.row(locked[0][:-1] if numbered else locked[0]) if locked else None
    return row, list(map(spec.key, keys)), number


def keys_covered(spec: TableSpec, predicates: Iterable[Predicate]) -> Select[Any]:
    """Return a SELECT of the keys of the rows that satisfy one of some predicates."""
    conditions = [and_(*_conditions(spec, *_parts(predicate))) for predicate in predicates]
    return select(*_keys(spec)).where(or_(*conditions))


def checking_step(spec: TableSpec, predicate: Predicate, known: Collection[Key]) -> Step:
    """Return a step of a message that fails if a row with another key satisfies a predicate.

    On Postgres; see `is_refused_by_check`.
    """
    form, values = _parts(predicate)
    cells: dict[str, Any] = {f"value_{n}": value for n, value in enumerate(values)}
    for n in range(len(spec.key_columns)):
        cells[f"known_{n}"] = [key[n] for key in known]
    return _check(spec, form), cells


def is_refused_by_check(error: Exception) -> bool:
    """Return whether a step failed because it found a row; see `checking_step`."""
    return isinstance(error, psycopg.errors.InvalidTextRepresentation) and _FOUND in str(error)


def _parts(predicate: Predicate) -> tuple[_Form, list[Any]]:
    """Return the form of a predicate, and its values in order."""
    form: list[tuple[str, int | str]] = []
    values: list[Any] = []
    for each in predicate.conditions:
        if isinstance(each, OneOf):
            form.append((each.column, len(each.values)))
            values += each.values
        elif isinstance(each, NullTest):
            form.append((each.column, _NOT_NULL if each.negated else _NULL))
        else:
            low = "" if each.low is None else ">=" if each.with_low else ">"
            high = "" if each.high is None else "<=" if each.with_high else "<"
            form.append((each.column, f"{low} {high}"))
            values += [bound for bound in (each.low, each.high) if bound is not None]
    return tuple(form), values


@lru_cache(maxsize=1_024)
def _check(spec: TableSpec, form: _Form) -> Select[Any]:
    """Return a SELECT that converts text to a number if it finds a row, which the server refuses.

    So the statements that follow in the message, such as a COMMIT, are not executed.
    """
    keys = _keys(spec)
    known = [bindparam(f"known_{n}", type_=ARRAY(key.type)) for n, key in enumerate(keys)]
    conditions = _conditions(spec, form, _places(spec, form))
    found: Select[Any] = select(literal_column(f"'{_FOUND}'")).where(*conditions)
    if len(keys) == 1:
        found = found.where(keys[0] != all_(known[0]))
    else:
        names = [f"known_{n}" for n in range(len(keys))]
        listed = func.unnest(*known).table_valued(*names).render_derived()
        same = and_(*(key == listed.c[name] for key, name in zip(keys, names, strict=True)))
        found = found.where(not_(exists().where(same)))
    return select(cast(found.limit(literal_column("1")).scalar_subquery(), Integer))


@lru_cache(maxsize=1_024)
def _some_keys(spec: TableSpec, form: _Form) -> Select[Any]:
    condition = and_(*_conditions(spec, form, _places(spec, form)))
    return select(*_keys(spec)).where(condition).limit(_MOST)


@lru_cache(maxsize=1_024)
def _single_row(spec: TableSpec, form: _Form, exclusive: bool, numbered: bool) -> Select[Any]:
    number = [cast(func.pg_current_xact_id(), Text)] if numbered else []
    places = _places(spec, form)
    other = spec.table.alias()
    two: Select[Any] = select(literal_column("1")).select_from(other)
    two = two.where(*_conditions(spec, form, places, other)).limit(literal_column("2"))
    count = select(func.count()).select_from(two.subquery()).scalar_subquery()
    row = select(*spec.table.columns, *number).where(
        *_conditions(spec, form, places), count == literal_column("1")
    )
    if exclusive:
        return row.with_for_update(key_share=True, skip_locked=True, of=spec.table)
    return row.with_for_update(read=True, skip_locked=True, of=spec.table)


def _places(spec: TableSpec, form: _Form) -> list[BindParameter[Any]]:
    """Return parameters for the values of a predicate."""
    columns = [spec.table.c[name] for name, how in form for _ in _operators(how)]
    return [bindparam(f"value_{n}", type_=column.type) for n, column in enumerate(columns)]


def _keys(spec: TableSpec) -> list[ColumnElement[Any]]:
    return [spec.table.c[name] for name in spec.key_columns]


def _operators(how: int | str) -> Sequence[str]:
    """Return the operators of a condition, one for each of its values."""
    if isinstance(how, int):
        return ["="] * how
    return [] if how in (_NULL, _NOT_NULL) else how.split()


def _conditions(
    spec: TableSpec, form: _Form, values: Iterable[Any], source: FromClause | None = None
) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of a predicate, with values or with parameters in their place.

    They are about the table, or about an alias of it.
    """
    following = iter(values)
    for name, how in form:
        column = (spec.table if source is None else source).c[name]
        compared = list(zip(_operators(how), following, strict=False))
        if isinstance(how, int) and how > 1:
            yield column.in_([value for _, value in compared])
        elif how in (_NULL, _NOT_NULL):
            yield column.is_(None) if how == _NULL else column.is_not(None)
        else:
            for operator, value in compared:
                yield column.bool_op(operator)(value)
