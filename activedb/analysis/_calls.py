"""Interpretation of calls in a rule's source: transactions, databases, statements, helpers."""

from __future__ import annotations

import ast
import functools
from abc import ABC, abstractmethod
from types import BuiltinFunctionType, FunctionType
from typing import Any

from activedb.analysis import _objects
from activedb.analysis._recorder import Recorder
from activedb.analysis._statements import built, chained, is_of_sqlalchemy, of_table
from activedb.analysis._tables import table_of
from activedb.analysis._values import (
    DATA,
    TRANSACTION,
    UNKNOWN,
    Atom,
    Bound,
    Columns,
    Items,
    Known,
    Local,
    Method,
    Sql,
    Value,
)

__all__ = ["Calls"]

_NOTHING: Value = frozenset()
_DATA: Value = frozenset((DATA,))
_UNKNOWN: Value = frozenset((UNKNOWN,))

# Attributes of a transaction and of a database that touch no table and raise no event.
_QUIET = {
    *(
        "abort",
        "cancel",
        "commit",
        "deferred",
        "id",
        "is_rollback_only",
        "join",
        "label",
        "path",
        "rule",
    ),
    *("state", "timestamp"),
}
_QUIET_OF_DATABASE = {
    *("counters", "locks", "metadata", "rule_latency_s", "settings", "streams", "join"),
}
_TRANSACTIONS = {"subtransaction", "with_timeout"}
_PASS_ON = {"dict", "enumerate", "frozenset", "iter", "list", "map", "filter", "next", "reversed"}
_PASS_ON |= {"set", "sorted", "tuple", "zip", "min", "max"}
_HIDING = {"compile", "eval", "exec", "globals", "locals", "__import__"}


