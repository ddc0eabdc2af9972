"""Bulk writes of one table's rows in one statement on Postgres: COPY and unnested arrays.

Each function returns whether it has written the rows. False means that it has done nothing,
because the values might not arrive as they would by single statements.

An INSERT casts each value to the declared type and then to the column's own. COPY and arrays cast
nothing, so a column is written in bulk only where the result is certain to be the same: its values
have a Python type with exactly one meaning for the column's type in the catalog. All other columns
are written by single statements.
"""

from __future__ import annotations

import datetime
import math
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import Binary
from psycopg.adapt import Buffer, Dumper, PyFormat
from psycopg.pq import Format
from psycopg.types.json import Json, Jsonb
from sqlalchemy import (
    Connection,
    Dialect,
    Enum,
    Insert,
    String,
    Table,
    TypeDecorator,
    bindparam,
    insert,
    text,
)

from activedb.store.server import converting, driver_cursor, run
from activedb.store.sql import Row, TableSpec

__all__ = [
    "COPY_ROWS_MIN",
    "UNNEST_ROWS_MIN",
    "Array",
    "ServerColumn",
    "ServerTable",
    "WireFormat",
    "bound",
    "copy_rows",
    "delete_rows",
    "insert_rows",
    "server_table",
    "unnest",
    "update_rows",
    "wire_format_of",
]


class WireFormat(IntEnum):
    """Ways to send the values of a column."""

    SINGLY = 0
    TEXT = 1
    BINARY = 2


@dataclass(frozen=True, slots=True)
class ServerColumn:
    """Column as described by the catalog.

    Attributes
    ----------
    oid, array_oid, element_oid : int
        Type of the column, of its arrays, and of its elements (0 if it is not an array).
    is_enum : bool
    """

    oid: int
    array_oid: int
    element_oid: int
    is_enum: bool

    @property
    def has_exact_text(self) -> bool:
        """True if text is as exact as binary: a float4 sent as text would be rounded twice."""
        return _FLOAT4 not in (self.oid, self.element_oid)

    @property
    def dumped_as(self) -> int:
        """Type whose binary form the values take: enum labels and padded strings go as text."""
        return _TEXT if self.is_enum or self.oid == _BPCHAR else self.oid


@dataclass(frozen=True, slots=True)
class ServerTable:
    """Table as described by the catalog: its columns by name, and whether COPY acts like INSERT."""

    columns: dict[str, ServerColumn]
    takes_copy: bool


_TEXT, _BPCHAR, _BYTEA, _FLOAT4, _FLOAT8 = 25, 1042, 17, 700, 701
_INTEGER_BITS = {21: 15, 23: 31, 20: 63}
_WITHOUT_ZONE, _WITH_ZONE = {1083, 1114}, {1184}
_FLOAT4_MAX = 3.4028234e38
_TYPES: dict[int, type[Any]] = {
    **dict.fromkeys(_INTEGER_BITS, int),
    16: bool,
    _FLOAT4: float,
    _FLOAT8: float,
    _TEXT: str,
    1043: str,
    _BPCHAR: str,
    _BYTEA: Binary,
    1082: datetime.date,
    1083: datetime.time,
    1114: datetime.datetime,
    1184: datetime.datetime,
    1186: datetime.timedelta,
    1700: Decimal,
    2950: uuid.UUID,
    114: Json,
    3802: Jsonb,
}
"""The one Python type per server type whose binary form is certain to be right."""

# No row-level security, no rewrite rules, no view: COPY would refuse them or ignore the rules.
_CATALOG = text("""
    SELECT a.attname, t.oid, t.typarray,
           CASE WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END, t.typtype = 'e',
           c.relkind IN ('r', 'p') AND NOT c.relhasrules AND NOT c.relrowsecurity
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE c.oid = pg_catalog.to_regclass(:name) AND NOT a.attisdropped
""")


