"""Functions whose calls and returns raise events."""

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
"""Callable that raises an event, given its kind, name and parameters, on the calling thread."""


def emitting(function: Callable[P, T], raise_event: RaiseEvent) -> Callable[P, T]:
    """Return a function that raises ``call``, calls `function`, and raises ``return``.

    An error raised by a rule on the call prevents `function` from being called. If `function`
    raises, there is no ``return`` event.

    Raises
    ------
    DefinitionError
        If `function` is not a plain function, or one that returns before its work is done (a
        coroutine, a generator).
    """
    if not inspect.isfunction(function):
        raise DefinitionError(
            f"emits decorates a function or method, not {function!r}; put it below @property, "
            f"@classmethod and @staticmethod"
        )
    checked_function(function, f"{function.__qualname__}, which emits decorates,")
    name = function.__qualname__
    signature = inspect.signature(function)
    # The receiver of a method is not a parameter of the event.
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
    """Return the first parameter of a method, if it has the conventional name; else None."""
    first = next(iter(signature.parameters), None)
    in_class = "." in function.__qualname__.rpartition("<locals>.")[2]
    return first if in_class and first in ("self", "cls") else None
