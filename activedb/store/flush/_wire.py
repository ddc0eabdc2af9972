"""Choice of the wire format in which values reach a Postgres column exactly as by an INSERT.

An INSERT casts each value to the declared type and then to the column's own. COPY and arrays cast
nothing, so a column is written in bulk only where the result is certain to be the same: its values
have a Python type with exactly one meaning for the column's type in the catalog. All other columns
are written by single statements.
"""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from typing import Any

from psycopg import Binary
from psycopg.types.json import Json, Jsonb
from sqlalchemy import Connection, Dialect, Enum, String, TypeDecorator, bindparam, text

from activedb.store.sql import TableSpec

__all__ = ["ServerColumn", "ServerTable", "WireFormat", "bound", "server_table", "wire_format_of"]


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
class _Declared:
    """Properties of a declared column that decide how its values are sent."""

    process: Callable[[Any], Any] | None
    is_wrapped: bool
    is_string: bool
    is_enum: bool


@lru_cache(maxsize=1_024)
def _declared(spec: TableSpec, dialect: Dialect) -> dict[str, _Declared]:
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
        found[str(column.name)] = _Declared(process, is_wrapped, is_string, is_enum)
    return found


def bound(spec: TableSpec, name: str, values: Sequence[Any], dialect: Dialect) -> Sequence[Any]:
    """Return `values` of a column as SQLAlchemy would bind them."""
    process = _declared(spec, dialect)[name].process
    return values if process is None else list(map(process, values))


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
