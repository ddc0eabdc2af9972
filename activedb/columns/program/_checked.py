"""What compiled functions call in place of builtins that would give something else than Python's.

They raise where a number has no place in 64 bits, or Python raises; a kernel leaves such a row to
Python then.
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
    """Builtins by name; in place of the module `math` what of it is the same to the last bit."""

    builtins: dict[str, Any]
    math: ModuleType


def fits(value: Any, limit: float) -> Any:
    """Raise unless a number is smaller than a limit; the number."""


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
    """What makes whole numbers below a limit, and raises where they would be larger."""
    jit: Any = njit(nogil=True, error_model="python")

    def int_(value: Any) -> Any:
        return int(fits(value, limit))

    def round_(value: Any) -> Any:  # with a number of digits Python rounds in another way
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
