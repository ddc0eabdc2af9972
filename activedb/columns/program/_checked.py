"""Replacements for builtins whose compiled results would differ from Python's.

They raise where a number does not fit in 64 bits, and where Python raises; the kernel then leaves
the row to Python.
"""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

from numba import njit, types
from numba.extending import overload

__all__ = ["Checked", "checked"]

_SAME = ("copysign", "e", "fabs", "inf", "isfinite", "isinf", "isnan", "nan", "pi", "tau")


class Checked(NamedTuple):
    """Builtins by name, and a stand-in for `math` with the functions that agree to the last bit."""

    builtins: dict[str, Any]
    math: ModuleType


def fits(value: Any, limit: float) -> Any:
    """Return a number; raise unless its absolute value is below a limit."""


@overload(fits)
def _fits(value: Any, limit: Any) -> Any:
    if isinstance(value, types.Integer):

        def of_integer(value: Any, limit: Any) -> Any:
            return value

        return of_integer
    if isinstance(value, types.Float):

        def of_float(value: Any, limit: Any) -> Any:
            if not abs(value) < limit:
                raise OverflowError
            return value

        return of_float
    return None


@cache
def checked(limit: float) -> Checked:
    """Return replacements that yield integers below a limit and raise for larger ones."""
    jit: Any = njit(nogil=True, error_model="python")

    def int_(value: Any) -> Any:
        return int(fits(value, limit))

    def round_(value: Any) -> Any:  # Python rounds differently when given a number of digits
        return round(fits(value, limit))

    def floor(value: Any) -> Any:
        return math.floor(fits(value, limit))

    def ceil(value: Any) -> Any:
        return math.ceil(fits(value, limit))

    def sqrt(value: Any) -> Any:
        if value < 0:
            raise ValueError
        return math.sqrt(value)

    module = ModuleType("math")
    for name in _SAME:
        setattr(module, name, getattr(math, name))
    for name, function in (("floor", floor), ("ceil", ceil), ("trunc", int_), ("sqrt", sqrt)):
        setattr(module, name, jit(function))
    return Checked({"int": jit(int_), "round": jit(round_)}, module)