def server_table(connection: Connection, spec: TableSpec) -> ServerTable:
    """Return the table as it is on the server now; without columns if missing. One round trip."""
    name = connection.dialect.identifier_preparer.format_table(spec.table).replace("%%", "%")
    found = connection.execute(_CATALOG, {"name": name}).all()
    columns = {
        column: ServerColumn(oid, array_oid, element_oid, is_enum)
        for column, oid, array_oid, element_oid, is_enum, _ in found
    }
    return ServerTable(columns, takes_copy=bool(found) and found[0][-1])


@dataclass(frozen=True, slots=True)
class _DeclaredColumn:
    """Properties of a declared column that decide how its values are sent."""

    process: Callable[[Any], Any] | None
    is_wrapped: bool
    is_string: bool
    is_enum: bool


@lru_cache(maxsize=1_024)
def _declared(spec: TableSpec, dialect: Dialect) -> dict[str, _DeclaredColumn]:
    found = {}
    for column in spec.table.columns:
        inner = column.type.dialect_impl(dialect)
        process = inner.bind_processor(dialect)
        # SQL around the parameter, such as ST_GeomFromText(…), is more than a value.
        is_wrapped = inner.bind_expression(bindparam("value", type_=column.type)) is not None
        while isinstance(inner, TypeDecorator):
            inner = inner.impl_instance
        is_enum = isinstance(inner, Enum)
        is_string = isinstance(inner, String) and not is_enum
        found[str(column.name)] = _DeclaredColumn(process, is_wrapped, is_string, is_enum)
    return found


def bound(spec: TableSpec, name: str, values: Sequence[Any], dialect: Dialect) -> Sequence[Any]:
    """Return `values` of a column as SQLAlchemy would bind them."""
    process = _declared(spec, dialect)[name].process
    if process is None:
        return values
    with converting():
        return list(map(process, values))


def wire_format_of(
    spec: TableSpec, name: str, values: Sequence[Any], column: ServerColumn, dialect: Dialect
) -> WireFormat:
    """Return how to send the bound `values` of a column; O(values)."""
    declared = _declared(spec, dialect)[name]
    if declared.is_wrapped:
        return WireFormat.SINGLY
    kinds = set(map(type, values))
    has_null = type(None) in kinds
    kinds.discard(type(None))
    if not kinds:
        return WireFormat.BINARY  # NULL has one form
    present = [value for value in values if value is not None] if has_null else values
    if column.is_enum:
        return WireFormat.BINARY if kinds == {str} and declared.is_enum else WireFormat.SINGLY
    if column.oid in _TYPES:
        if _is_plain(column.oid, kinds, present):
            return WireFormat.BINARY
    elif column.element_oid in _TYPES and kinds == {list}:
        elements = list(_elements(present))
        if not elements or _is_plain(column.element_oid, set(map(type, elements)), elements):
            return WireFormat.TEXT
    # A string that no cast touches is parsed by the column's type itself, either way.
    return WireFormat.TEXT if kinds == {str} and not declared.is_string else WireFormat.SINGLY


def _is_plain(oid: int, kinds: set[type[Any]], values: Sequence[Any]) -> bool:
    """Return whether `values`, without None, all have the one right type and are in its range."""
    if kinds != {_TYPES[oid]}:
        return False
    if oid in _INTEGER_BITS:
        limit = 1 << _INTEGER_BITS[oid]
        return bool(-limit <= min(values) and max(values) < limit)
    if oid == _FLOAT4:
        return all(abs(x) <= _FLOAT4_MAX or not math.isfinite(x) for x in values)
    if oid == _BYTEA:
        return all(type(x.obj) is bytes for x in values)
    if oid in _WITHOUT_ZONE:
        return all(x.tzinfo is None for x in values)
    if oid in _WITH_ZONE:
        return all(x.tzinfo is not None for x in values)
    return True


def _elements(values: Sequence[Any]) -> Iterator[Any]:
    """Yield the elements of nested lists at any depth, except None."""
    for value in values:
        if isinstance(value, list):
            yield from _elements(value)
        elif value is not None:
            yield value


COPY_ROWS_MIN = 40
"""Number of new rows from which COPY is faster than one INSERT per row in a pipeline."""

