"""Numbers that the database computes for a column, converted as the assignment would."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from typing import Any

from sqlalchemy import Column, Dialect, Float, Integer, Numeric, Select, Table, type_coerce
from sqlalchemy.sql.elements import BindParameter, Label, Null
from sqlalchemy.sql.selectable import CompoundSelect, TextualSelect
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from activedb.store.sql._defaults import processed, undecorated
from activedb.store.sql._tables import decimal_form

__all__ = ["computed_rows", "computed_value"]


def computed_value(element: Any, table: Table, name: str) -> Any:
    """Return a value for a column, which the database computes."""
    if isinstance(element, Label):
        return computed_value(element.element, table, name).label(element.name)
    column: Column[Any] | None = table.c.get(name)
    if column is None or not _is_number(column.type):
        return element
    value = None
    if isinstance(element, BindParameter) and not element.required:
        value = element.effective_value
        if isinstance(undecorated(column.type), Integer) and not isinstance(value, float | Decimal):
            return element
    if not _is_number(element.type) and not isinstance(element.type, NullType):
        return element
    is_double = isinstance(value, float) or isinstance(undecorated(element.type), Float)
    return type_coerce(element, _ComputedNumber(column.type, is_double))


def computed_rows(rows: Any, table: Table, names: Sequence[str], *, is_part: bool = False) -> Any:
    """Return a SELECT of rows for the named columns, which the database computes.

    Its text stays the same. `is_part`: of a UNION, say, whose parts have different types.
    """
    if isinstance(rows, CompoundSelect):
        first, *others = rows.selects  # the types are those of the first
        changed = rows._generate()
        changed.selects = [computed_rows(first, table, names, is_part=True), *others]
        return changed
    if not isinstance(rows, Select | TextualSelect):
        return rows
    found: list[Any] = list(
        rows._raw_columns if isinstance(rows, Select) else rows.selected_columns
    )
    if len(found) != len(names):
        found = list(rows.selected_columns)
    is_read = is_part or isinstance(rows, TextualSelect)  # whose types are not known
    computed = [
        element
        if not is_read and _is_kept(element, table, name)
        else computed_value(element, table, name)
        for element, name in zip(found, names, strict=False)
    ]
    if all(each is element for each, element in zip(computed, found, strict=False)):
        return rows
    if isinstance(rows, Select):
        return rows.with_only_columns(*computed, *found[len(names) :])
    columns = (Column(f"new_{n}", each.type) for n, each in enumerate(computed))
    return rows.element.columns(*columns)


def _is_number(kind: Any) -> bool:
    return isinstance(undecorated(kind), Integer | Numeric | Float)


def _is_kept(element: Any, table: Table, name: str) -> bool:
    """Return whether a row takes a plain column of the same type, or NULL, as it comes back."""
    if not isinstance(element, Column) or name not in table.c:
        return isinstance(element, Null)
    kinds = element.type, table.c[name].type
    return all(isinstance(kind, Integer) for kind in kinds) or repr(kinds[0]) == repr(kinds[1])


class _ComputedNumber(TypeDecorator[Any]):
    """Type of a number that the database computes for a column, whichever type it gives it.

    A value is converted as the assignment to the column would on Postgres.

    Parameters
    ----------
    kind : TypeEngine
        Type of the column.
    is_double : bool
        False unless the number is known to be a double, which SQLite does not tell from a decimal.
    """

    impl = Numeric
    cache_ok = True

    def __init__(self, kind: TypeEngine[Any], is_double: bool = False):
        super().__init__()
        self.kind = kind
        self.is_double = is_double

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(self.kind)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        kind = undecorated(self.kind)
        is_single = coltype == _FLOAT4
        convert: Callable[[Any], Any]
        if isinstance(kind, Integer):
            is_half_even = dialect.name == "postgresql" or self.is_double
            convert = partial(_as_whole, is_half_even=is_half_even)
        elif isinstance(kind, Float):
            convert = partial(_as_double, is_single=is_single)
        else:
            digits = 6 if is_single else 15
            convert = partial(_as_decimal, digits=digits, kind=kind)
        if kind is self.kind:
            return convert
        return lambda value: processed(self.kind, "process_result_value", convert(value), dialect)


_FLOAT4 = 700
"""Number of the type at a Postgres server; of its values we get the shortest form."""


def _as_whole(value: Any, *, is_half_even: bool) -> Any:
    """Return a number as a column of whole numbers takes it; anything else as it is.

    A double is rounded to the nearest even number, a decimal away from 0.
    """
    if not isinstance(value, float | Decimal) or not math.isfinite(value):
        return value
    if isinstance(value, float) and is_half_even:
        return round(value)
    return int(Decimal(str(value)).to_integral_value(ROUND_HALF_UP))


def _as_double(value: Any, *, is_single: bool) -> Any:
    """Return a number as a column of doubles takes it; anything else as it is."""
    if is_single and isinstance(value, float):
        return struct.unpack("f", struct.pack("f", value))[0]
    return float(value) if isinstance(value, Decimal) and not value.is_snan() else value


def _as_decimal(value: Any, *, digits: int, kind: Any) -> Any:
    """Return a number as a column of decimals takes it; anything else as it is.

    Postgres takes so many digits of a double.
    """
    if isinstance(value, float):
        value = Decimal(format(value, f".{digits}g"))
    if type(value) is int or isinstance(value, Decimal):
        value = decimal_form(kind)(value)
    return value if kind.asdecimal else _as_double(value, is_single=False)
