"""Tracing of a state access: one call with placeholders shows its operations for any event."""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import RLock
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

from activedb.errors import ActiveDBError
from activedb.functions import message_of, typed_text
from activedb.scheduling._operations import Operation, Read, Write
from activedb.scheduling._program import Program
from activedb.scheduling._tables import Computed, Parameter, Range, Ref, SharedTable

__all__ = ["NotTraceable", "traced"]

_TELLING = {"callable", "getattr", "hasattr", "id", "isinstance", "issubclass", "type"}
_TELLING |= {"attrgetter", "is_", "is_not"}  # of the module operator
_PACKAGE = __name__.partition(".")[0]
_EMPTY = CellType()
_collecting = RLock()
"""Held by the thread that has suspended the collection of garbage, of the whole process."""
_LOOKED: ContextVar[list[str]] = ContextVar("looked")
"""Reasons why the current call is not traceable.

They are stored since the state access may catch the errors.
"""


class NotTraceable(Exception):
    """The operations of a state access do not follow from one call; the text gives the reason."""


def _refuse(why: str) -> NoReturn:
    _LOOKED.get([]).append(why)
    raise NotTraceable(why)


class _Stand(Parameter):
    """`Parameter` that can only be passed on: any inspection of it raises `NotTraceable`."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return super().__getattribute__(name)
        _refuse(f"its operations depend on the value of {_name(self)}")


def _name(stand: Parameter) -> str:
    name: str = object.__getattribute__(stand, "name")
    return name


def _look(stand: _Stand, *args: object) -> NoReturn:
    _refuse(f"its operations depend on the value of {_name(stand)}")


_OPERATIONS = """
abs add and bool bytes call ceil complex contains delattr delitem dir divmod enter eq exit float
floor floordiv format fspath ge getitem gt hash iadd index int invert iter le len length_hint lshift
lt matmul mod mul ne neg next or pos pow radd rand rdivmod reduce reduce_ex repr reversed rfloordiv
rlshift rmatmul rmod rmul ror round rpow rrshift rshift rsub rtruediv rxor setattr setitem sizeof
str sub truediv trunc xor
"""

for _operation in _OPERATIONS.split():
    setattr(_Stand, f"__{_operation}__", _look)


class _TracedEvent(Mapping[str, Any]):
    """Parameters of an arbitrary event.

    Attributes
    ----------
    taken : dict of str to None
        Names of those that were taken, in order.
    """

    def __init__(self) -> None:
        self.taken: dict[str, None] = {}

    def __getitem__(self, name: str) -> Parameter:
        self.taken[name] = None
        return _Stand(name)

    def get(self, name: str, default: object = None) -> NoReturn:
        _refuse(f"its operations depend on whether there is a {name}")

    def __contains__(self, name: object) -> NoReturn:
        _refuse(f"its operations depend on whether there is a {name}")

    def __iter__(self) -> NoReturn:
        _refuse("its operations depend on which parameters there are")

    def __len__(self) -> NoReturn:
        _refuse("its operations depend on how many parameters there are")


def traced(program: Program, type_: str) -> tuple[tuple[Operation, ...], tuple[str, ...]]:
    """Return the operations that a state access makes for any event, and what it takes from one.

    The operations are templates: each `Parameter` in them must be replaced by an event's own value:
    as a key, as an argument, as a key or an argument of a computed key. The names are those of the
    parameters that an event must have, in the order in which the state access takes them.

    Parameters
    ----------
    program : Program
    type_ : str
        One of its event types.

    Raises
    ------
    NotTraceable
        If the state access inspects a parameter, or is of the short form.
    """
    looked: list[str] = []
    event = _TracedEvent()
    watched = _Watched(program.access(type_))
    token = _LOOKED.set(looked)
    try:
        with _calls_shown_to(watched.called):
            operations = program.operations(type_, event)
    except ActiveDBError as error:
        raise NotTraceable(str(error)) from error
    except Exception as error:  # any error caused by placeholders
        raise NotTraceable(looked[0] if looked else typed_text(error)) from error
    finally:
        _LOOKED.reset(token)
    if looked:
        raise NotTraceable(looked[0])
    for operation in operations:
        if not isinstance(operation, Read | Write):
            raise NotTraceable("it is of the short form, one function that reads and writes")
        keys = [ref.key for ref in operation.refs if isinstance(ref.key, Computed)]
        for taker in (operation, *keys):
            if _holds(taker.function) or any(map(_holds, _constants(taker.args))):
                name = getattr(taker.function, "__name__", "a function")
                raise NotTraceable(
                    f"{name} holds a parameter of the event, or is given one within something "
                    "else: give it as an argument of its own"
                )
    watched.check()
    templates = tuple(
        Read(
            tuple(map(_ref, operation.direct)), operation.function, tuple(map(_put, operation.args))
        )
        if isinstance(operation, Read)
        else _write(operation)
        for operation in operations
    )
    return templates, tuple(event.taken)


@contextmanager
def _calls_shown_to(called: Callable[[FrameType, str, object], Any]) -> Iterator[None]:
    """Show a function the calls that the block makes, and none that Python makes in between."""
    with _collecting:
        before, collects = sys.gettrace(), gc.isenabled()
        # It may call finalizers and callbacks of weak references at any instruction.
        gc.disable()
        sys.settrace(called)
        try:
            yield
        finally:
            sys.settrace(before)
            if collects:
                gc.enable()


class _Watched:
    """Code that a state access runs while it is traced, which could inspect values unnoticed.

    The functions of its operations are not run then.

    Parameters
    ----------
    access : object

    Raises
    ------
    NotTraceable
        If it is no Python function.
    """

    def __init__(self, access: object):
        if not isinstance(access, FunctionType):
            raise NotTraceable("its source is unavailable: it isn't a Python function")
        self._module = access.__globals__
        self._frames: set[FrameType] = set()
        self._caught: list[str] = []

    def called(self, frame: FrameType, event: str, arg: object) -> Any:
        """Note a call by the state access or a function that it calls, for ``sys.settrace``."""
        # The package may inspect placeholders, and so may what it calls in turn.
        is_package = str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
        is_within = frame.f_back in self._frames and not is_package
        if not is_within and frame.f_globals is not self._module:
            return None
        self._frames.add(frame)
        frame.f_trace_lines = False
        return self._seen

    def _seen(self, frame: FrameType, event: str, arg: Any) -> Any:
        # Functions in C tell a placeholder from a value by such an error, which may be caught.
        if event == "exception" and issubclass(arg[0], TypeError | AttributeError):
            self._caught.append(message_of(arg[1]))
        return self._seen

    def check(self) -> None:
        """Refuse code with `is`, `isinstance`, `match` and the like."""
        if self._caught:
            raise NotTraceable(f"its operations may depend on an error: {self._caught[0]}")
        for code in {frame.f_code for frame in self._frames}:
            _check_code(code)


def _check_code(code: CodeType) -> None:
    for instruction in dis.get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        is_none = name.startswith("POP_JUMP_") and name.endswith("_NONE")
        if name == "IS_OP" or is_none or name.startswith("MATCH_"):
            raise NotTraceable("its operations depend on the identity or type of a value")
        is_special = name in ("LOAD_ATTR", "LOAD_METHOD") and argument.startswith("__")
        if "LOAD" in name and (is_special or argument in _TELLING):
            raise NotTraceable(f"its operations may depend on {argument}")


def _cells(function: FunctionType) -> list[object]:
    return [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]


def _constants(args: tuple[Any, ...]) -> list[object]:
    return [arg for arg in args if not isinstance(arg, Parameter)]


def _holds(value: object, depth: int = 4) -> bool:
    """Return whether a value contains an event parameter, or the event, as far as can be seen."""
    if isinstance(value, Parameter | _TracedEvent):
        return True
    if depth == 0:
        return False
    held: list[object] = []
    if isinstance(value, FunctionType):
        held += [*(value.__defaults__ or ()), *_cells(value)]
    elif isinstance(value, MethodType):
        held += [value.__self__, value.__func__]
    elif isinstance(value, partial):
        held += [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, Mapping):
        held += [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        held += value
    elif not isinstance(value, type | ModuleType | SharedTable) and hasattr(value, "__dict__"):
        held += vars(value).values()
    return any(_holds(other, depth - 1) for other in held)


def _write(operation: Operation) -> Write:
    assert isinstance(operation, Write)
    return Write(
        _ref(operation.targets[0]),
        tuple(map(_ref, operation.direct)),
        operation.function,
        tuple(map(_put, operation.args)),
    )


def _ref(ref: Ref) -> Ref:
    """Return the reference with plain parameters, which compare and hash, for placeholders."""
    if isinstance(ref.key, Computed):
        reads = tuple(map(_ref, ref.key.reads))
        computed = Computed(ref.key.function, reads, tuple(map(_put, ref.key.args)))
        return Ref(ref.table, computed, ref.window_us)
    if isinstance(ref.key, Range):
        return Ref(ref.table, Range(_put(ref.key.low), _put(ref.key.high)))
    return Ref(ref.table, _put(ref.key), ref.window_us)


def _put(value: object) -> object:
    return Parameter(_name(value)) if isinstance(value, Parameter) else value