UNNEST_ROWS_MIN = 80
"""Number of rows from which one UPDATE or DELETE is faster than one per row in a pipeline."""

_ARRAY_BYTES_MAX = 256 << 20  # the server accepts 1 GB in one message


def copy_rows(connection: Connection, spec: TableSpec, rows: Sequence[Row]) -> bool:
    """Insert `rows` by COPY, in this order, in two round trips, if possible."""
    columns = _columns(connection, spec, spec.written, rows, copied=True)
    if columns is None:
        return False
    is_binary = all(column.way is WireFormat.BINARY for column in columns)
    if not is_binary and not all(column.server.has_exact_text for column in columns):
        return False
    quote = connection.dialect.identifier_preparer
    names = ", ".join(quote.quote(column.name) for column in columns)
    statement = f"COPY {quote.format_table(spec.table)} ({names}) FROM STDIN"
    if is_binary:
        statement += " (FORMAT BINARY)"
    statement = statement.replace("%%", "%")  # without parameters, psycopg doesn't unescape them
    with driver_cursor(connection) as cursor, converting(), cursor.copy(statement) as copy:
        if is_binary:
            copy.set_types([column.server.dumped_as for column in columns])
        write_row = copy.write_row
        for row in zip(*(column.values for column in columns), strict=True):
            write_row(row)
    return True


def insert_rows(connection: Connection, spec: TableSpec, rows: Sequence[Row]) -> None:
    """Insert rows, all of the same columns, into one of activedb's own tables, on any server."""
    if len(rows) >= COPY_ROWS_MIN and copy_rows(connection, spec, rows):
        return
    if rows:
        names = tuple(rows[0])
        values = [{f"new_{name}": row[name] for name in names} for row in rows]
        run(connection, _insertion(spec.table, names), values)


@lru_cache(maxsize=64)
def _insertion(table: Table, names: tuple[str, ...]) -> Insert:
    return insert(table).values({name: bindparam(f"new_{name}") for name in names}).inline()


def update_rows(
    connection: Connection, spec: TableSpec, changed: Sequence[str], rows: Sequence[Row]
) -> bool:
    """Set the columns `changed` of the rows with the keys of `rows`, in two round trips."""
    names = (*spec.key_columns, *changed)
    columns = _columns(connection, spec, names, rows)
    if columns is None:
        return False
    quote = connection.dialect.identifier_preparer.quote
    sets = ", ".join(
        f"{quote(name)} = n.v{number}"
        for number, name in enumerate(changed, start=len(spec.key_columns))
    )
    _unnest(connection, spec, ("UPDATE", f"SET {sets} FROM"), columns)
    return True


def delete_rows(connection: Connection, spec: TableSpec, rows: Sequence[Row]) -> bool:
    """Delete the rows with the keys of `rows`, in two round trips."""
    columns = _columns(connection, spec, spec.key_columns, rows)
    if columns is None:
        return False
    _unnest(connection, spec, ("DELETE FROM", "USING"), columns)
    return True


@dataclass(frozen=True, slots=True)
class _BoundColumn:
    """Column of the rows to write: its bound values, one per row, and the way to send them."""

    name: str
    server: ServerColumn
    values: Sequence[Any]
    way: WireFormat


def _columns(
    connection: Connection,
    spec: TableSpec,
    names: Sequence[str],
    rows: Sequence[Row],
    *,
    copied: bool = False,
) -> list[_BoundColumn] | None:
    """Return `rows` column by column, or None if they have to be written by single statements."""
    dialect = connection.dialect
    if dialect.driver != "psycopg":
        return None
    server = server_table(connection, spec)
    if copied and not server.takes_copy:
        return None
    columns = []
    for name in names:
        column = server.columns.get(name)
        if column is None:
            return None
        values = bound(spec, name, list(map(itemgetter(name), rows)), dialect)
        way = wire_format_of(spec, name, values, column, dialect)
        if way is WireFormat.SINGLY or (
            not copied and (way is WireFormat.TEXT or not column.array_oid)
        ):
            return None
        columns.append(_BoundColumn(name, column, values, way))
    return columns


