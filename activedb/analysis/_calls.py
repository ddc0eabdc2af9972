"""Effects and values of calls and attributes, by what is called."""

from __future__ import annotations

import ast
import functools
import inspect
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType
from typing import Any

from activedb.analysis._escape import EscapeAnalysis, Follow
from activedb.analysis._objects import attribute, emitted, entries, functions_in, is_database, known
from activedb.analysis._recorder import Recorder
from activedb.analysis._statements import built, chained, of_table
from activedb.analysis._values import (
    ANYTHING,
    DATA,
    SLICE,
    SOME_DATA,
    TRANSACTION,
    Atom,
    BoundFunction,
    CallSite,
    Columns,
    Items,
    Known,
    Local,
    Method,
    Plain,
    Sql,
    Value,
    is_of_sqlalchemy,
    join,
    only,
    ordered,
    sites_of,
    strings,
    table_of,
)

__all__ = ["Calls"]

# Attributes of a transaction and of a database that touch no table and raise no event.
_QUIET = {
    *("abort", "cancel", "commit", "deferred", "id", "is_rollback_only", "join", "label", "path"),
    *("rule", "state", "timestamp"),
}
_QUIET_OF_DATABASE = {
    *("counters", "join", "locks", "metadata", "rule_latency_s", "settings", "streams"),
}
_MISSING: Any = object()
_TRANSACTIONS = {"subtransaction", "with_timeout"}
_HIDING = set(map(Known, (compile, eval, exec, globals, locals, super, __import__)))
"""Functions that reach names and code out of sight."""
_PASSING_ON = {
    *map(Known, (dict, enumerate, filter, frozenset, iter, list, map, max, min, next)),
    *map(Known, (reversed, set, sorted, tuple, zip)),
}
"""Functions that return their arguments, or what is in them."""


