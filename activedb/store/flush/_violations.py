"""Diagnosis of constraint violations: the table, the constraint and the key of the refused row.

Postgres names the constraint and shows the key as text. SQLite names the columns of a unique
constraint, and reports no details of a foreign key. The rest is found in the rows that were being
written, with values of their own types.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from sqlalchemy import (
    Connection,
    ForeignKeyConstraint,
    Table,
    TableClause,
    UniqueConstraint,
    and_,
    column,
    not_,
    select,
    table,
)
from sqlalchemy.exc import NoReferenceError

from activedb.errors import ConstraintViolation, ForeignKeyViolation, UniqueViolation
from activedb.store.sql import Row, TableSpec

if TYPE_CHECKING:
    from activedb.store.flush._change import Change

__all__ = ["named", "referred_table"]

V = TypeVar("V", bound=ConstraintViolation)

_POSTGRES_KEY = re.compile(r"\((.*?)\)=\((.*)\)", re.DOTALL)  # Key (a, b)=(1, x) already exists.
_ZEROS_OF_FRACTION = re.compile(r"(\.\d*[1-9])0+")
_ZEROS_OF_OFFSET = re.compile(r"(?<=[+-]\d\d):00$")
_SQLITE_NAME = re.compile(r"^\w+(?: \w+)* constraint failed: (.+)$")

_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 100


def named(
    error: ConstraintViolation, connection: Connection, changes: Sequence[Change]
) -> ConstraintViolation:
    """Return `error` with table, constraint and key, as far as they can be determined.

    Parameters
    ----------
    error : ConstraintViolation
        Error that `translate_errors` raised.
    connection : Connection
        Connection that failed; used only where an error leaves the transaction usable (SQLite).
    changes : sequence of Change
        Changes that were being written.
    """
    found: ConstraintViolation
    if isinstance(error, UniqueViolation):
        found = _unique(error, connection, changes)
    elif isinstance(error, ForeignKeyViolation):
        found = _foreign_key(error, connection, changes)
    else:
        found = _other(error, changes)
    found.__cause__ = error.__cause__
    return found


# -- unique values -----------------------------------------------------------------------------


def _unique(
    error: UniqueViolation, connection: Connection, changes: Sequence[Change]
) -> UniqueViolation:
    on_server, values = _parsed(error.detail)
    table = error.table
    name = error.constraint
    failed = _SQLITE_NAME.match(error.detail)
    if failed and failed[1].startswith("index "):
        name = failed[1].removeprefix("index ").strip("'")
    elif failed:
        places = [place.rpartition(".") for place in failed[1].split(", ")]
        table, on_server = places[0][0], tuple(column for _, _, column in places)
    spec = _spec(table, on_server, changes)
    if spec is None:
        return _copy(error, table=table, key=_key(None, on_server, values))
    known = _unique_columns(spec.table)
    columns = known.get(name) or next((c for c in known.values() if c == on_server), on_server)
    name = name or next((n for n, c in known.items() if c == columns), "")
    rows = [c.new for c in changes if c.spec is spec and c.new is not None]
    row = _matching(rows, columns, values)
    if row is None and connection.dialect.name == "sqlite":
        row = next((r for r in rows if _has_double(connection, spec, r, columns)), None)
    key = _key(row, columns, values)
    return UniqueViolation(
        f"table {spec.name}: another row has {_said(key, columns)} already (unique constraint "
        f"{name}); write another value, or change that row first",
        table=spec.name,
        constraint=name,
        detail=error.detail,
        key=key,
    )


def _unique_columns(table: Table) -> dict[str, tuple[str, ...]]:
    """Return the columns of each unique constraint and index, by its name on the server."""
    found = {str(table.primary_key.name or f"{table.name}_pkey"): _names(table.primary_key.columns)}
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            columns = _names(constraint.columns)
            found[str(constraint.name or f"{table.name}_{'_'.join(columns)}_key")] = columns
    for index in table.indexes:
        if index.unique and index.name is not None:
            found[str(index.name)] = _names(index.columns)
    return found


def _has_double(connection: Connection, spec: TableSpec, row: Row, columns: Sequence[str]) -> bool:
    """Return whether another row has the same values. REQUIRES: the transaction is usable."""
    c = spec.table.c
    if not columns or any(name not in c or row[name] is None for name in columns):
        return False
    same = and_(*(c[name] == row[name] for name in columns))
    itself = and_(*(c[name] == row[name] for name in spec.key_columns))
    is_key = set(columns) <= set(spec.key_columns)
    wanted = same if is_key else and_(same, not_(itself))
    return connection.execute(select(1).select_from(spec.table).where(wanted)).first() is not None


# -- foreign keys ------------------------------------------------------------------------------


def _foreign_key(
    error: ForeignKeyViolation, connection: Connection, changes: Sequence[Change]
) -> ForeignKeyViolation:
    if connection.dialect.name == "sqlite":
        broken = next(_broken_references(connection, changes), None)
        if broken is None:
            return _copy(error, table=_only_table(changes))
        foreign, row, is_child = broken
        columns = _names(foreign.columns) if is_child else _referred(foreign)
        return _refused_reference(error, foreign, {n: row[n] for n in columns}, is_child=is_child)
    columns, values = _parsed(error.detail)
    named_by_server = _foreign_key_named(error, changes)
    if named_by_server is None:
        return _copy(error, key=_key(None, columns, values))
    foreign = named_by_server
    is_child = columns == _names(foreign.columns) and (
        columns != _referred(foreign) or any(_is_of(c, foreign.table) and c.new for c in changes)
    )
    table = foreign.table if is_child else referred_table(foreign)
    versions = [c.new if is_child else c.old for c in changes if _is_of(c, table)]
    rows = [row for row in versions if row is not None]
    key = _key(_matching(rows, columns, values), columns, values)
    return _refused_reference(error, foreign, key, is_child=is_child)


def _refused_reference(
    error: ForeignKeyViolation,
    foreign: ForeignKeyConstraint,
    key: Mapping[str, Any],
    *,
    is_child: bool,
) -> ForeignKeyViolation:
    child, parent = str(foreign.table.fullname), _target(foreign)[0]
    name = _foreign_name(foreign)
    said = _said(key, tuple(key))
    if is_child:
        message = (
            f"table {child}: {said} refers to no row of {parent} (foreign key {name}); insert "
            f"that row first, or refer to an existing row"
        )
    else:
        message = (
            f"table {parent}: rows of {child} still refer to the row with {said} (foreign key "
            f"{name}); delete or change those rows first"
        )
    return ForeignKeyViolation(
        message,
        table=child if is_child else parent,
        constraint=name,
        detail=error.detail,
        key=key,
    )


def _foreign_key_named(
    error: ForeignKeyViolation, changes: Iterable[Change]
) -> ForeignKeyConstraint | None:
    """Return the constraint that Postgres names; its message names the referring table."""
    tables = {t for c in changes for t in c.spec.table.metadata.tables.values()}
    for each in tables:
        if each.name == error.table:
            for foreign in each.foreign_key_constraints:
                if _foreign_name(foreign) == error.constraint:
                    return foreign
    return None


def _broken_references(
    connection: Connection, changes: Iterable[Change]
) -> Iterator[tuple[ForeignKeyConstraint, Row, bool]]:
    """Yield each broken foreign key, a row written, and whether that row is the referring one."""
    for change in changes:
        table = change.spec.table
        if change.new is not None:
            for foreign in table.foreign_key_constraints:
                if not _exists(connection, foreign, change.new, parent=True):
                    yield foreign, change.new, True
        if change.old is not None:
            for child in table.metadata.tables.values():
                for foreign in child.foreign_key_constraints:
                    if (
                        referred_table(foreign) is table
                        and _must_stay(foreign, change.old, change.new)
                        and _exists(connection, foreign, change.old, parent=False)
                    ):
                        yield foreign, change.old, False


def _must_stay(foreign: ForeignKeyConstraint, old: Row, new: Row | None) -> bool:
    """Return whether `old` loses the key `foreign` refers to, and the database doesn't cascade."""
    if new is None:
        answer = foreign.ondelete
    elif any(old[name] != new[name] for name in _referred(foreign)):
        answer = foreign.onupdate
    else:
        return False
    return (answer or "NO ACTION").upper() in ("NO ACTION", "RESTRICT")


