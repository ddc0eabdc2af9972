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
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, Final, NamedTuple

import numba
from numba import njit, types
from numba.core import ir
from numba.core.dispatcher import Dispatcher
from numba.extending import overload

from activedb.columns.program._rows import EXACT_MAX
from activedb.function_sources import codes_in

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


PRODUCTS_MAX: Final = 2.0**26
"""Bound up to which products of two integers are exact as floats, which they are compared with."""

_SUMS_MAX: Final = 40  # of integers; each may double them

_OTHERS = frozenset(
    {"inv", "invert", "ilshift", "ipow", "irshift", "lshift", "pow", "rshift", "sum"}
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
        Bound on its integer arguments up to which all its integers are exact as floats.

    Raises
    ------
    NotCompilable
        If it uses an operation whose compiled result is known to differ.
    """

    def __init__(self, function: Callable[..., Any]):
        self._parts: list[tuple[FunctionType, Any]] = []  # all functions compiled with it
        self._sums: dict[object, int] = {}  # additions that one call of a part may make
        self._checked = checked(EXACT_MAX)
        self.dispatcher: Any = self._compile(function, ())
        # Each addition may double a number: the integers that it begins with must be smaller.
        self._doubled = 2.0 ** min(self._sums.get(function, 1), _SUMS_MAX)
        is_product = function in (operator.mul, operator.imul)
        self.whole_max = (PRODUCTS_MAX if is_product else EXACT_MAX) / self._doubled
        multiplies = any(
            _is_binary(instruction, "*")
            for part, _ in self._parts
            for instruction in _instructions(part.__code__)
        )
        limit = PRODUCTS_MAX / self._doubled if multiplies else self.whole_max
        if self._parts and limit < EXACT_MAX:  # compile again: it must also make small integers
            self._parts.clear()
            self._checked = checked(limit)
            self.dispatcher = self._compile(function, ())

    def check_types(self) -> None:
        """Check the inferred types for misuse of windows and of integers, after numba has compiled.

        Raises
        ------
        NotCompilable
            If a window is used other than by its length, its sum or in a loop (`_functions`), or if
            integers are multiplied in a loop or more than once, or variables are added in a loop:
            in Python integers are unbounded.
        """
        for part, dispatcher in self._parts:
            for compiled in dispatcher.overloads.values():
                misuse = misuse_of_array(compiled.type_annotation)
                if misuse is not None:
                    raise NotCompilable(f"{part.__qualname__} {misuse}")
        loops = any(
            instruction.opname.startswith("JUMP_BACKWARD")
            for part, _ in self._parts
            for instruction in _instructions(part.__code__)
        )
        for part, dispatcher in self._parts:
            large = any(
                isinstance(constant, int) and abs(constant) > self.whole_max
                for constant in part.__code__.co_consts
            )
            for compiled in dispatcher.overloads.values():
                annotation = compiled.type_annotation
                products = _count(annotation, operator.mul, operator.imul)
                if products:
                    self.whole_max = PRODUCTS_MAX / self._doubled
                if products and (loops or large or products > 1):
                    raise NotCompilable(
                        f"{part.__qualname__} multiplies whole numbers in a loop, or several times"
                    )
                sums = _count(annotation, *_SUMS, variable=loops)
                if sums and (loops or large):
                    raise NotCompilable(
                        f"{part.__qualname__} adds whole numbers in a loop, or large ones"
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
        for code in codes_in(function.__code__):
            _check_code(function, code)
        around = (*within, function)
        used = {
            name: function.__globals__[name]
            for name in function.__code__.co_names
            if name in function.__globals__
        }
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        names = {name: self._inside(value, around) for name, value in used.items()}
        names = {**self._checked.builtins, **names}
        names |= {"__builtins__": builtins, "__name__": function.__module__}
        closure = tuple(CellType(self._inside(value, around)) for value in cells)
        copy = FunctionType(function.__code__, names, function.__name__, None, closure)
        dispatcher = numba.njit(nogil=True, error_model="python")(copy)
        self._parts.append((function, dispatcher))
        instructions = list(_instructions(function.__code__))
        calls = sum(each.opname.startswith("CALL") for each in instructions)
        called = [
            self._sums.get(each, 1)
            for each in (*used.values(), *cells)
            if isinstance(each, FunctionType | BuiltinFunctionType | Dispatcher)
        ]
        sums = sum(_is_binary(each, "+", "-") for each in instructions)
        self._sums[function] = sums + calls * max(called, default=0)
        return dispatcher

    def _inside(self, value: Any, within: tuple[object, ...]) -> Any:
        """Return the compiled form of a value that a function refers to."""
        if isinstance(value, FunctionType | BuiltinFunctionType):
            return self._compile(value, within)
        if value is math:
            return self._checked.math
        if isinstance(value, ModuleType):
            raise NotCompilable(f"it uses the module {value.__name__}")
        _check_constant(value)
        return value


_SUMS: Final = (operator.add, operator.iadd, operator.sub, operator.isub)


def _count(annotation: Any, *functions: Any, variable: bool = False) -> int:
    """Return how many expressions yield an integer by one of the functions.

    With `variable`, those with a constant don't count: repeated, they take too long to overflow.
    """
    count = 0
    for expression, signature in annotation.calltypes.items():
        if getattr(expression, "op", None) not in ("binop", "inplace_binop"):
            continue
        operands = [annotation.typemap[v.name] for v in (expression.lhs, expression.rhs)]
        if variable and any(isinstance(each, types.Literal) for each in operands):
            continue
        count += expression.fn in functions and isinstance(signature.return_type, types.Integer)
    return count


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    for each in codes_in(code):
        yield from dis.get_instructions(each)


def _is_binary(instruction: dis.Instruction, *operators: str) -> bool:
    return instruction.opname == "BINARY_OP" and instruction.argrepr.rstrip("=") in operators


def _check_constant(value: Any) -> None:
    if type(value) is int and abs(value) > EXACT_MAX:
        raise NotCompilable(f"{value} is beyond 2**53, up to which floats are exact")


def _check_code(function: FunctionType, code: CodeType) -> None:
    """Refuse code that raises, or has unbounded integers, in Python but not when compiled."""
    name = _unassigned(code)
    if name is not None:
        raise NotCompilable(f"{name} may have no value where it is used")
    for constant in code.co_consts:
        _check_constant(constant)
    uses_math = any(function.__globals__.get(name) is math for name in code.co_names)
    for instruction in dis.get_instructions(code):
        if _is_binary(instruction, "**", "<<", ">>"):
            raise NotCompilable(f"{instruction.argrepr} overflows in another way when compiled")
        if instruction.opname == "UNARY_INVERT":
            raise NotCompilable("~ of a boolean gives something else when compiled")
        name = instruction.argval
        if instruction.opname == "LOAD_GLOBAL" and not _may_be_used(function, name):
            raise NotCompilable(f"{name} is not compiled")
        is_attribute = instruction.opname in ("LOAD_ATTR", "LOAD_METHOD")
        if uses_math and is_attribute and not hasattr(checked(EXACT_MAX).math, name):
            raise NotCompilable(f"math.{name} gives something else when compiled")


def _unassigned(code: CodeType) -> str | None:
    """Return a local variable that may be read before it has a value; compiled, it would be 0."""
    if "LOAD_FAST_CHECK" in dis.opmap:  # Python 3.12 or newer
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_FAST_CHECK":
                return str(instruction.argval)
        return None
    stars = sum(bool(code.co_flags & flag) for flag in (CO_VARARGS, CO_VARKEYWORDS))
    count = code.co_argcount + code.co_kwonlyargcount + stars
    parameters = frozenset(code.co_varnames[:count])
    instructions = list(dis.get_instructions(code))
    place = {each.offset: n for n, each in enumerate(instructions)}
    # Variables that have a value on every way to an instruction.
    assigned: dict[int, frozenset[str]] = {}
    todo = [(0, parameters)]
    # A handler may begin after any instruction of its block. Type checkers lack the attribute.
    handlers: Any = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    todo += [(place[handler.target], parameters) for handler in handlers]
    while todo:
        n, known = todo.pop()
        before = assigned.get(n)
        if before is not None:
            known &= before
            if known == before:
                continue
        assigned[n] = known
        each = instructions[n]
        if each.opname == "LOAD_FAST" and each.argval not in known:
            return str(each.argval)
        if each.opname == "STORE_FAST":
            known |= {each.argval}
        elif each.opname == "DELETE_FAST":
            known -= {each.argval}
        if each.opcode in dis.hasjrel:
            todo.append((place[each.argval], known))
        if each.opname not in _ENDS:
            todo.append((n + 1, known))
    return None


_ENDS: Final = frozenset(
    {"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "RAISE_VARARGS", "RERAISE"}
    | {"RETURN_VALUE"}
)


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