class Calls:
    """Interpreter of calls that records their effects.

    Parameters
    ----------
    found : Recorder
    escapes : EscapeAnalysis
    follow : Follow
    """

    def __init__(self, found: Recorder, escapes: EscapeAnalysis, follow: Follow):
        self._found = found
        self._escapes = escapes
        self._follow = follow

    # -- by what is called -----------------------------------------------------------------

    def method(self, atom: Atom, name: str, call: CallSite) -> Value:
        """Return the value of ``atom.name(…)``."""
        match atom:
            case Plain() if atom == TRANSACTION:
                return self._of_transaction(name, call)
            case Sql():
                return only(chained(atom, name, call))
            case Columns(table=table):
                return only(Sql.of(table))
            case Items(inside=inside, sites=sites):
                self._escapes.arguments(call)
                if name == "sort":  # its key= gets the elements
                    self._escapes.value(inside, call.node)
                found = inside or ANYTHING
                return only(Items(found, sites)) if name in ("items", "values", "keys") else found
            case Known(thing=thing):
                return self._of_object(thing, name, call)
            case Method():
                return self.attribute(atom, name, call.node)
        if name == "signal" and call.args:
            self._found.raises_signal(call.node, call.first())
        return self.any_of(self.attribute(atom, name, call.node), call)

    def any_of(self, functions: Value, call: CallSite) -> Value:
        """Return the value of a call of one of these functions."""
        return join([self._function(atom, call) for atom in ordered(functions)])

    def _function(self, atom: Atom, call: CallSite) -> Value:
        match atom:
            case Method(of="transaction", name=name):
                return self._of_transaction(name, call)
            case Method(name=name):
                return self._of_database(name, call)
            case BoundFunction(function=function):
                return self._function(function, call.binding(atom))
            case Local():
                return self._follow(atom, call)
            case Known():
                return self._of_function(atom, call)
        self._escapes.arguments(call)
        return SOME_DATA if atom == DATA else ANYTHING

    def attribute(self, atom: Atom, name: str, node: ast.AST) -> Value:
        """Return the value of ``atom.name``."""
        match atom:
            case Plain() if atom == TRANSACTION:
                if name == "parent":
                    return only(TRANSACTION)
                return SOME_DATA if name in _QUIET else only(Method("transaction", name))
            case Method(of=kind, name=method):
                self._found.unresolved(node, f"{method} of a {kind} is not followed")
                return ANYTHING
            case Columns(table=table):
                return only(Sql.of(table.column(name) or table))
            case Sql():
                return only(atom)
            case Known(thing=thing) if is_database(thing) and name not in ("metadata", "settings"):
                return only(Method("database", name))
            case Known(thing=thing):
                return self._attribute_of(thing, name, node)
        self._escapes.value(only(atom), node)  # such as the method of a list
        return SOME_DATA if atom == DATA else ANYTHING

    def _attribute_of(self, thing: Any, name: str, node: ast.AST) -> Value:
        """Return the value of ``thing.name``; read the property of the rule's file that it is."""
        found = inspect.getattr_static(type(thing), name, None)
        is_there = inspect.getattr_static(thing, name, _MISSING) is not _MISSING
        # What is called is a descriptor, or __getattr__.
        self._escapes.operands(only(Known(found if is_there else thing)), node)
        if not isinstance(found, FunctionType | staticmethod | classmethod):
            call = CallSite(node, (only(known(thing)),))
            for each in filter(self._escapes.is_own, functions_in(found)):
                value = self._follow(Known(each), call)
                if isinstance(found, property | functools.cached_property):
                    return value
                self._escapes.value(value, node)  # of a method that is decorated
        return attribute(thing, name)

    # -- transactions and databases --------------------------------------------------------

    def _of_transaction(self, name: str, call: CallSite) -> Value:
        if name == "spawn":
            return self._start(call)
        if name in _TRANSACTIONS:
            return only(TRANSACTION)
        self._escapes.arguments(call, f"into {name}()")
        node, named, first = call.node, call.named, call.first("table", "statement")
        match name:
            case "get" | "get_many":
                to_write = bool(named.keys() & {"for_update", "**"}) and not any(
                    keyword.arg == "for_update" and _is_false(keyword.value)
                    for keyword in getattr(node, "keywords", ())
                )
                self._found.reads_rows(node, first, f"{name}()", is_for_update=to_write)
            case "insert" | "delete":
                self._found.changes_rows(node, first, name)
            case "update":
                self._found.changes_rows(node, first, name, None if "**" in named else named)
                if call.is_used:  # the update's return value is a row
                    self._found.reads_rows(node, first, f"{name}()", is_for_update=True)
            case "query":
                self._found.reads_statement(node, first)
            case "execute":
                has_parameters = len(call.args) > 1 or "parameters" in named
                self._found.runs_statement(node, first, has_parameters=has_parameters)
            case _ if name not in _QUIET:
                self._found.unresolved(node, f"{name}() of a transaction is not known here")
        return SOME_DATA

    def _of_database(self, name: str, call: CallSite) -> Value:
        match name:
            case "signal":
                self._found.raises_signal(call.node, call.first())
            case "transaction":
                return only(TRANSACTION)
            case "run":
                return self._start(call)
            case _ if name not in _QUIET_OF_DATABASE:
                self._found.unresolved(call.node, f"{name}() of a database is not followed")
        return SOME_DATA

    def _start(self, call: CallSite) -> Value:
        """Read ``t.spawn(function, …)`` or ``db.run(function, …)``.

        The function gets a transaction as its first argument.
        """
        rest = call.args if call.is_spread else call.args[1:]
        started = replace(call, args=(only(TRANSACTION), *rest), is_used=True)
        return self.any_of(call.first("function"), started)

    # -- objects that exist ----------------------------------------------------------------

    def _of_object(self, thing: Any, name: str, call: CallSite) -> Value:
        """Return the value of ``thing.name(…)``."""
        if is_database(thing):
            return only(Known(thing)) if name == "with_timeout" else self._of_database(name, call)
        table = table_of(thing)
        if table is not None and not isinstance(thing, type):
            return only(of_table(table, name, call))
        if is_of_sqlalchemy(thing):
            return only(built(name, call))
        found = entries(thing, name)
        if found is not None:
            self._escapes.operands(join(call.args), call.node)  # compared with the keys
            return join([found, *call.args[1:]])
        if isinstance(thing, str):
            self._escapes.arguments(call)
            return SOME_DATA
        if isinstance(thing, FunctionType):  # such as f.__call__()
            self._escapes.value(only(Known(thing)), call.node)
        return self.any_of(self._attribute_of(thing, name, call.node), call)

    def _of_function(self, function: Known, call: CallSite) -> Value:
        """Return the value of ``thing(…)``."""
        thing = function.thing
        if self._escapes.is_own(thing):
            return self._follow(function, call)
        below = emitted(thing)
        if below is not None:
            self._found.raises_calls(call.node, below.__qualname__)
            return self._of_function(Known(below), call)
        if is_of_sqlalchemy(thing) and table_of(thing) is None:
            return only(built(getattr(thing, "__name__", "").lower(), call))
        special = inspect.getattr_static(type(thing), "__call__", None)
        if self._escapes.is_own(special) and not isinstance(thing, type):
            return self._follow(Known(special), replace(call, args=(only(function), *call.args)))
        if thing is functools.partial and call.args and not call.is_spread:
            bound = call.args[1:], tuple(sorted(call.named.items()))
            return frozenset(BoundFunction(atom, *bound) for atom in call.args[0])
        names = strings(call.args[1]) if thing is getattr and len(call.args) > 1 else None
        if names is not None:
            objects, _, *default = call.args
            found = [self.attribute(a, name, call.node) for a in ordered(objects) for name in names]
            return join([*default, *found])
        return self._elsewhere(function, call)

    def _elsewhere(self, function: Known, call: CallSite) -> Value:
        """Return the value of a call of a function that is not read."""
        thing = function.thing
        if function in _HIDING or (thing is vars and not call.args):
            self._found.unresolved(call.node, f"{thing.__name__}() may do anything")
        name = getattr(thing, "__qualname__", "")
        self._escapes.arguments(
            call, f"into {name}(), which is not followed" if name else "elsewhere"
        )
        if isinstance(thing, type):
            called = [method for _, method in self._escapes.own_methods(thing)]
        else:
            called = functions_in(thing)
        self._escapes.value(frozenset(map(Known, called)), call.node)
        if thing is slice:
            return only(SLICE)
        given = join(call.arguments)
        if function in _PASSING_ON:
            flat = join(atom.inside if isinstance(atom, Items) else only(atom) for atom in given)
            return only(Items(flat, sites_of(given) | {call.node})) | flat
        is_plain = given <= SOME_DATA and isinstance(thing, type | BuiltinFunctionType)
        return SOME_DATA if is_plain else ANYTHING


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
