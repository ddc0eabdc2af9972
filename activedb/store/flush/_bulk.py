"""Bulk writes of one table's rows in one statement on Postgres: COPY and unnested arrays.

Each function returns whether it has written the rows. False means that it has done nothing,
because the values might not arrive as they would by single statements; see `_wire`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import psycopg
from psycopg.adapt import Buffer, Dumper, PyFormat
from psycopg.pq import Format
from sqlalchemy import Connection, insert

from activedb.store.flush._wire import ServerColumn, WireFormat, bound, server_table, wire_format_of
from activedb.store.server import driver_cursor
from activedb.store.sql import Row, TableSpec

__all__ = [
    "COPY_ROWS_MIN",
    "UNNEST_ROWS_MIN",
    "Array",
    "copy_rows",
    "delete_rows",
    "insert_rows",
    "unnest",
    "update_rows",
]

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
    with driver_cursor(connection) as cursor, cursor.copy(statement) as copy:
        if is_binary:
            copy.set_types([column.server.dumped_as for column in columns])
        write_row = copy.write_row
        for row in zip(*(column.values for column in columns), strict=True):
            write_row(row)
    return True


def insert_rows(connection: Connection, spec: TableSpec, rows: Sequence[Row]) -> None:
    """Insert whole rows into one of activedb's own tables, on any server."""
    if len(rows) >= COPY_ROWS_MIN and copy_rows(connection, spec, rows):
        return
    if rows:
        connection.execute(insert(spec.table), list(rows))


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
class _Column:
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
) -> list[_Column] | None:
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
        columns.append(_Column(name, column, values, way))
    return columns


def _unnest(
    connection: Connection, spec: TableSpec, words: tuple[str, str], columns: Sequence[_Column]
) -> None:
    """Join the table, named between `words`, with arrays, the key's columns first.

    Arrays that are too long for one message are split in halves.
    """
    with driver_cursor(connection) as cursor:
        arrays = [_array(column, cursor) for column in columns]
        size = len(columns[0].values)
        if size > 1 and sum(len(array.data) for array in arrays) > _ARRAY_BYTES_MAX:
            for part in (slice(None, size // 2), slice(size // 2, None)):
                halves = [_Column(c.name, c.server, c.values[part], c.way) for c in columns]
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


def _array(column: _Column, cursor: psycopg.Cursor[Any]) -> Array:
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