def _unnest(
    connection: Connection, spec: TableSpec, words: tuple[str, str], columns: Sequence[_BoundColumn]
) -> None:
    """Join the table, named between `words`, with arrays, the key's columns first.

    Arrays that are too long for one message are split in halves.
    """
    with driver_cursor(connection) as cursor:
        with converting():
            arrays = [_array(column, cursor) for column in columns]
        size = len(columns[0].values)
        if size > 1 and sum(len(array.data) for array in arrays) > _ARRAY_BYTES_MAX:
            for part in (slice(None, size // 2), slice(size // 2, None)):
                halves = [_BoundColumn(c.name, c.server, c.values[part], c.way) for c in columns]
                _unnest(connection, spec, words, halves)
            return
        quote = connection.dialect.identifier_preparer
        same = " AND ".join(
            f"t.{quote.quote(name)} = n.v{number}" for number, name in enumerate(spec.key_columns)
        )
        table = quote.format_table(spec.table)
        _execute(cursor, f"{words[0]} {table} AS t {words[1]}", arrays, f" WHERE {same}")


def unnest(connection: Connection, before: str, arrays: Sequence[Array], after: str = "") -> None:
    """Execute a statement that contains arrays, unnested as `n` with columns `v0`, `v1`, ….

    One round trip. REQUIRES: psycopg's driver; the arrays fit into one message.

    Parameters
    ----------
    before, after : str
        Text of the statement before and after the arrays, in psycopg's syntax.
    """
    with driver_cursor(connection) as cursor:
        _execute(cursor, before, arrays, after)


def _execute(cursor: psycopg.Cursor[Any], before: str, arrays: Sequence[Array], after: str) -> None:
    values = ", ".join("%b" for _ in arrays)
    names = ", ".join(f"v{number}" for number in range(len(arrays)))
    cursor.adapters.register_dumper(Array, _ArrayDumper)
    cursor.execute(f"{before} unnest({values}) AS n ({names}){after}", arrays)


# -- arrays in binary form -------------------------------------------------------------------

_HEAD = struct.Struct("!iiIii")  # dimensions, whether there are NULLs, type, length, first index
_LENGTH = struct.Struct("!i").pack
_NULL = _LENGTH(-1)


@dataclass(frozen=True, slots=True)
class Array:
    """Column as an array in the server's binary form.

    psycopg dumps lists element by element in Python, which is several times as slow.

    Attributes
    ----------
    oid : int
        Type of the array.
    data : bytes
    """

    oid: int
    data: bytes

    @classmethod
    def of(
        cls, oid: int, element_oid: int, count: int, elements: bytes, *, has_null: bool = False
    ) -> Array:
        """Build from elements in binary form, each preceded by its length."""
        return cls(oid, _HEAD.pack(1, has_null, element_oid, count, 1) + elements)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def get_key(self, obj: Array, format: PyFormat) -> Any:
        return (self.cls, obj.oid)

    def upgrade(self, obj: Array, format: PyFormat) -> Dumper:
        dumper = type(self)(self.cls)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: Array) -> Buffer:
        return obj.data


def _array(column: _BoundColumn, cursor: psycopg.Cursor[Any]) -> Array:
    """Return a column's values as one array; O(values), nearly all of it in C."""
    server = column.server
    present = [value for value in column.values if value is not None]
    dumped: list[Any] = []
    if present:
        dumper = cursor.adapters.get_dumper_by_oid(server.dumped_as, Format.BINARY)
        dumped = list(map(dumper(type(present[0]), cursor).dump, present))
    parts = zip(map(_LENGTH, map(len, dumped)), dumped, strict=True)
    has_null = len(present) < len(column.values)
    if has_null:
        full = (b"".join(part) for part in parts)
        body = b"".join(_NULL if value is None else next(full) for value in column.values)
    else:
        body = b"".join(chain.from_iterable(parts))
    count = len(column.values)
    return Array.of(server.array_oid, server.oid, count, body, has_null=has_null)
