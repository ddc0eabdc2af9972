"""Defaults of columns: the values, functions and SELECTs that stand in for what a write leaves out.

A default has the value that Postgres would store. SQLite has no types of truth, of times and of
JSON, so a text for it is read here, and what an expression yields is read as the column's type.
"""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Dialect,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    Select,
    String,
    TextClause,
    Time,
    TypeDecorator,
    Uuid,
    cast,
    func,
    literal,
    select,
    type_coerce,
)

from activedb.errors import DefinitionError

__all__ = ["Default", "default_of_column", "processed", "sqlite_default"]

Default: TypeAlias = Callable[[Mapping[str, Any]], Any] | Select[Any]
"""A function of the values that the write gives to other columns, or a SELECT for the server."""


def default_of_column(column: Column[Any], default: Any, dialect: Dialect) -> Default:
    """Return what a write that leaves out a column puts into it.

    Parameters
    ----------
    default
        SQLAlchemy's default of the column: for inserts, of the server, or for updates.

    Raises
    ------
    DefinitionError
        If only the server knows it.
    """
    argument: Any = getattr(default, "arg", None)
    if argument is None:
        raise DefinitionError(
            f"table {column.table.fullname}: what the database puts into column {column.name} is "
            f"not known here; declare it as default= or server_default="
        )
    if default is not column.server_default:
        if callable(argument):
            return lambda values: argument(_Written(values))
        if not hasattr(argument, "compile"):
            return lambda _: argument
    if dialect.name == "sqlite":
        text = argument if isinstance(argument, str) else _quoted(argument)
        if text is not None:
            return lambda _: _from_text(column, text, dialect)
        return select(_as_column(argument, column.type))
    expression = literal(argument) if isinstance(argument, str) else argument
    return select(cast(expression, column.type))


class _Written:
    """Context of a default's function, as SQLAlchemy's: the values of the row that is written."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = values

    def get_current_parameters(self, isolate_multiinsert_groups: bool = True) -> dict[str, Any]:
        """Return the values given so far, by column; an expression has none yet."""
        return dict(self._values)


def sqlite_default(column: Column[Any], dialect: Dialect) -> str | None:
    """Return how SQLite stores a text that Postgres reads as the column's default, as a literal.

    None if the default is no text, or one that cannot be read.
    """
    argument: Any = getattr(column.server_default, "arg", None)
    text = argument if isinstance(argument, str) else _quoted(argument)
    if text is None:
        return None
    kind = undecorated(column.type)
    try:
        stored = _read(kind, text)
    except (ValueError, ArithmeticError):
        return None
    store = kind.dialect_impl(dialect).bind_processor(dialect)
    stored = stored if store is None else store(stored)
    if isinstance(stored, bytes | memoryview):
        return f"x'{bytes(stored).hex()}'"
    quoted = str(stored).replace("'", "''")
    return f"'{quoted}'" if isinstance(stored, str) else str(stored)


def undecorated(kind: Any) -> Any:
    """Return the type that a TypeDecorator decorates, or the type itself."""
    while isinstance(kind, TypeDecorator) and not isinstance(kind, Interval):
        kind = kind.impl_instance
    return kind


def processed(
    kind: Any,
    step: Literal["process_bind_param", "process_result_value"],
    value: Any,
    dialect: Dialect,
) -> Any:
    """Return a value on its way to or from the database, changed if the type is a TypeDecorator."""
    is_changed = isinstance(kind, TypeDecorator) and (
        getattr(type(kind), step) is not getattr(TypeDecorator, step)
    )
    return getattr(kind, step)(value, dialect) if is_changed else value


# -- what SQLite does not read as Postgres does ----------------------------------------------------


def _quoted(expression: Any) -> str | None:
    """Return the text of an expression that is one literal in quotes, or None."""
    if not isinstance(expression, TextClause) or expression._bindparams:
        return None
    found = re.fullmatch(r"\s*'((?:[^']|'')*)'\s*", expression.text)
    return None if found is None else found[1].replace("''", "'").replace("\\:", ":")


def _as_column(expression: Any, kind: Any) -> Any:
    """Return an expression whose value is read as one of a column of this type."""
    plain = undecorated(kind)
    if isinstance(plain, Integer | Numeric | String) and not isinstance(plain, Enum):
        return cast(expression, kind)
    # A cast to any other type would make a number. A moment is text, the time after a blank.
    if isinstance(plain, Date):
        expression = func.substr(expression, 1, len("2000-01-01"))
    elif isinstance(plain, Time):
        expression = func.substr(expression, func.instr(expression, " ") + 1)
    return type_coerce(expression, kind)


def _from_text(column: Column[Any], text: str, dialect: Dialect) -> Any:
    """Return the value that Postgres reads a text as."""
    kind: Any = column.type
    try:
        value = _read(undecorated(kind), text)
    except (ValueError, ArithmeticError) as error:
        raise DefinitionError(
            f"table {column.table.fullname}: memory:// cannot read the default {text!r} of column "
            f"{column.name} as {kind!r}; declare a value, default=…"
        ) from error
    return processed(kind, "process_result_value", value, dialect)


def _read(kind: Any, text: str) -> Any:
    for sql_type, read in _READERS:
        if isinstance(kind, sql_type):
            return read(text)
    if isinstance(kind, Uuid):
        return uuid.UUID(text) if kind.as_uuid else str(uuid.UUID(text))
    if isinstance(kind, DateTime):
        moment = datetime.datetime.fromisoformat(text)
        if not kind.timezone:
            return moment.replace(tzinfo=None)  # Postgres ignores it, too
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return text


_TRUTHS = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), False),
}
_UNITS_S = {
    "second": 1,
    "sec": 1,
    "minute": 60,
    "min": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 7 * 86_400,
    "mon": 30 * 86_400,  # as psycopg reads months and years
    "month": 30 * 86_400,
    "year": 365 * 86_400,
}
_SPAN = re.compile(
    r"\s*([+-]?)(?:(\d+):(\d+)(?::(\d+(?:\.\d+)?))?|(\d+(?:\.\d+)?)\s*([a-z]+?)s?)(?=\s|$)"
)


def _truth(text: str) -> bool:
    try:
        return _TRUTHS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is no truth value") from None


def _span(text: str) -> datetime.timedelta:
    """Read an interval as "2 days 03:04:05.6" or "1 hour 30 minutes"."""
    total_s, rest = Decimal(0), text.strip().lower()
    while rest:
        found = _SPAN.match(rest)
        if found is None or (found[6] is not None and found[6] not in _UNITS_S):
            raise ValueError(f"{text!r} is no interval")
        sign, hours, minutes, seconds, count, unit = found.groups()
        if unit is None:
            part_s = int(hours) * 3_600 + int(minutes) * 60 + Decimal(seconds or 0)
        else:
            part_s = Decimal(count) * _UNITS_S[unit]
        total_s += -part_s if sign == "-" else part_s
        rest = rest[found.end() :].lstrip()
    return datetime.timedelta(microseconds=int(total_s * 1_000_000))


def _bytes(text: str) -> bytes:
    if text.startswith("\\x"):
        return bytes.fromhex(text[2:])
    if "\\" in text:
        raise ValueError("octal escapes are not read")
    return text.encode()


_READERS: tuple[tuple[type[Any], Callable[[str], Any]], ...] = (
    (Boolean, _truth),
    (JSON, json.loads),
    (Integer, int),
    (Float, float),
    (Numeric, Decimal),
    (Date, lambda text: datetime.datetime.fromisoformat(text).date()),
    (Time, datetime.time.fromisoformat),
    (Interval, _span),
    (LargeBinary, _bytes),
)
