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
_CALLED_BY_NAME = {"__call__", "__init__", "__new__"}


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
        self._operators_of: dict[type, list[FunctionType]] = {}

    def is_own(self, thing: Any) -> bool:
        """Return whether an object is a function that is read, as it is of the rule's file."""
        # Not compared by __module__, which functools.wraps changes.
        return isinstance(thing, FunctionType) and thing.__code__.co_filename == self._file

    def own_methods(self, of: type) -> list[tuple[str, FunctionType]]:
        """Return the methods of a class that are written in the rule's file, with their names."""
        return [
            (name, function)
            for base in of.__mro__
            for name, each in vars(base).items()
            for function in (each, *functions_in(each))
            if self.is_own(function)
        ]

    def _operators(self, of: type) -> list[FunctionType]:
        """Return the methods of a class that Python may call when an object is used."""
        if of not in self._operators_of:
            self._operators_of[of] = [
                method
                for name, method in self.own_methods(of)
                if name == "keys" or (name.startswith("__") and name not in _CALLED_BY_NAME)
            ]
        return self._operators_of[of]

    def operands(self, value: Value, node: ast.AST) -> None:
        """Record that an operator is used: it gets all its operands if it is of one of them."""
        if self._has_operators(value):
            self.value(value, node, "into an operator")

    def _has_operators(self, value: Value) -> bool:
        return any(
            (isinstance(atom, Known) and self._operators(type(atom.thing)))
            or (isinstance(atom, Items) and self._has_operators(atom.inside))
            for atom in value
        )

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
        """Return what escapes from a call of an object: what it returns, or may call itself."""
        if isinstance(function, Local) or self.is_own(function.thing):
            return self._follow(function, call)
        below = emitted(function.thing)
        if below is not None:
            self._found.raises_calls(call.node, below.__qualname__)
            return only(Known(below))
        operators = self._operators(type(function.thing))
        return frozenset(map(Known, functions_in(function.thing))).union(
            BoundFunction(Known(each), (only(function),)) for each in operators
        )
