"""What compiled functions call in place of builtins that would give something else than Python's.

They raise where a number has no place in 64 bits, or Python raises; a kernel leaves such a row to
Python then.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, Final

from numba import types
from numba.extending import overload

from activedb.compiler import jit

__all__ = ["BUILTINS", "MATH"]

_LIMIT: Final = 2.0**63


def fits(value: Any) -> Any:
    """Raise unless a number has a place in 64 bits; the number."""


@overload(fits)
def _fits(value: Any) -> Any:
    if isinstance(value, types.Integer):

        def of_integer(value: Any) -> Any:
            return value

        return of_integer
    if isinstance(value, types.Float):

        def of_float(value: Any) -> Any:
            if not abs(value) < _LIMIT:
                raise OverflowError
            return value

        return of_float
    return None


@jit
def _int(value: Any) -> Any:
    return int(fits(value))


@jit
def _round(value: Any) -> Any:  # with a number of digits Python rounds in another way
    return round(fits(value))


@jit
def _floor(value: Any) -> Any:
    return math.floor(fits(value))


@jit
def _ceil(value: Any) -> Any:
    return math.ceil(fits(value))


@jit
def _sqrt(value: Any) -> Any:
    if value < 0:
        raise ValueError
    return math.sqrt(value)


BUILTINS: Final = {"int": _int, "round": _round}

MATH: Final = ModuleType("math")
"""What of the module `math` gives the same compiled, to the last bit."""

for _name in ("copysign", "e", "fabs", "inf", "isfinite", "isinf", "isnan", "nan", "pi", "tau"):
    setattr(MATH, _name, getattr(math, _name))
for _name, _function in (("floor", _floor), ("ceil", _ceil), ("trunc", _int), ("sqrt", _sqrt)):
    setattr(MATH, _name, _function)
