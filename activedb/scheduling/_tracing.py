"""A state access called once, with stand-ins for parameters: what it does for any event."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType
from typing import Any, NoReturn

from activedb.errors import ActiveDBError
from activedb.scheduling._body import Body
from activedb.scheduling._operations import Operation, Read, Write
from activedb.scheduling._program import Program
from activedb.scheduling._tables import Computed, Parameter, Range, Ref

__all__ = ["NotTraceable", "parameters_of", "traced"]

_TELLING = frozenset({"callable", "getattr", "hasattr", "id", "isinstance", "issubclass", "type"})
_EMPTY = CellType()


class NotTraceable(Exception):
    """What a state access does cannot be told from one call; says why."""


def _refuse(self: _Stand, *args: object) -> NoReturn:
    raise NotTraceable(f"what is done depends on the value of {self.name}")


class _Stand(Parameter):
    """A `Parameter` that can be handed on, and nothing else: whoever looks at it is told so."""

    __slots__ = ()

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __hash__ = _refuse
    __bool__ = __str__ = __repr__ = __format__ = _refuse


class _TracedEvent(Mapping[str, Any]):
    """Parameters of no event in particular."""

    def __getitem__(self, name: str) -> Parameter:
        return _Stand(name)

    def get(self, name: str, default: object = None) -> NoReturn:
        raise NotTraceable(f"what is done depends on whether there is a {name}")

    def __contains__(self, name: object) -> NoReturn:
        raise NotTraceable(f"what is done depends on whether there is a {name}")

    def __iter__(self) -> NoReturn:
        raise NotTraceable("what is done depends on which parameters there are")

    def __len__(self) -> NoReturn:
        raise NotTraceable("what is done depends on how many parameters there are")


def traced(program: Program, type_: str) -> tuple[Operation, ...]:
    """The operations that a state access makes of any event: templates.

    Wherever they hold a `Parameter`, an event's own value is to be put: as a key, as an argument,
    as a key or an argument of a computed key.

    Parameters
    ----------
    program : Program
    type_ : str
        One of its event types.

    Raises
    ------
    NotTraceable
        If the state access looks at a parameter, or is of the short form.
    """
    _check_code(program.access(type_), set())
    try:
        operations = program.operations(type_, _TracedEvent())
    except ActiveDBError as error:
        raise NotTraceable(str(error)) from error
    except TypeError as error:
        raise NotTraceable(f"what is done depends on a parameter ({error})") from error
    for operation in operations:
        if isinstance(operation, Body):
            raise NotTraceable("it is of the short form, one function that reads and writes")
        assert isinstance(operation, Read | Write)
        _check_function(operation.function)
        for ref in operation.refs():
            if isinstance(ref.key, Computed):
                _check_function(ref.key.function)
    return tuple(
        Read(
            tuple(map(_ref, operation.direct)), operation.function, tuple(map(_put, operation.args))
        )
        if isinstance(operation, Read)
        else _write(operation)
        for operation in operations
    )


def parameters_of(operations: tuple[Operation, ...]) -> Iterator[Parameter]:
    """The parameters that templates take of an event, each as often as it occurs."""
    for operation in operations:
        assert isinstance(operation, Read | Write)
        for ref in (*operation.targets, *operation.direct):
            yield from _of_ref(ref)
        yield from (arg for arg in operation.args if isinstance(arg, Parameter))


def _of_ref(ref: Ref) -> Iterator[Parameter]:
    if isinstance(ref.key, Parameter):
        yield ref.key
    elif isinstance(ref.key, Computed):
        for read in ref.key.reads:
            yield from _of_ref(read)
        yield from (arg for arg in ref.key.args if isinstance(arg, Parameter))


def _check_code(access: Callable[..., Any], seen: set[object]) -> None:
    """Refuse what asks for more than equality: `is`, `isinstance` and the like are silent.

    In what it calls, too, as far as names tell.
    """
    if not isinstance(access, FunctionType):
        raise NotTraceable("it is no function of Python, whose code could be looked at")
    if access in seen:
        return
    seen.add(access)
    code = access.__code__
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if name == "IS_OP" or (name.startswith("POP_JUMP_") and name.endswith("_NONE")):
            raise NotTraceable("what is done depends on whether something is something")
        if "LOAD" in name and instruction.argval in _TELLING:
            raise NotTraceable(f"what is done may depend on what {instruction.argval} tells")
    for name in code.co_names:
        called = access.__globals__.get(name)
        if isinstance(called, FunctionType):
            _check_code(called, seen)


def _check_function(function: Callable[..., Any] | None) -> None:
    """Refuse a function that keeps parameters of the event, instead of being given them."""
    held: list[object] = []
    while isinstance(function, partial):
        held += [*function.args, *function.keywords.values()]
        function = function.func
    if isinstance(function, FunctionType):
        held += function.__defaults__ or ()
        held += [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
    if any(isinstance(value, Parameter | _TracedEvent) for value in held):
        name = getattr(function, "__name__", repr(function))
        raise NotTraceable(f"{name} holds a parameter of the event: give it as an argument")


def _write(operation: Operation) -> Write:
    assert isinstance(operation, Write)
    return Write(
        _ref(operation.targets[0]),
        tuple(map(_ref, operation.direct)),
        operation.function,
        tuple(map(_put, operation.args)),
    )


def _ref(ref: Ref) -> Ref:
    """With plain parameters, which compare and hash, for stand-ins, which do not."""
    if isinstance(ref.key, Computed):
        reads = tuple(map(_ref, ref.key.reads))
        computed = Computed(ref.key.function, reads, tuple(map(_put, ref.key.args)))
        return Ref(ref.table, computed, ref.window_us)
    if isinstance(ref.key, Range):
        return Ref(ref.table, Range(_put(ref.key.low), _put(ref.key.high)))
    return Ref(ref.table, _put(ref.key), ref.window_us)


def _put(value: object) -> object:
    return Parameter(value.name) if isinstance(value, Parameter) else value
