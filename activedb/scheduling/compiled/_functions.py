"""Users' functions, as compiled kernels call them, and which of them may be compiled."""

from __future__ import annotations

import builtins
import dis
import math
import operator
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final

import numba
from numba import types
from numba.core.dispatcher import Dispatcher
from numba.extending import overload

from activedb.scheduling.compiled._checked import BUILTINS, MATH
from activedb.scheduling.compiled._rows import EXACT_MAX

__all__ = ["BACK", "NotCompilable", "compilable", "key_of", "multiplies", "number_of"]

BACK: Final = -1
"""Given for what a kernel leaves to Python: what raises, gives no number, or a very large one."""

_BUILTINS = frozenset(
    {"abs", "bool", "enumerate", "float", "int", "len", "max", "min", "range", "round", "zip"}
)


class NotCompilable(Exception):
    """A function has to stay in Python; says why."""


def number_of(value: Any) -> Any:
    """What a function gave, in a kernel: 0 and a float; 1 for None; `BACK`."""


@overload(number_of)
def _number_of(value: Any) -> Any:
    if isinstance(value, types.NoneType):
        return lambda value: (1, 0.0)
    if isinstance(value, types.Optional):

        def of_optional(value: Any) -> Any:
            if value is None:
                return 1, 0.0
            number = 1.0 * value
            if not abs(number) <= EXACT_MAX:
                return BACK, 0.0
            return 0, number

        return of_optional
    if isinstance(value, types.Number | types.Boolean):

        def of_number(value: Any) -> Any:
            number = 1.0 * value
            if not abs(number) <= EXACT_MAX:
                return BACK, 0.0
            return 0, number

        return of_number
    return None


def key_of(value: Any, size: int) -> Any:
    """What a function gave as a key, in a kernel: 0 and the key; `BACK`."""


@overload(key_of)
def _key_of(value: Any, size: Any) -> Any:
    if not isinstance(value, types.Integer):
        return lambda value, size: (BACK, 0)

    def of_integer(value: Any, size: Any) -> Any:
        if value < 0 or value >= size:
            return BACK, 0
        return 0, value

    return of_integer


def multiplies(function: Callable[..., Any]) -> bool:
    """Whether a function may make whole numbers out of proportion to those it is given."""
    if function in (operator.mul, operator.imul):
        return True
    if not isinstance(function, FunctionType):
        return False
    instructions = dis.get_instructions(function.__code__)
    if any(i.opname == "BINARY_OP" and i.argrepr.rstrip("=") == "*" for i in instructions):
        return True
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values = [function.__globals__.get(name) for name in function.__code__.co_names]
    return any(isinstance(v, FunctionType) and multiplies(v) for v in (*cells, *values))


def compilable(function: Callable[..., Any]) -> Any:
    """A function as numba compiles it, such that it gives what it gives in Python.

    Functions of Python that it calls are compiled with it. Whether numba can do it shows only when
    it is first called.

    Raises
    ------
    NotCompilable
        If it uses what is known to give something else when compiled.
    """
    return _compilable(function, ())


def _compilable(function: Callable[..., Any], within: tuple[object, ...]) -> Any:
    if isinstance(function, Dispatcher):
        return function
    if isinstance(function, BuiltinFunctionType):
        known = function.__module__ in ("_operator", "builtins")
        if known and function.__name__.lstrip("i") not in ("pow", "lshift", "sum"):
            return function
        raise NotCompilable(f"{function!r} is not compiled")
    if not isinstance(function, FunctionType):
        raise NotCompilable(f"{function!r} is no plain function")
    if function in within:
        raise NotCompilable(f"{function.__qualname__} calls itself")
    if function.__defaults__ or function.__kwdefaults__:
        raise NotCompilable(f"{function.__qualname__} has default values")
    code = function.__code__
    _check_code(function, code)
    around = (*within, function)
    names = {}
    for name in code.co_names:
        if name in function.__globals__:
            names[name] = _inside(function.__globals__[name], around)
        elif name in BUILTINS:
            names[name] = BUILTINS[name]
    if any(cell == CellType() for cell in function.__closure__ or ()):
        raise NotCompilable(f"{function.__qualname__} refers to what is not there yet")
    cells = tuple(
        CellType(_inside(cell.cell_contents, around)) for cell in function.__closure__ or ()
    )
    copy = FunctionType(
        code,
        {"__builtins__": builtins, "__name__": function.__module__, **names},
        function.__name__,
        None,
        cells,
    )
    return numba.njit(nogil=True, error_model="python")(copy)


def _inside(value: Any, within: tuple[object, ...]) -> Any:
    """What a function refers to."""
    if isinstance(value, FunctionType | BuiltinFunctionType):
        return _compilable(value, within)
    if value is math:
        return MATH
    if isinstance(value, ModuleType):
        raise NotCompilable(f"it uses the module {value.__name__}")
    return value


def _check_code(function: FunctionType, code: CodeType) -> None:
    """Refuse what raises in Python, or gives whole numbers without end, and not compiled."""
    uses_math = any(function.__globals__.get(name) is math for name in code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "BINARY_OP" and instruction.argrepr.rstrip("=") in ("**", "<<"):
            raise NotCompilable(f"{instruction.argrepr} overflows in another way when compiled")
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL" and not _may_be_used(function, name):
            raise NotCompilable(f"{name} is not compiled")
        is_attribute = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if uses_math and is_attribute and not hasattr(MATH, name):
            raise NotCompilable(f"math.{name} gives something else when compiled")


def _may_be_used(function: FunctionType, name: str) -> bool:
    """Whether a global name means the same compiled; of builtins only those known to."""
    if name in function.__globals__ or not hasattr(builtins, name):
        return True
    value = getattr(builtins, name)
    if name == "sum":
        return sys.version_info < (3, 12)  # later ones compensate for rounding
    return name in _BUILTINS or (isinstance(value, type) and issubclass(value, BaseException))
