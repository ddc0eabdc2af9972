"""Compilation of users' functions for the kernels, and the checks whether it is allowed.

Compiled, a window is a NumPy array without bounds checks; in Python it is a list. Operations that
differ between the two, or could read memory outside the window, stay in Python. A function may take
the length or sum of a window, and loop over it.
"""

from __future__ import annotations

import builtins
import dis
import math
import operator
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import numba
from numba import njit, types
from numba.core import ir
from numba.core.dispatcher import Dispatcher
from numba.extending import overload

from activedb.columns.program._rows import EXACT_MAX

__all__ = ["BACK", "Compiled", "NotCompilable", "key_of", "misuse_of_array", "number_of"]


_WITHOUT_HARM: Final = frozenset(
    {"getiter", "iternext", "pair_first", "pair_second", "cast", "phi"}
)
_TYPES: Any = types  # some are unknown to type checkers
_TAKES_ARRAYS: Final = (len, sum, enumerate, zip)  # sum: see `_functions`


def misuse_of_array(annotation: Any) -> str | None:
    """Return the forbidden array operation of a compiled function; None if there is none.

    Parameters
    ----------
    annotation : numba's TypeAnnotation
        Blocks of the function, and the types of its variables.
    """
    for block in annotation.blocks.values():
        for statement in block.body:
            if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.DelItem):
                return "changes a list or an array"
            if not isinstance(statement, ir.Assign) or not isinstance(statement.value, ir.Expr):
                continue
            expression = statement.value
            if not any(_is_array(annotation, v) for v in _variables(expression)):
                continue
            if expression.op in _WITHOUT_HARM:
                continue
            if expression.op == "call":
                if _may_be_called(annotation.typemap[expression.func.name]):
                    continue
                return "passes a window, or an array, to an unknown function"
            if expression.op in ("getitem", "static_getitem", "typed_getitem"):
                return "takes a part of a window, or of an array, by its number"
            return f"does {expression.op} with a window, or an array"
    return None


def _variables(expression: ir.Expr) -> Iterator[ir.Var]:
    variables: Any = expression.list_vars
    found: list[ir.Var] = variables()
    return iter(found)


def _is_array(annotation: Any, variable: ir.Var) -> bool:
    known = annotation.typemap.get(variable.name)
    if isinstance(known, _TYPES.BaseTuple):
        return any(isinstance(part, _TYPES.Buffer) for part in known)
    return isinstance(known, _TYPES.Buffer)


def _may_be_called(function: Any) -> bool:
    if isinstance(function, types.Dispatcher):
        return True  # checked separately
    return getattr(function, "typing_key", None) in _TAKES_ARRAYS


BACK: Final = -1
"""Status of a row that a kernel leaves to Python: an exception, a non-number, or a huge number."""

_BUILTINS = frozenset(
    {"abs", "bool", "enumerate", "float", "int", "len", "max", "min", "range", "round", "zip"}
)


PRODUCTS_MAX: Final = 2.0**31
"""Bound up to which the product of two integers fits in 64 bits."""

_WHOLE_MAX: Final = 2.0**62

_OTHERS = frozenset(
    {"inv", "invert", "ilshift", "ipow", "lshift", "pow", "sum"}
    | {"contains", "countOf", "delitem", "getitem", "indexOf", "not_", "setitem", "truth"}
)
"""Builtin functions whose compiled results differ, some of them only for windows."""


class NotCompilable(Exception):
    """Error for a function that must stay in Python; the message gives the reason."""


def number_of(value: Any) -> Any:
    """Convert a function's result in a kernel: 0 and a float; 1 for None; or `BACK`."""


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
    """Convert a function's result to a key in a kernel: 0 and the key; or `BACK`."""


@overload(key_of)
def _key_of(value: Any, size: Any) -> Any:
    if not isinstance(value, types.Integer):
        return lambda value, size: (BACK, 0)

    def of_integer(value: Any, size: Any) -> Any:
        if value < 0 or value >= size:
            return BACK, 0
        return 0, value

    return of_integer


