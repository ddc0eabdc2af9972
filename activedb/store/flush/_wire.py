"""Which values reach a column of Postgres in bulk exactly as an INSERT would bring them.

An INSERT casts each value to the declared type and then to the column's own. COPY and arrays cast
nothing, so a column goes in bulk only where both are sure to be the same: a Python type that has
one meaning for the type of the column, as the catalog has it. Everything else is left to single
statements.
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

__all__ = ["ServerColumn", "ServerTable", "Way", "bound", "server_table", "way_of"]


class Way(IntEnum):
    """How the values of a column can go."""

    SINGLY = 0
    TEXT = 1
    BINARY = 2


@dataclass(frozen=True, slots=True)
class ServerColumn:
    """A column as the catalog has it.

    Attributes
    ----------
    oid, array_oid, element_oid : int
        Its type; the arrays of that type; the type of its elements, or 0 if it is no array.
    is_enum : bool
    """

    oid: int
    array_oid: int
    element_oid: int
    is_enum: bool

    @property
    def has_exact_text(self) -> bool:
        """Whether text is as exact as binary: a double would be rounded twice to a single."""
        return _FLOAT4 not in (self.oid, self.element_oid)

    @property
    def dumped_as(self) -> int:
        """Type whose binary form a value takes: labels and padded strings are text there."""
        return _TEXT if self.is_enum or self.oid == _BPCHAR else self.oid


@dataclass(frozen=True, slots=True)
class ServerTable:
    """A table as the catalog has it: its columns by name, and whether COPY treats it as INSERT."""

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
"""Of each type of the server the one Python type whose binary form is sure to be right."""

# No row-level security, no rewrite rules, no view: COPY would refuse them, or ignore the rules.
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
    """A table as it is on the server now; without columns if it is not there. One round trip."""
    name = connection.dialect.identifier_preparer.format_table(spec.table).replace("%%", "%")
    found = connection.execute(_CATALOG, {"name": name}).all()
    columns = {
        column: ServerColumn(oid, array_oid, element_oid, is_enum)
        for column, oid, array_oid, element_oid, is_enum, _ in found
    }
    return ServerTable(columns, takes_copy=bool(found) and found[0][-1])


@dataclass(frozen=True, slots=True)
class _Declared:
    """What the declaration of a column says about the way of its values."""

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
    """`values` of a column as SQLAlchemy would bind them."""
    process = _declared(spec, dialect)[name].process
    return values if process is None else list(map(process, values))


def way_of(
    spec: TableSpec, name: str, values: Sequence[Any], column: ServerColumn, dialect: Dialect
) -> Way:
    """How the bound `values` of a column can go; O(values)."""
    declared = _declared(spec, dialect)[name]
    if declared.is_wrapped:
        return Way.SINGLY
    kinds = set(map(type, values))
    has_null = type(None) in kinds
    kinds.discard(type(None))
    if not kinds:
        return Way.BINARY  # NULL has one form
    present = [value for value in values if value is not None] if has_null else values
    if column.is_enum:
        return Way.BINARY if kinds == {str} and declared.is_enum else Way.SINGLY
    if column.oid in _TYPES:
        if _is_plain(column.oid, kinds, present):
            return Way.BINARY
    elif column.element_oid in _TYPES and kinds == {list}:
        elements = list(_elements(present))
        if not elements or _is_plain(column.element_oid, set(map(type, elements)), elements):
            return Way.TEXT
    # A string that nothing casts is read by the type itself, either way.
    return Way.TEXT if kinds == {str} and not declared.is_string else Way.SINGLY


def _is_plain(oid: int, kinds: set[type[Any]], values: Sequence[Any]) -> bool:
    """Whether `values`, none of them None, are of the one right type and in its range."""
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
    """What lists have in them, however deep, except None."""
    for value in values:
        if isinstance(value, list):
            yield from _elements(value)
        elif value is not None:
            yield value
