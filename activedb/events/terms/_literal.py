"""Literals: constant values in a term."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any

from activedb.clock import timedelta_us
from activedb.errors import PatternError
from activedb.events._primitives import seconds_text
from activedb.events.terms._precedence import ATOM
from activedb.events.terms._term import Compiled, Term, Value

__all__ = ["Literal", "as_term", "is_literal"]

_TYPES = (bool, int, float, Decimal, str, bytes, datetime, date, time, timedelta)


@dataclass(frozen=True, eq=False, repr=False)
class Literal(Term):
    """Constant value.

    Attributes
    ----------
    value : bool, int, float, Decimal, str, bytes, datetime, date, time, timedelta or None
        The type must be exactly one of these.
    """

    value: Value

    def __post_init__(self) -> None:
        if not is_literal(self.value):
            raise PatternError(
                f"a term takes a number, string, boolean, date, time, timedelta, bytes or None, "
                f"not {self.value!r}"
            )

    @property
    def operands(self) -> tuple[Term, ...]:
        return ()

    def _structure(self) -> tuple[Any, ...]:
        # 1, 1.0 and True are equal, as are -0.0 and 0.0, but they are written differently.
        return (Literal, type(self.value), _written(self.value))

    def _compiled(self) -> Compiled:
        value = self.value

        def literal(parts: Mapping[str, Any], this: Any, reader: Any) -> Value:
            return value

        return literal

    def _text(self) -> tuple[str, int]:
        return _written(self.value), ATOM


def is_literal(value: object) -> bool:
    """Return whether a value can be a literal."""
    return value is None or type(value) in _TYPES


def as_term(value: object) -> Term:
    """Return a term unchanged, and a value as a literal.

    Raises
    ------
    PatternError
        If the value cannot be a literal.
    """
    return value if isinstance(value, Term) else Literal(value)


def _written(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return repr(value) if isfinite(value) else f"FLOAT '{value!r}'"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return f"DECIMAL '{value}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, timedelta):
        us = timedelta_us(value)
        return f"INTERVAL '{'-' if us < 0 else ''}{seconds_text(abs(us))}s'"
    kind = {datetime: "TIMESTAMP", date: "DATE", time: "TIME"}[type(value)]
    return f"{kind} '{value.isoformat()}'"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