class Compiled:
    """User's function compiled by numba so that its results equal those in Python.

    Python functions that it calls are compiled with it. Whether numba can compile it shows only at
    the first call.

    Parameters
    ----------
    function : callable

    Attributes
    ----------
    dispatcher : object
        Callable for numba code.
    whole_max : float
        Bound on its integer arguments up to which all its integers fit in 64 bits.

    Raises
    ------
    NotCompilable
        If it uses an operation whose compiled result is known to differ.
    """

    def __init__(self, function: Callable[..., Any]):
        self._parts: list[tuple[FunctionType, Any]] = []  # all functions compiled with it
        self._checked = checked(_WHOLE_MAX)
        self.dispatcher: Any = self._compile(function, ())
        self.whole_max = EXACT_MAX
        if function in (operator.mul, operator.imul):
            self.whole_max = PRODUCTS_MAX
        if any(
            instruction.opname == "BINARY_OP" and instruction.argrepr.rstrip("=") == "*"
            for part, _ in self._parts
            for instruction in dis.get_instructions(part)
        ):  # compile again with a tighter limit: integers it produces must be safe to multiply
            self._parts.clear()
            self._checked = checked(PRODUCTS_MAX)
            self.dispatcher = self._compile(function, ())

    def check_types(self) -> None:
        """Check the inferred types for misuse of windows and of integers, after numba has compiled.

        Raises
        ------
        NotCompilable
            If a window is used other than by its length, its sum or in a loop (`_functions`), or if
            integers are multiplied in a loop or more than once: in Python integers are unbounded.
        """
        for part, dispatcher in self._parts:
            for compiled in dispatcher.overloads.values():
                misuse = misuse_of_array(compiled.type_annotation)
                if misuse is not None:
                    raise NotCompilable(f"{part.__qualname__} {misuse}")
        loops = any(
            instruction.opname.startswith("JUMP_BACKWARD")
            for part, _ in self._parts
            for instruction in dis.get_instructions(part)
        )
        for part, dispatcher in self._parts:
            large = any(
                isinstance(constant, int) and abs(constant) > PRODUCTS_MAX
                for constant in part.__code__.co_consts
            )
            for compiled in dispatcher.overloads.values():
                products = sum(map(_is_whole_product, compiled.type_annotation.calltypes.items()))
                if products:
                    self.whole_max = PRODUCTS_MAX
                if products and (loops or large or products > 1):
                    raise NotCompilable(
                        f"{part.__qualname__} multiplies whole numbers in a loop, or several times"
                    )

    def _compile(self, function: Callable[..., Any], within: tuple[object, ...]) -> Any:
        if isinstance(function, Dispatcher):
            return function
        if isinstance(function, BuiltinFunctionType):
            known = function.__module__ in ("_operator", "builtins")
            if known and function.__name__ not in _OTHERS:
                return function
            raise NotCompilable(f"{function!r} is not compiled")
        if not isinstance(function, FunctionType):
            raise NotCompilable(f"{function!r} is not a plain function")
        name = function.__qualname__
        if function in within:
            raise NotCompilable(f"{name} calls itself")
        if function.__defaults__ or function.__kwdefaults__:
            raise NotCompilable(f"{name} has default values")
        if any(cell == CellType() for cell in function.__closure__ or ()):
            raise NotCompilable(f"{name} is not defined yet")
        _check_code(function, function.__code__)
        around = (*within, function)
        known_names = function.__globals__
        names = {
            name: self._inside(known_names[name], around)
            for name in function.__code__.co_names
            if name in known_names
        }
        names = {**self._checked.builtins, **names}
        names |= {"__builtins__": builtins, "__name__": function.__module__}
        cells = [
            CellType(self._inside(c.cell_contents, around)) for c in function.__closure__ or ()
        ]
        copy = FunctionType(function.__code__, names, function.__name__, None, tuple(cells))
        dispatcher = numba.njit(nogil=True, error_model="python")(copy)
        self._parts.append((function, dispatcher))
        return dispatcher

    def _inside(self, value: Any, within: tuple[object, ...]) -> Any:
        """Return the compiled form of a value that a function refers to."""
        if isinstance(value, FunctionType | BuiltinFunctionType):
            return self._compile(value, within)
        if value is math:
            return self._checked.math
        if isinstance(value, ModuleType):
            raise NotCompilable(f"it uses the module {value.__name__}")
        return value


def _is_whole_product(called: tuple[Any, Any]) -> bool:
    """Return whether a typed numba expression is a product of integers."""
    expression, signature = called
    if getattr(expression, "op", None) not in ("binop", "inplace_binop"):
        return False
    is_product = expression.fn in (operator.mul, operator.imul)
    return is_product and isinstance(signature.return_type, types.Integer)


def _check_code(function: FunctionType, code: CodeType) -> None:
    """Refuse code that raises, or has unbounded integers, in Python but not when compiled."""
    uses_math = any(function.__globals__.get(name) is math for name in code.co_names)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "BINARY_OP" and instruction.argrepr.rstrip("=") in ("**", "<<"):
            raise NotCompilable(f"{instruction.argrepr} overflows in another way when compiled")
        if instruction.opname == "UNARY_INVERT":
            raise NotCompilable("~ of a boolean gives something else when compiled")
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL" and not _may_be_used(function, name):
            raise NotCompilable(f"{name} is not compiled")
        is_attribute = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if uses_math and is_attribute and not hasattr(checked(_WHOLE_MAX).math, name):
            raise NotCompilable(f"math.{name} gives something else when compiled")


def _may_be_used(function: FunctionType, name: str) -> bool:
    """Return whether a global name means the same when compiled; only some builtins do."""
    if name in function.__globals__ or not hasattr(builtins, name):
        return True
    value = getattr(builtins, name)
    if name == "sum":
        return sys.version_info < (3, 12)  # later versions compensate for rounding
    return name in _BUILTINS or (isinstance(value, type) and issubclass(value, BaseException))


# -- replacements for builtins whose compiled results would differ from Python's -------------------

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
