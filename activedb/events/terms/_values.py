"""Comparison and arithmetic of values: exact, with NULL as unknown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, time, timedelta
from decimal import Context, Decimal, localcontext
from numbers import Number
from operator import add, ge, gt, le, lt, mul, sub
from typing import Any

__all__ = [
    "CALCULATIONS",
    "COMPARISONS",
    "NotComparable",
    "divided",
    "equal",
    "is_quantity",
    "negated",
    "remainder",
]

# Sums and products of decimals are exact up to 10,000 digits; quotients are rounded to 38.
_EXACT = Context(prec=10_000)
_QUOTIENT = Context(prec=38)
_COMPUTABLE = (Number, date, timedelta)
_ORDERED = (lt, le, gt, ge)
_SYMBOLS = ("<", "<=", ">", ">=")


class NotComparable(TypeError):
    """Raised if the types of two values are not comparable; the calling term names the values."""


def equal(a: Any, b: Any) -> bool:
    """Return whether two non-NULL values are equal; numbers exactly, whatever their types.

    Raises
    ------
    NotComparable
        If their types are not comparable.
    """
    try:
        if a == b:
            return True
    except ArithmeticError:  # a signalling NaN
        raise NotComparable from None
    if type(a) is not type(b) and _kind(a) is not _kind(b):
        raise NotComparable
    if (
        isinstance(a, date | time)
        and _is_aware(a) is not _is_aware(b)  # a naive time is no moment, so not a different one
    ):
        raise NotComparable
    return False


def unequal(a: Any, b: Any) -> bool:
    """Return the negation of `equal`."""
    return not equal(a, b)


def _kind(value: Any) -> type:
    return Number if isinstance(value, Number) else type(value)


def _is_aware(value: Any) -> bool | None:
    return None if not hasattr(value, "tzinfo") else value.tzinfo is not None


COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": equal,
    "!=": unequal,
    **dict(zip(_SYMBOLS, _ORDERED, strict=True)),
}
"""Comparisons by operator; TypeError or ArithmeticError means that values are not comparable."""


def divided(a: Any, b: Any) -> Any:
    """Return the quotient; for integers it is truncated as in SQL: -7 / 2 is -3."""
    if isinstance(a, int) and isinstance(b, int):
        quotient = abs(a) // abs(b)
        return quotient if (a < 0) is (b < 0) else -quotient
    return a / b


def remainder(a: Any, b: Any) -> Any:
    """Return the remainder of `divided`; it has the sign of `a` as in SQL: -7 % 2 is -1."""
    if isinstance(a, int) and isinstance(b, int):
        left = abs(a) % abs(b)
        return -left if a < 0 else left
    if isinstance(a, float) or isinstance(b, float):
        if b == 0:
            raise ZeroDivisionError
        return math.fmod(a, b)
    return a % b


def is_quantity(value: Any) -> bool:
    """Return whether a value is a number or a duration: what can be added to its own kind."""
    return isinstance(value, Number | timedelta) and not isinstance(value, bool)


def negated(value: Any) -> Any:
    """Return the negative of a non-NULL number or duration.

    Raises
    ------
    NotComparable
        If `value` is neither.
    """
    if not is_quantity(value):
        raise NotComparable
    if isinstance(value, Decimal):
        with localcontext(_EXACT):
            return -value
    return -value


def _checked(operation: Callable[[Any, Any], Any], context: Context) -> Callable[[Any, Any], Any]:
    """Return `operation`, restricted to operands that are numeric and stay exact."""

    def calculate(a: Any, b: Any) -> Any:
        for value in (a, b):
            if isinstance(value, bool) or not isinstance(value, _COMPUTABLE):
                raise NotComparable
        for whole, other in ((a, b), (b, a)):
            if isinstance(other, float) and isinstance(whole, int) and float(whole) != whole:
                raise NotComparable
        if isinstance(a, Decimal) or isinstance(b, Decimal):
            with localcontext(context):
                return operation(a, b)
        return operation(a, b)

    return calculate


CALCULATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": _checked(add, _EXACT),
    "-": _checked(sub, _EXACT),
    "*": _checked(mul, _EXACT),
    "/": _checked(divided, _QUOTIENT),
    "%": _checked(remainder, _EXACT),
}
"""Operations by operator; TypeError or ArithmeticError means that the result is undefined."""
