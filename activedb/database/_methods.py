"""Functions whose calls and returns are events."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from activedb.errors import DefinitionError
from activedb.functions import checked_function, checked_result

__all__ = ["RaiseEvent", "emitting"]

P = ParamSpec("P")
T = TypeVar("T")

RaiseEvent = Callable[[str, str, Mapping[str, Any]], None]
"""Raises an event of a kind, a name and parameters, in the transaction open on this thread."""


def emitting(function: Callable[P, T], raise_event: RaiseEvent) -> Callable[P, T]:
    """A function that raises ``call`` before it does what `function` does, and ``return`` after.

    What a rule raises on its call keeps `function` from being called. If `function` raises, it
    does not return.

    Raises
    ------
    DefinitionError
        If it is no plain function, or one that only returns later (a coroutine, a generator).
    """
    if not inspect.isfunction(function):
        raise DefinitionError(
            f"emits decorates a function or method, not {function!r}; put it below @property, "
            f"@classmethod and @staticmethod"
        )
    checked_function(function, f"{function.__qualname__}, which emits decorates,")
    name = function.__qualname__
    signature = inspect.signature(function)
    # The receiver of a method is no parameter of the event.
    receiver = _receiver(function, signature)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        bound = signature.bind(*args, **kwargs)  # raises TypeError as the call itself would
        bound.apply_defaults()
        params = {key: value for key, value in bound.arguments.items() if key != receiver}
        raise_event("call", name, params)
        result: T = checked_result(function(*args, **kwargs), f"{name}, which emits decorates,")
        raise_event("return", name, {**params, "result": result})
        return result

    return call


def _receiver(function: Callable[..., Any], signature: inspect.Signature) -> str | None:
    """The first parameter of what is defined in a class, if it is called as convention has it."""
    first = next(iter(signature.parameters), None)
    in_class = "." in function.__qualname__.rpartition("<locals>.")[2]
    return first if in_class and first in ("self", "cls") else None