def _exists(
    connection: Connection, foreign: ForeignKeyConstraint, row: Row, *, parent: bool
) -> bool:
    """Return whether a row exists that `row` refers to, or that refers to `row`."""
    here, there = _names(foreign.columns), _referred(foreign)
    if not parent:
        here, there = there, here
    values = [row[name] for name in here]
    if None in values:
        return parent  # NULL refers to no row, and no row refers to NULL
    searched: TableClause | None = referred_table(foreign) if parent else foreign.table
    if searched is None:
        searched = table(_target(foreign)[0], *map(column, there))
    same = and_(*(searched.c[name] == value for name, value in zip(there, values, strict=True)))
    return connection.execute(select(1).select_from(searched).where(same)).first() is not None


def referred_table(foreign: ForeignKeyConstraint) -> Table | None:
    """Return the table that a foreign key refers to; None if it is not declared."""
    try:
        return foreign.referred_table
    except NoReferenceError:
        return None


def _target(foreign: ForeignKeyConstraint) -> tuple[str, tuple[str, ...]]:
    """Return the names of the table and the columns that a foreign key refers to."""
    known = referred_table(foreign)
    if known is not None:
        return str(known.fullname), _names(element.column for element in foreign.elements)
    targets = [element.target_fullname.rpartition(".") for element in foreign.elements]
    return targets[0][0], tuple(name for _, _, name in targets)


