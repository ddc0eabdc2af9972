"""Functions that users pass in: each must do its work when it is called, and may raise anything.

The return value of an ``async def`` or of a function with ``yield`` has done no work yet, and is
true as a condition. Such functions are refused when they are passed in; those that can be
recognised only by their result are refused when they are called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CoroutineType,
    FunctionType,
    GeneratorType,
)
from typing import Any, TypeVar

from activedb.errors import ActiveDBError, DefinitionError

__all__ = [
    "LAZY_TYPES",
    "checked_function",
    "checked_result",
    "error_text",
    "message_of",
    "typed_text",
]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

LAZY_TYPES = frozenset((CoroutineType, GeneratorType, AsyncGeneratorType))
"""Types of results that have done no work yet; checked in hot paths before `checked_result`."""
_LAZY_FLAGS = inspect.CO_COROUTINE | inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_DEPTH_MAX = 100  # of functions around functions


def checked_function(function: F, what: str, *, may_yield: bool = False) -> F:
    """Return `function`, which is called to do something at once.

    The check looks through `functools.partial`, methods, caches, and callable objects. A decorated
    function may run the coroutine itself; `checked_result` sees whether it does.

    Parameters
    ----------
    what : str
        Name of the function for the message: "the action of rule x".
    may_yield : bool
        Whether the result is iterated over at once, so that the function may be a generator.

    Raises
    ------
    DefinitionError
        If it is a coroutine function, or a generator function.
    """
    if type(function) is FunctionType and not (
        function.__code__.co_flags & _LAZY_FLAGS or function.__dict__  # and it is not marked as one
    ):
        return function  # the common case
    kind = _kind_of(function)
    if kind is None or (may_yield and kind == "a generator function (yield)"):
        return function
    raise DefinitionError(
        f"{what} is {kind}: calling it would do nothing. Give a plain function, def without async "
        f"and yield; it can run asynchronous code with asyncio.run(…)"
    )


def checked_result(value: T, what: str, *, may_yield: bool = False) -> T:
    """Return the result of a user's function, unless it is still to be run.

    Raises
    ------
    DefinitionError
        If it is a coroutine, a generator or something else to be awaited; it is closed.
    """
    if value is None or value is True or value is False:
        return value
    is_generator = isinstance(value, GeneratorType)
    if is_generator and may_yield:
        return value
    is_lazy = is_generator or isinstance(value, CoroutineType | AsyncGeneratorType)
    if not is_lazy and not hasattr(type(value), "__await__"):
        return value
    end = getattr(value, "close", None) or getattr(value, "cancel", None)
    if end is not None:
        end()
    raise DefinitionError(
        f"{what} has returned {'a generator' if is_generator else 'something to be awaited'} "
        f"({type(value).__name__}), so it has done nothing: give a plain function, def without "
        f"async and yield; it can run asynchronous code with asyncio.run(…)"
    )


def message_of(error: BaseException) -> str:
    """Return the message of an error, even if its class cannot give one."""
    try:
        return str(error)
    except Exception:  # of a class of the user's
        return "its message cannot be read"


def typed_text(error: BaseException) -> str:
    """Return the type and the message of an error; the message of a `KeyError` is only its key."""
    name, message = type(error).__name__, message_of(error)
    return f"{name}: {message}" if message else name


def error_text(error: BaseException) -> str:
    """Return `typed_text`, or the message alone of an `ActiveDBError`, which explains itself."""
    return (isinstance(error, ActiveDBError) and message_of(error)) or typed_text(error)


def _kind_of(function: Any) -> str | None:
    """Name the kind of a function that does no work when it is called; None for other functions."""
    for _ in range(_DEPTH_MAX):
        if inspect.iscoroutinefunction(function):
            return "a coroutine function (async def)"
        if inspect.isasyncgenfunction(function):
            return "an asynchronous generator function (async def with yield)"
        if inspect.isgeneratorfunction(function):
            return "a generator function (yield)"
        inner = _inside(function)
        if inner is None:
            return None
        function = inner
    return None


def _inside(function: Any) -> Any:
    """Return the function that another one wraps, if it can be determined; else None."""
    if isinstance(function, functools.partial):
        return function.func
    if inspect.ismethod(function):
        return function.__func__
    if not callable(function) or isinstance(function, type | FunctionType | BuiltinFunctionType):
        return None
    wrapped = getattr(function, "__wrapped__", None)
    call = inspect.getattr_static(type(function), "__call__", None)
    if inspect.isfunction(call):
        return call
    return wrapped if callable(wrapped) else None
