"""Escape analysis: values that reach code which is not read.

A transaction or a database that escapes leaves the effects of the rule open. A function that
escapes may be called there, so it is read, with what is known of its arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeAlias

from activedb.analysis._objects import emitted, functions_in, is_database
from activedb.analysis._recorder import Recorder
from activedb.analysis._values import (
    TRANSACTION,
    Atom,
    BoundFunction,
    CallSite,
    Items,
    Known,
    Local,
    Method,
    Value,
    only,
)

__all__ = ["EscapeAnalysis", "Follow"]

Follow: TypeAlias = Callable[[Known | Local, CallSite], Value]
"""Reader of the body of a function that is called; returns the value it may return."""


class EscapeAnalysis:
    """Record of what escapes.

    Parameters
    ----------
    found : Recorder
    file : str
        Functions of this file are read; all others are not.
    follow : Follow
    """

    def __init__(self, found: Recorder, file: str, follow: Follow):
        self._found = found
        self._file = file
        self._follow = follow
        self._escaping: set[Atom] = set()

    def is_own(self, thing: Any) -> bool:
        """Return whether an object is a function that is read, as it is of the rule's file."""
        # Not compared by __module__, which functools.wraps changes.
        return isinstance(thing, FunctionType) and thing.__code__.co_filename == self._file

    def own_methods(self, of: type) -> list[FunctionType]:
        """Return the methods of a class that are written in the rule's file."""
        found = [each for base in of.__mro__ for each in vars(base).values()]
        found += [function for each in found for function in functions_in(each)]
        return [each for each in found if self.is_own(each)]

    def arguments(self, call: CallSite, to: str = "elsewhere") -> None:
        """Record that the arguments of a call escape."""
        for value in call.arguments:
            self.value(value, call.node, to)

    def value(self, value: Value, node: ast.AST, to: str = "elsewhere") -> None:
        """Record that a value escapes at a node of the source."""
        for atom in value:
            self._atom(atom, CallSite(node), to)

    def _atom(self, atom: Atom, call: CallSite, to: str) -> None:
        """Record that an atom escapes and, if it is a function, may be called."""
        match atom:
            case Items(inside=inside):
                self.value(inside, call.node, to)
            case BoundFunction(function=function):
                call = call.binding(atom)
                self.arguments(call, to)
                self._atom(function, call, to)
            case Method(of=kind):
                self._found.unresolved(call.node, f"the {kind} goes {to}")
            case Known(thing=thing) if is_database(thing):
                self._found.unresolved(call.node, f"the database goes {to}")
            case Known() | Local() if atom not in self._escaping:
                self._escaping.add(atom)  # it may hold or return itself
                self.value(self._called(atom, call), call.node, to)
                self._escaping.remove(atom)
            case _ if atom == TRANSACTION:
                self._found.unresolved(call.node, f"the transaction goes {to}")

    def _called(self, function: Known | Local, call: CallSite) -> Value:
        """Return what escapes from a call of an object: what it returns, or calls itself."""
        if isinstance(function, Local) or self.is_own(function.thing):
            return self._follow(function, call)
        below = emitted(function.thing)
        if below is not None:
            self._found.raises_calls(call.node, below.__qualname__)
            return only(Known(below))
        return frozenset(map(Known, functions_in(function.thing)))