def _foreign_name(foreign: ForeignKeyConstraint) -> str:
    columns = "_".join(_names(foreign.columns))
    return str(foreign.name or f"{foreign.table.name}_{columns}_fkey")


def _referred(foreign: ForeignKeyConstraint) -> tuple[str, ...]:
    return _target(foreign)[1]


# -- the rest ----------------------------------------------------------------------------------


def _other(error: ConstraintViolation, changes: Sequence[Change]) -> ConstraintViolation:
    """Diagnose a CHECK, NOT NULL or exclusion; SQLite reports its name, or table and column."""
    failed = _SQLITE_NAME.match(error.detail)
    if failed is None:
        return _copy(error)
    if error.detail.startswith("NOT NULL"):
        table, _, _ = failed[1].rpartition(".")
        return _copy(error, table=table)
    return _copy(error, table=_only_table(changes), constraint=failed[1])


def _copy(error: V, **known: Any) -> V:
    """Return a copy of `error` with the attributes `known` replaced."""
    told = {
        "table": error.table,
        "constraint": error.constraint,
        "detail": error.detail,
        "key": error.key,
    }
    return type(error)(str(error), **{**told, **known})


def _spec(table: str, columns: Iterable[str], changes: Sequence[Change]) -> TableSpec | None:
    """Return the spec of the table of that name, or of the table it must be a partition of."""
    specs = {change.spec for change in changes}
    for spec in specs:
        if spec.table.name == table:
            return spec
    whole = specs.pop() if len(specs) == 1 else None
    if whole is None or any(t.name == table for t in whole.table.metadata.tables.values()):
        return None
    return whole if set(columns) <= set(whole.written) else None


def _is_of(change: Change, table: Table | None) -> bool:
    return change.spec.table is table


def _only_table(changes: Iterable[Change]) -> str:
    names = {change.spec.name for change in changes}
    return names.pop() if len(names) == 1 else ""


def _names(columns: Iterable[Any]) -> tuple[str, ...]:
    return tuple(str(column.name) for column in columns)


# -- keys --------------------------------------------------------------------------------------


def _parsed(detail: str) -> tuple[tuple[str, ...], str | None]:
    """Return the columns and the text of their values in Postgres's message, in any language."""
    found = _POSTGRES_KEY.search(detail)
    if found is None:
        return (), None
    return tuple(name.strip('"') for name in found[1].split(", ")), found[2]


def _matching(rows: Sequence[Row], columns: Sequence[str], values: str | None) -> Row | None:
    """Return the row whose values Postgres shows as `values`, or the only row; None if unknown."""
    if values is None or any(name not in row for row in rows[:1] for name in columns):
        return None
    if len(rows) == 1:
        return rows[0]
    return next((r for r in rows if ", ".join(_text(r[n]) for n in columns) == values), None)


def _key(row: Row | None, columns: Sequence[str], values: str | None) -> dict[str, Any]:
    """Return values by column: from `row`, or else from Postgres's text if it can be split."""
    if row is not None:
        return {name: row[name] for name in columns}
    if values is None:
        return {}
    parts = [values] if len(columns) == 1 else values.split(", ")
    return dict(zip(columns, parts, strict=True)) if len(parts) == len(columns) else {}


def _text(value: Any) -> str:
    """Return `value` as Postgres shows it, for the types that keys are made of."""
    match value:
        case bool():
            return "t" if value else "f"
        case datetime():
            of_session = value if value.tzinfo is None else value.astimezone(UTC)
            return _shortened(of_session.isoformat(" "))
        case time():
            return _shortened(value.isoformat())
        case Decimal():
            return f"{value:f}"
        case str() | int() | UUID() | date():
            return str(value)
        case bytes():
            return f"\\x{value.hex()}"
        case Enum():
            return value.name
        case _:
            return repr(value)


def _shortened(iso: str) -> str:
    """Drop the zeros at the end of a fraction of a second, and those of an offset in hours."""
    return _ZEROS_OF_OFFSET.sub("", _ZEROS_OF_FRACTION.sub(r"\1", iso))


def _said(key: Mapping[str, Any], columns: Sequence[str]) -> str:
    if not key:
        return f"the same ({', '.join(columns)})"
    return ", ".join(f"{name} = {_shown.repr(value)}" for name, value in key.items())