class Calls(ABC):
    """Interpreter of calls that records their effects.

    Parameters
    ----------
    found : Recorder
    file : str
        Functions of this file are followed. Passing the transaction to any other is unresolved.
    """

    def __init__(self, found: Recorder, *, file: str):
        self.found = found
        self._file = file
        self.read: dict[tuple[Any, ...], Value] = {}
        self.kept: list[Any] = []

    @abstractmethod
    def follow(
        self,
        function: Known | Local,
        args: list[Value],
        named: dict[str, Value],
        at: ast.AST,
        *,
        is_spread: bool = False,
    ) -> Value:
        """Read the body of a function called with these arguments and return its value."""

    def call_method(
        self,
        atom: Atom,
        name: str,
        args: list[Value],
        named: dict[str, Value],
        node: ast.Call,
        is_used: bool,
        is_spread: bool,
    ) -> Value:
        """Return the value of ``atom.name(…)``."""
        if atom == TRANSACTION:
            return self._of_transaction(name, args, named, node, is_used)
        if isinstance(atom, Method):
            self.found.unresolved(node, f"{atom.name} of a {atom.of} is not followed")
            return _UNKNOWN
        if isinstance(atom, Sql):
            return frozenset((chained(atom, name, args, named),))
        if isinstance(atom, Columns):
            return frozenset((Sql(reads=frozenset((atom.table,))),))
        if isinstance(atom, Items):
            inside = atom.inside or _UNKNOWN
            self._pass(node, args, named)
            return frozenset((Items(inside),)) if name in ("items", "values", "keys") else inside
        if isinstance(atom, Known):
            return self._of_known(atom.thing, name, args, named, node, is_spread)
        if name == "signal" and args:
            self.found.raises_signal(node, args[0])
        self._pass(node, args, named)
        return _DATA if atom == DATA else _UNKNOWN

    def call_atom(
        self,
        atom: Atom,
        args: list[Value],
        named: dict[str, Value],
        node: ast.Call,
        is_used: bool,
        is_spread: bool,
    ) -> Value:
        """Return the value of ``atom(…)``."""
        if isinstance(atom, Method):
            if atom.of == "transaction":
                return self._of_transaction(atom.name, args, named, node, is_used)
            return self._of_database(atom.name, args, named, node)
        if isinstance(atom, Bound):
            args = [*atom.first, *args]
            named = dict(atom.named) | named
            return self.call_atom(atom.function, args, named, node, is_used, is_spread)
        if isinstance(atom, Local):
            return self.follow(atom, args, named, node, is_spread=is_spread)
        if isinstance(atom, Known):
            return self._of_function(atom, args, named, node, is_spread)
        self._pass(node, args, named)
        return _DATA if atom == DATA else _UNKNOWN

    def given_away(self, value: Value, node: ast.AST, to: str = "") -> None:
        """Record that `value` escapes to a place where it cannot be followed."""
        for atom in value:
            if atom == TRANSACTION or (isinstance(atom, Method) and atom.of == "transaction"):
                self.found.unresolved(node, f"the transaction goes {to or 'elsewhere'}")
            elif isinstance(atom, Method) or (
                isinstance(atom, Known) and _objects.is_database(atom.thing)
            ):
                self.found.unresolved(node, f"the database goes {to or 'elsewhere'}")
            elif isinstance(atom, Bound):
                for each in (*atom.first, *(value for _, value in atom.named)):
                    self.given_away(each, node, to)
                self.given_away(frozenset((atom.function,)), node, to)
            elif isinstance(atom, Items):
                self.given_away(atom.inside, node, to)
            elif isinstance(atom, Local) or (isinstance(atom, Known) and self._is_ours(atom.thing)):
                self.follow(atom, [], {}, node)
            elif isinstance(atom, Known) and (below := _objects.emitted(atom.thing)) is not None:
                self.found.raises_calls(node, below.__qualname__)
                self.given_away(frozenset((Known(below),)), node, to)

    def of_transaction_attribute(self, name: str, node: ast.AST) -> Value:
        """Return the value of ``t.name``."""
        if name == "parent":
            return frozenset((TRANSACTION,))
        return _DATA if name in _QUIET else frozenset((Method("transaction", name),))

    # -- transactions and databases --------------------------------------------------------

    def _of_transaction(
        self,
        name: str,
        args: list[Value],
        named: dict[str, Value],
        node: ast.Call,
        is_used: bool,
    ) -> Value:
        if name == "spawn":
            return self._start(args, named, node)
        if name in _TRANSACTIONS:
            return frozenset((TRANSACTION,))
        for value in (*args, *named.values()):
            self.given_away(value, node, f"into {name}()")
        first = args[0] if args else named.get("table", named.get("statement", _UNKNOWN))
        match name:
            case "get" | "get_many":
                self.found.reads_rows(node, first, f"{name}()")
            case "insert" | "delete":
                self.found.changes_rows(node, first, name)
            case "update":
                self.found.changes_rows(node, first, name, None if "**" in named else named)
                if is_used:  # the update's return value is a row
                    self.found.reads_rows(node, first, f"{name}()")
            case "query":
                self.found.reads_statement(node, first)
            case "execute":
                more = len(args) > 1 or "parameters" in named
                self.found.runs_statement(node, first, has_parameters=more)
            case _ if name not in _QUIET:
                self.found.unresolved(node, f"{name}() of a transaction is not known here")
        return _DATA

    def _of_database(
        self, name: str, args: list[Value], named: dict[str, Value], node: ast.Call
    ) -> Value:
        if name == "signal":
            self.found.raises_signal(node, args[0] if args else _UNKNOWN)
            return _DATA
        if name == "transaction":
            return frozenset((TRANSACTION,))
        if name == "run":
            return self._start(args, named, node)
        if name not in _QUIET_OF_DATABASE:
            self.found.unresolved(node, f"{name}() of a database is not followed")
        return _DATA

    def _start(self, args: list[Value], named: dict[str, Value], node: ast.Call) -> Value:
        """Read ``t.spawn(function, …)`` or ``db.run(function, …)``.

        The function gets a transaction as its first argument.
        """
        result = _NOTHING
        for atom in args[0] if args else _UNKNOWN:
            given = [frozenset((TRANSACTION,)), *args[1:]]
            result |= self.call_atom(atom, given, named, node, True, False)
        return result

    # -- other calls -----------------------------------------------------------------------

    def _of_known(
        self,
        thing: Any,
        name: str,
        args: list[Value],
        named: dict[str, Value],
        node: ast.Call,
        is_spread: bool,
    ) -> Value:
        if _objects.is_database(thing):
            if name == "with_timeout":
                return frozenset((Known(thing),))
            return self._of_database(name, args, named, node)
        table = table_of(thing)
        if table is not None and not isinstance(thing, type):
            return frozenset((of_table(table, name, args, named),))
        if is_of_sqlalchemy(thing):
            return frozenset((built(name, args, named),))
        entries = _objects.items_of(thing, name)
        if entries is not None:
            return entries
        if isinstance(thing, str):
            self._pass(node, args, named)
            return _DATA
        result = _NOTHING
        for atom in _objects.attribute(thing, name):
            result |= self.call_atom(atom, args, named, node, True, is_spread)
        return result

    def _of_function(
        self,
        function: Known,
        args: list[Value],
        named: dict[str, Value],
        node: ast.Call,
        is_spread: bool,
    ) -> Value:
        thing = function.thing
        below = _objects.emitted(thing)
        if below is not None:
            self.found.raises_calls(node, below.__qualname__)
            return self.call_atom(Known(below), args, named, node, True, is_spread)
        if self._is_ours(thing):
            return self.follow(function, args, named, node, is_spread=is_spread)
        if thing is functools.partial and args:
            return frozenset(
                Bound(atom, tuple(args[1:]), tuple(sorted(named.items())))
                if isinstance(atom, Known | Local)
                else UNKNOWN
                for atom in args[0]
            )
        if is_of_sqlalchemy(thing) and not isinstance(thing, type):
            return frozenset((built(thing.__name__, args, named),))
        if is_of_sqlalchemy(thing) and table_of(thing) is None:
            return frozenset((built(thing.__name__.lower(), args, named),))
        name = thing.__name__ if isinstance(thing, type | BuiltinFunctionType) else ""
        if name in _HIDING and getattr(thing, "__module__", "") == "builtins":
            self.found.unresolved(node, f"{name}() may do anything")
        called = type(thing)
        if not isinstance(thing, type | FunctionType | BuiltinFunctionType):
            method = _objects.attribute(called, "__call__")
            if any(isinstance(a, Known) and self._is_ours(a.thing) for a in method):
                itself: Value = frozenset((function,))
                return self._each_of(method, [itself, *args], named, node, is_spread)
        self._pass(node, args, named, getattr(thing, "__qualname__", ""))
        inside: Value = frozenset().union(*args, *named.values())
        if name in _PASS_ON:
            flat = frozenset().union(*(a.inside if isinstance(a, Items) else {a} for a in inside))
            return frozenset((Items(flat),)) | flat
        return _DATA if all(atom == DATA for atom in inside) and name else _UNKNOWN

    def _each_of(
        self,
        functions: Value,
        args: list[Value],
        named: dict[str, Value],
        node: ast.Call,
        is_spread: bool,
    ) -> Value:
        result = _NOTHING
        for atom in functions:
            result |= self.call_atom(atom, args, named, node, True, is_spread)
        return result

    def _is_ours(self, thing: Any) -> bool:
        # Not compared by __module__, which functools.wraps changes.
        return isinstance(thing, FunctionType) and thing.__code__.co_filename == self._file

    def _pass(
        self, node: ast.AST, args: list[Value], named: dict[str, Value], to: str = ""
    ) -> None:
        where = f"into {to}(), which is not followed" if to else ""
        for value in (*args, *named.values()):
            self.given_away(value, node, where)
