"""Abstract interpretation of the source of a rule, for its effects on tables; no code is run.

Every name stands for a set of atoms (`_values`) that only grows. A body is read again until no set
changes; all branches are taken. The transaction is tracked: if it escapes to code that cannot be
read, the rule is opaque.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
from abc import ABC, abstractmethod
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any, TypeAlias

from activedb.analysis._recorder import Recorder
from activedb.analysis._values import (
    DATA,
    SLICE,
    TRANSACTION,
    UNKNOWN,
    Atom,
    BoundFunction,
    Columns,
    Items,
    Known,
    Local,
    Method,
    Sql,
    Value,
    attribute,
    built,
    chained,
    compared,
    elements,
    emitted,
    is_database,
    is_of_sqlalchemy,
    items_of,
    known,
    of_table,
    subscript,
    table_of,
)
from activedb.function_sources import FunctionNode, node_of

__all__ = ["Calls", "Expressions", "Frame", "FunctionInterpreter"]


# -- interpretation of the expressions in a rule's source ------------------------------------------


_NOTHING: Value = frozenset()
_DATA: Value = frozenset((DATA,))
# -- local names of a function and the atoms they may stand for ------------------------------------


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
_HIDING = {"compile", "eval", "exec", "globals", "locals", "super", "__import__"}


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
        self._escaping: set[Atom] = set()
        self._scopes: dict[tuple[int, int], Frame] = {}

    @abstractmethod
    def attribute(self, atom: Atom, name: str, node: ast.AST) -> Value:
        """Return the value of ``atom.name``."""

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
            if name == "sort":  # its key= gets the elements
                self.given_away(atom.inside, node)
            return frozenset((Items(inside),)) if name in ("items", "values", "keys") else inside
        if isinstance(atom, Known):
            return self._of_known(atom.thing, name, args, named, node, is_spread)
        if name == "signal" and args:
            self.found.raises_signal(node, args[0])
        self.given_away(frozenset((atom,)), node)  # such as f.__call__()
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
        if isinstance(atom, BoundFunction):
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
            elif isinstance(atom, Method) or (isinstance(atom, Known) and is_database(atom.thing)):
                self.found.unresolved(node, f"the database goes {to or 'elsewhere'}")
            elif isinstance(atom, BoundFunction):
                for each in (*atom.first, *(value for _, value in atom.named)):
                    self.given_away(each, node, to)
                self._may_be_called(atom.function, [*atom.first], dict(atom.named), node, to)
            elif isinstance(atom, Items):
                self.given_away(atom.inside, node, to)
            elif isinstance(atom, Local) or (isinstance(atom, Known) and self._is_ours(atom.thing)):
                self._may_be_called(atom, [], {}, node, to)
            elif isinstance(atom, Known) and (below := emitted(atom.thing)) is not None:
                self.found.raises_calls(node, below.__qualname__)
                self.given_away(frozenset((Known(below),)), node, to)
            elif isinstance(atom, Known) and atom not in self._escaping:
                self._escaping.add(atom)  # a closure may hold itself
                for inner in _functions_in(atom.thing):
                    self.given_away(frozenset((Known(inner),)), node, to)
                self._escaping.remove(atom)

    def _may_be_called(
        self, atom: Atom, args: list[Value], named: dict[str, Value], node: ast.AST, to: str
    ) -> None:
        """Read a function that escapes with these arguments bound; what it returns escapes too."""
        if not (isinstance(atom, Local) or (isinstance(atom, Known) and self._is_ours(atom.thing))):
            self.given_away(frozenset((atom,)), node, to)
        elif atom not in self._escaping:
            self._escaping.add(atom)  # it may return itself
            self.given_away(self.follow(atom, args, named, node), node, to)
            self._escaping.remove(atom)

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
                to_write = not named.keys().isdisjoint(("for_update", "**")) and not any(
                    each.arg == "for_update" and _is_constant(each.value, False)
                    for each in node.keywords
                )
                self.found.reads_rows(node, first, f"{name}()", is_for_update=to_write)
            case "insert" | "delete":
                self.found.changes_rows(node, first, name)
            case "update":
                self.found.changes_rows(node, first, name, None if "**" in named else named)
                if is_used:  # the update's return value is a row
                    self.found.reads_rows(node, first, f"{name}()", is_for_update=True)
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
        is_spread = any(isinstance(each, ast.Starred) for each in node.args)
        functions = args[0] if args else named.get("function", _UNKNOWN)
        given = [frozenset((TRANSACTION,)), *(args if is_spread else args[1:])]
        return self._each_of(functions, given, named, node, is_spread)

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
        if is_database(thing):
            if name == "with_timeout":
                return frozenset((Known(thing),))
            return self._of_database(name, args, named, node)
        table = table_of(thing)
        if table is not None and not isinstance(thing, type):
            return frozenset((of_table(table, name, args, named),))
        if is_of_sqlalchemy(thing):
            return frozenset((built(name, args, named),))
        entries = items_of(thing, name)
        if entries is not None:
            return entries
        if isinstance(thing, str):
            self._pass(node, args, named)
            return _DATA
        if isinstance(thing, FunctionType):  # such as f.__call__()
            self.given_away(frozenset((Known(thing),)), node)
        found = self.attribute_of(thing, name, node)
        return self._each_of(found, args, named, node, is_spread)

    def attribute_of(self, thing: Any, name: str, node: ast.AST) -> Value:
        """Return the value of ``thing.name``; read the property of the rule's module that it is."""
        found = inspect.getattr_static(type(thing), name, None)
        if not isinstance(found, FunctionType | staticmethod | classmethod):
            bound = [frozenset((known(thing),))]
            for each in filter(self._is_ours, _functions_in(found)):
                value = self.follow(Known(each), bound, {}, node)
                if isinstance(found, property | functools.cached_property):
                    return value
                self.given_away(value, node)  # of a method that is decorated
        return attribute(thing, name)

    def _of_function(
        self,
        function: Known,
        args: list[Value],
        named: dict[str, Value],
        node: ast.Call,
        is_spread: bool,
    ) -> Value:
        thing = function.thing
        below = emitted(thing)
        if below is not None:
            self.found.raises_calls(node, below.__qualname__)
            return self.call_atom(Known(below), args, named, node, True, is_spread)
        if self._is_ours(thing):
            return self.follow(function, args, named, node, is_spread=is_spread)
        if thing is functools.partial and args and not is_spread:
            bound = tuple(args[1:]), tuple(sorted(named.items()))
            return frozenset(BoundFunction(atom, *bound) for atom in args[0])
        if is_of_sqlalchemy(thing) and not isinstance(thing, type):
            return frozenset((built(thing.__name__, args, named),))
        if is_of_sqlalchemy(thing) and table_of(thing) is None:
            return frozenset((built(thing.__name__.lower(), args, named),))
        name = thing.__name__ if isinstance(thing, type | BuiltinFunctionType) else ""
        is_hiding = name in _HIDING or (name == "vars" and not args)
        if is_hiding and getattr(thing, "__module__", "") == "builtins":
            self.found.unresolved(node, f"{name}() may do anything")
        called = type(thing)
        if not isinstance(thing, type | FunctionType | BuiltinFunctionType):
            method = attribute(called, "__call__")
            if any(isinstance(a, Known) and self._is_ours(a.thing) for a in method):
                itself: Value = frozenset((function,))
                return self._each_of(method, [itself, *args], named, node, is_spread)
        if thing is getattr and len(args) > 1:
            names = {k.thing for k in args[1] if isinstance(k, Known) and type(k.thing) is str}
            if len(names) == len(args[1]):
                return frozenset().union(
                    *args[2:],
                    *(self.attribute(atom, n, node) for atom in args[0] for n in sorted(names)),
                )
        self._pass(node, args, named, getattr(thing, "__qualname__", ""))
        for each in self._methods(thing) if isinstance(thing, type) else _functions_in(thing):
            self.given_away(frozenset((Known(each),)), node)
        if thing is slice:
            return frozenset((SLICE,))
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

    def _methods(self, of: type) -> list[FunctionType]:
        """Return the methods of a class that are written in the rule's module."""
        found = [each for base in of.__mro__ for each in vars(base).values()]
        found += [function for each in found for function in _functions_in(each)]
        return [each for each in found if self._is_ours(each)]

    def _is_ours(self, thing: Any) -> bool:
        # Not compared by __module__, which functools.wraps changes.
        return isinstance(thing, FunctionType) and thing.__code__.co_filename == self._file

    def _pass(
        self, node: ast.AST, args: list[Value], named: dict[str, Value], to: str = ""
    ) -> None:
        where = f"into {to}(), which is not followed" if to else ""
        for value in (*args, *named.values()):
            self.given_away(value, node, where)


def _functions_in(thing: Any) -> list[FunctionType]:
    """Return the functions that a property, method or decorated function calls, as far as seen."""
    found: list[Any]
    if isinstance(thing, property):
        found = [thing.fget, thing.fset, thing.fdel]
    elif isinstance(thing, functools.cached_property):
        found = [thing.func]
    elif isinstance(thing, staticmethod | classmethod):
        found = [thing.__func__]
    else:
        found = [inspect.getattr_static(thing, "__wrapped__", None)]
    if isinstance(thing, FunctionType):
        found += [cell.cell_contents for cell in thing.__closure__ or () if cell != CellType()]
    return [each for each in found if isinstance(each, FunctionType)]


_MISSING: Any = object()

Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


class Frame:
    """Names in one call of a function, or in a comprehension. The atoms of a name only grow.

    Parameters
    ----------
    node : FunctionNode or Comprehension
    outer : Frame or FunctionType
        Scope of the names that are not local: the enclosing frame, or the function itself with its
        globals and closure.
    arguments : dict
        Atoms of the parameters.
    """

    def __init__(
        self,
        node: FunctionNode | Comprehension,
        outer: Frame | FunctionType,
        arguments: dict[str, Value],
    ):
        self.outer = outer
        self.names = dict(arguments)
        self.version = 0
        if isinstance(node, Comprehension):
            stored, _ = _stored([each.target for each in node.generators])
            self.shared: set[str] = outer.shared if isinstance(outer, Frame) else set()
        else:
            body = [node.body] if isinstance(node, ast.Lambda) else node.body
            stored, self.shared = _stored(body)
        self.own = (stored | set(arguments)) - self.shared

    def lookup(self, name: str) -> Value:
        """Return the atoms that a name may stand for; empty if it is not assigned yet."""
        if name in self.own:
            return self.names.get(name, frozenset())
        found = self.outer.lookup(name) if isinstance(self.outer, Frame) else _of(self.outer, name)
        return found | _UNKNOWN if name in self.shared else found

    def assign(self, name: str, value: Value) -> None:
        """Add `value` to the atoms that a name may stand for."""
        frame: Frame | FunctionType = self
        while isinstance(frame, Frame):
            if name in frame.own:
                before = frame.names.get(name, frozenset())
                if not value <= before:
                    frame.names[name] = before | value
                    frame.version += 1
                return
            frame = frame.outer

    def settle(self) -> bool:
        """Make unassigned names unknown; return whether there were any."""
        bare = [name for name in sorted(self.own) if not self.names.get(name)]
        for name in bare:
            self.assign(name, _UNKNOWN)
        return bool(bare)

    @property
    def age(self) -> int:
        """Counter that grows whenever a name of this or an enclosing frame gets more atoms."""
        return self.version + (self.outer.age if isinstance(self.outer, Frame) else 0)


def _of(function: FunctionType, name: str) -> Value:
    code = function.__code__
    if name in code.co_freevars and function.__closure__ is not None:
        try:
            found = function.__closure__[code.co_freevars.index(name)].cell_contents
        except ValueError:
            return _UNKNOWN  # assigned later
        return frozenset((known(found),))
    found = function.__globals__.get(name, _MISSING)
    if found is _MISSING:
        found = vars(builtins).get(name, _MISSING)
    return _UNKNOWN if found is _MISSING else frozenset((known(found),))


def _stored(body: list[Any]) -> tuple[set[str], set[str]]:
    """Return the names that a body assigns and its ``global`` and ``nonlocal`` names.

    Names of inner functions and comprehensions are left out.
    """
    stored: set[str] = set()
    shared: set[str] = set()
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stored.add(node.name)
            waiting += node.decorator_list
        if isinstance(node, FunctionNode):
            waiting += _at_definition(node)
        if isinstance(node, FunctionNode | ast.ClassDef):
            continue
        if isinstance(node, ast.comprehension):
            waiting += [node.iter, *node.ifs]
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored.add(node.id)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            shared.update(node.names)
        elif isinstance(node, ast.alias):
            stored.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            stored.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            stored.add(node.rest)
        waiting += ast.iter_child_nodes(node)
    return stored, shared


def _at_definition(node: FunctionNode) -> list[ast.expr]:
    """Return the defaults and annotations of a function, which run when it is defined."""
    found = [
        each.annotation if isinstance(each, ast.arg) else each
        for each in ast.iter_child_nodes(node.args)
    ]
    found.append(None if isinstance(node, ast.Lambda) else node.returns)
    return [each for each in found if isinstance(each, ast.expr)]


_WRITTEN: dict[type[ast.AST], str] = {
    ast.Eq: "==",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.BitAnd: "&",
}
"""Operators that matter in the conditions of statements, as they are written."""

_GROWING = {"append", "add", "insert", "extend", "update", "setdefault", "appendleft"}


def _is_constant(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_none(node: ast.AST) -> bool:
    return _is_constant(node, None)


class Expressions(Calls):
    """Evaluator of expressions to sets of atoms, which also reads the calls in them."""

    @abstractmethod
    def assign(self, target: ast.AST, value: Value, frame: Frame) -> None:
        """Add `value` to the atoms that an assignment target may stand for."""

    def value(self, node: ast.AST, frame: Frame) -> Value:
        """Return the atoms that an expression may stand for, reading its calls on the way."""
        match node:
            case ast.Constant(value=constant):
                return frozenset((Known(constant),)) if type(constant) is str else _DATA
            case ast.Name(id=name):
                return frame.lookup(name)
            case ast.Attribute(value=base, attr=name):
                found = self.value(base, frame)
                return frozenset().union(*(self.attribute(atom, name, node) for atom in found))
            case ast.Subscript(value=base, slice=key):
                keys = self.value(key, frame)
                found = self.value(base, frame)
                return frozenset().union(*(self._subscript(atom, keys) for atom in found))
            case ast.Slice():
                for part in ast.iter_child_nodes(node):
                    self.value(part, frame)
                return frozenset((SLICE,))
            case ast.Call():
                return self.call(node, frame, is_used=True)
            case ast.Lambda():
                self.define(node, frame)
                return frozenset((Local(node, frame),))
            case ast.IfExp(test=test, body=body, orelse=other):
                self.value(test, frame)
                return self.value(body, frame) | self.value(other, frame)
            case ast.BoolOp(values=values):
                return frozenset().union(*(self.value(each, frame) for each in values))
            case ast.NamedExpr(target=target, value=inner):
                found = self.value(inner, frame)
                self.assign(target, found, frame)
                return found
            case ast.Tuple(elts=inside) | ast.List(elts=inside) | ast.Set(elts=inside):
                return self._items([self._spread(each, frame) for each in inside])
            case ast.Dict(keys=dict_keys, values=dict_values):
                keys_found = [self.value(each, frame) for each in dict_keys if each is not None]
                values_found = [
                    self.value(each, frame) if key is not None else self._values(each, frame)
                    for key, each in zip(dict_keys, dict_values, strict=True)
                ]
                return self._items([*keys_found, *values_found])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.Compare(left=left, ops=operators, comparators=others):
                operands = [self.value(each, frame) for each in (left, *others)]
                is_plain = len(operators) == 1 and not any(map(_is_none, (left, *others)))
                made = compared(operands, _WRITTEN.get(type(operators[0]), "") if is_plain else "")
                return _DATA if made is None else frozenset((made,))
            case ast.BinOp(left=left, right=right, op=operator):
                operands = [self.value(left, frame), self.value(right, frame)]
                return self.joined(operands, _WRITTEN.get(type(operator), ""))
            case ast.UnaryOp(operand=operand):
                return self.joined([self.value(operand, frame)])
            case ast.Starred():
                return self._spread(node, frame)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.given_away(self.value(child, frame), child)
                return _DATA if isinstance(node, ast.JoinedStr | ast.FormattedValue) else _UNKNOWN

    def call(self, node: ast.Call, frame: Frame, *, is_used: bool) -> Value:
        """Read a call and return its value."""
        args = [self._spread(each, frame) for each in node.args]
        is_spread = any(isinstance(each, ast.Starred) for each in node.args)
        named: dict[str, Value] = {}
        for keyword in node.keywords:
            self._name_argument(named, keyword, frame)
        if isinstance(node.func, ast.Attribute):
            base = self.value(node.func.value, frame)
            self._grow(node.func, args, frame)
            methods = (
                self.call_method(atom, node.func.attr, args, named, node, is_used, is_spread)
                for atom in sorted(base, key=_place_in_order)
            )
            return frozenset().union(*methods)
        called = self.value(node.func, frame)
        calls = (
            self.call_atom(atom, args, named, node, is_used, is_spread)
            for atom in sorted(called, key=_place_in_order)
        )
        return frozenset().union(*calls)

    def _name_argument(self, named: dict[str, Value], keyword: ast.keyword, frame: Frame) -> None:
        if keyword.arg is not None:
            named[keyword.arg] = self.value(keyword.value, frame)
            return
        spread = keyword.value
        if isinstance(spread, ast.Dict) and all(
            isinstance(key, ast.Constant) and isinstance(key.value, str) for key in spread.keys
        ):
            for key, value in zip(spread.keys, spread.values, strict=True):
                assert isinstance(key, ast.Constant)
                named[str(key.value)] = self.value(value, frame)
            return
        named["**"] = named.get("**", _NOTHING) | self._values(spread, frame)

    def _grow(self, function: ast.Attribute, args: list[Value], frame: Frame) -> None:
        """Add the arguments of ``append`` and the like to the contents of a list."""
        if function.attr not in _GROWING or not isinstance(function.value, ast.Name):
            return
        if any(isinstance(atom, Items) for atom in frame.lookup(function.value.id)):
            more = frozenset().union(*args, *(self.elements(each) for each in args))
            plain = frozenset(atom for atom in more if not isinstance(atom, Items))
            frame.assign(function.value.id, frozenset((Items(plain),)))

    def _values(self, node: ast.expr, frame: Frame) -> Value:
        """Return the values of a mapping, as ``**mapping`` gives them."""
        found = self.value(node, frame)
        return frozenset().union(*(self._subscript(atom, _UNKNOWN) for atom in found))

    def define(self, node: FunctionNode, frame: Frame) -> None:
        """Read what runs when a function is defined: its defaults and annotations."""
        for each in _at_definition(node):
            self.value(each, frame)

    def _spread(self, node: ast.expr, frame: Frame) -> Value:
        if isinstance(node, ast.Starred):
            return self.elements(self.value(node.value, frame))
        return self.value(node, frame)

    def _items(self, inside: list[Value]) -> Value:
        found: Value = frozenset().union(*inside)
        if any(isinstance(atom, Items) for atom in found):
            # Flattened, so that nesting stays finite. Reading an element gives the inner ones, too.
            found |= frozenset().union(*(a.inside for a in found if isinstance(a, Items)))
            found = frozenset(a for a in found if not isinstance(a, Items)) | {
                Items(frozenset(a for a in found if not isinstance(a, Items)))
            }
        return frozenset((Items(found),))

    def _comprehension(self, node: ast.AST, frame: Frame) -> Value:
        assert isinstance(node, Comprehension)
        outer, frame = frame, self._scope(node, frame)
        for place, generator in enumerate(node.generators):
            # The first iterable belongs to the scope around the comprehension.
            found = self.elements(self.value(generator.iter, frame if place else outer))
            self.assign(generator.target, found, frame)
            for test in generator.ifs:
                self.value(test, frame)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return self._items([self.value(part, frame) for part in parts])

    def _scope(self, node: Comprehension, outer: Frame) -> Frame:
        """Return the frame of a comprehension, one for each frame around it."""
        return self._scopes.setdefault((id(node), id(outer)), Frame(node, outer, {}))

    def attribute(self, atom: Any, name: str, node: ast.AST) -> Value:
        if atom == TRANSACTION:
            return self.of_transaction_attribute(name, node)
        if isinstance(atom, Method):
            self.found.unresolved(node, f"{atom.name} of a {atom.of} is not followed")
            return _UNKNOWN
        if isinstance(atom, Columns):
            column = atom.table.column(name)
            return frozenset((Sql.of(column or atom.table),))
        if isinstance(atom, Sql):
            return frozenset((atom,))
        if isinstance(atom, Known):
            if is_database(atom.thing) and name not in ("metadata", "settings"):
                return frozenset((Method("database", name),))
            return self.attribute_of(atom.thing, name, node)
        self.given_away(frozenset((atom,)), node)  # such as the method of a list
        return _DATA if atom == DATA else _UNKNOWN

    def _subscript(self, atom: Any, keys: Value) -> Value:
        if isinstance(atom, Columns):
            names = [k.thing for k in keys if isinstance(k, Known) and type(k.thing) is str]
            found = [atom.table.column(name) for name in names] or [None]
            return frozenset(Sql.of(column or atom.table) for column in found)
        if isinstance(atom, Items):
            return frozenset((atom,)) if SLICE in keys else atom.inside or _UNKNOWN
        if isinstance(atom, Known):
            return subscript(atom.thing, keys) | _of_flattened(atom)
        if isinstance(atom, Sql):
            return frozenset((atom,))
        return _DATA if atom == DATA else _UNKNOWN | _of_flattened(atom)

    def elements(self, value: Value) -> Value:
        found: Value = _NOTHING
        for atom in value:
            if isinstance(atom, Items):
                found |= atom.inside or _UNKNOWN
            elif isinstance(atom, Known):
                found |= elements(atom.thing) | _of_flattened(atom)
            else:
                found |= _DATA if atom == DATA else _UNKNOWN | _of_flattened(atom)
        return found

    def joined(self, operands: list[Value], operator: str = "") -> Value:
        """Return the value of an arithmetic or bitwise operator."""
        made = compared(operands, operator)
        if made is not None:
            return frozenset((made,))
        together: Value = frozenset().union(*operands)
        items = [atom for atom in together if isinstance(atom, Items)]
        if items:
            return self._items([item.inside for item in items]) | (together - set(items))
        others = {
            atom
            for atom in together
            if not (atom == DATA or (isinstance(atom, Known) and type(atom.thing) is str))
        }
        if not others:
            return _DATA if together else _NOTHING
        return _UNKNOWN | others  # such as the lists that are added


def _of_flattened(atom: Atom) -> Value:
    """Return what an element of `atom` may be if `atom` is from a container that was flattened."""
    if isinstance(atom, Known) and type(atom.thing) in (str, list, tuple, set, frozenset, dict):
        return _NOTHING  # its elements are known
    return _NOTHING if atom == DATA else frozenset((atom,))


def _place_in_order(atom: Any) -> str:
    """Return a stable sort key of an atom, which fixes the order of findings."""
    if isinstance(atom, Known):
        thing, table = atom.thing, table_of(atom.thing)
        name = thing.__qualname__ if isinstance(thing, type | FunctionType) else ""
        return f"{type(thing).__name__} {name if table is None else table.name}"
    return type(atom).__name__


_CALLS_MAX = 500
_PASSES_MAX = 20


class FunctionInterpreter(Expressions):
    """Interpreter of functions and of the functions they call."""

    # -- functions -------------------------------------------------------------------------

    def follow(
        self,
        function: Known | Local,
        args: list[Value],
        named: dict[str, Value],
        at: ast.AST,
        *,
        is_spread: bool = False,
    ) -> Value:
        """Read a function called with these arguments; return the value it may return."""
        node: FunctionNode | None
        if isinstance(function, Local):
            node, outer = function.node, function.frame
            age = outer.age
        else:
            assert isinstance(function.thing, FunctionType)
            node, outer, age = node_of(function.thing), function.thing, 0
        if node is None:
            self.found.unresolved(at, f"the source of {outer.__qualname__} cannot be found")
            return _UNKNOWN
        call = (id(node), id(outer), age, tuple(args), tuple(sorted(named.items())), is_spread)
        if call in self.read:
            return self.read[call]
        if len(self.read) >= _CALLS_MAX:
            self.found.unresolved(at, f"more than {_CALLS_MAX} different calls to follow")
            return _UNKNOWN
        self.read[call] = _UNKNOWN  # for recursive calls
        self.kept.append(outer)  # keeps its id from being reused
        frame = Frame(node, outer, self._bound(node, outer, args, named, is_spread=is_spread))
        self.read[call] = self._body(node, frame)
        return self.read[call]

    def _bound(
        self,
        node: FunctionNode,
        outer: Frame | FunctionType,
        args: list[Value],
        named: dict[str, Value],
        *,
        is_spread: bool,
    ) -> dict[str, Value]:
        """Return the values of a function's parameters in one call."""
        given = node.args
        positional = [each.arg for each in (*given.posonlyargs, *given.args)]
        bound = dict(zip(positional, args, strict=False))
        everything = frozenset().union(*args, *named.values())
        if is_spread or "**" in named:
            for name in (*positional, *(each.arg for each in given.kwonlyargs)):
                bound[name] = bound.get(name, _NOTHING) | everything | _UNKNOWN
        for name, value in named.items():
            if name in positional or any(each.arg == name for each in given.kwonlyargs):
                bound[name] = bound.get(name, _NOTHING) | value
        if given.vararg is not None:
            rest = everything if is_spread else frozenset().union(*args[len(positional) :])
            bound[given.vararg.arg] = frozenset((Items(rest),))
        if given.kwarg is not None:
            rest = frozenset().union(*(v for n, v in named.items() if n not in bound))
            bound[given.kwarg.arg] = frozenset((Items(rest),))
        for name, default in self._defaults(node, outer).items():
            bound.setdefault(name, default)
        for name in (*positional, *(each.arg for each in given.kwonlyargs)):
            bound.setdefault(name, _UNKNOWN)
        return bound

    def _defaults(self, node: FunctionNode, outer: Frame | FunctionType) -> dict[str, Value]:
        positional = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        if isinstance(outer, FunctionType):
            last = outer.__defaults__ or ()
            found = dict(zip(positional[len(positional) - len(last) :], last, strict=True))
            return {
                n: frozenset((known(v),)) for n, v in (found | (outer.__kwdefaults__ or {})).items()
            }
        last_nodes = node.args.defaults
        nodes: dict[str, ast.expr | None] = dict(
            zip(positional[len(positional) - len(last_nodes) :], last_nodes, strict=True)
        )
        nodes |= {
            a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
        }
        return {n: self.value(d, outer) for n, d in nodes.items() if d is not None}

    def _body(self, node: FunctionNode, frame: Frame) -> Value:
        if isinstance(node, ast.Lambda):
            return self.value(node.body, frame)
        returned = _NOTHING
        for _ in range(_PASSES_MAX):
            before = frame.age
            for statement in node.body:
                returned |= self._statement(statement, frame)
            if frame.age == before and not frame.settle():
                return returned | _DATA if _falls_through(node.body) else returned
        self.found.unresolved(node, "too many assignments that depend on each other")
        return _UNKNOWN

    # -- statements ------------------------------------------------------------------------

    def _statement(self, node: ast.AST, frame: Frame) -> Value:
        """Read a statement; return the value it may return from its function."""
        returned = _NOTHING
        match node:
            case ast.Return(value=value):
                return _DATA if value is None else self.value(value, frame)
            case ast.Expr(value=ast.Call() as call):
                self.call(call, frame, is_used=False)
                return returned
            case ast.Assign(targets=targets, value=value):
                found = self.value(value, frame)
                for target in targets:
                    self.assign(target, found, frame)
                return returned
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self.assign(target, self.value(value, frame), frame)
                return returned
            case ast.AugAssign(target=target, value=added):
                more = self.value(added, frame)
                if isinstance(target, ast.Name):
                    self.assign(target, self.joined([frame.lookup(target.id), more]), frame)
                else:
                    self.assign(target, more, frame)
                return returned
            case ast.For(target=target, iter=iterated):
                self.assign(target, self.elements(self.value(iterated, frame)), frame)
            case ast.With(items=items):
                for item in items:
                    opened = self.value(item.context_expr, frame)
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, opened, frame)
            case ast.FunctionDef(name=name):
                made: Value = frozenset((Local(node, frame),))
                for decorator in node.decorator_list:
                    self.given_away(self.value(decorator, frame) | made, decorator)
                    made = made | _UNKNOWN
                self.define(node, frame)
                self.assign(ast.Name(name, lineno=node.lineno), made, frame)
                return returned
            case ast.Match(subject=subject, cases=cases):
                # Which part of it a pattern binds is not followed.
                found = self.value(subject, frame)
                self.given_away(found, subject)
                for name in _stored([case.pattern for case in cases])[0]:
                    frame.assign(name, found | self.elements(found) | _UNKNOWN)
            case ast.Import() | ast.ImportFrom():
                self._import(node, frame)
                return returned
            case ast.ExceptHandler(name=name):
                if name is not None:
                    frame.assign(name, _DATA)
            case ast.ClassDef() | ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith():
                self.found.unresolved(node, "a class or coroutine in a rule is not followed")
                return returned
            case ast.Expr() | ast.Delete() | ast.Raise() | ast.Assert() | ast.If() | ast.While():
                pass
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            if isinstance(node, ast.For | ast.With) and isinstance(child, ast.expr | ast.withitem):
                continue
            if isinstance(child, ast.expr):
                inside = self.value(child, frame)
                if isinstance(node, ast.Raise):
                    self.given_away(inside, node)
            elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case | ast.pattern):
                returned |= self._statement(child, frame)
        return returned

    def assign(self, target: ast.AST, value: Value, frame: Frame) -> None:
        match target:
            case ast.Name(id=name):
                if name in frame.shared:
                    self.given_away(value, target)
                frame.assign(name, value)
            case ast.Starred(value=inner):
                self.assign(inner, frozenset((Items(value),)), frame)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for each in targets:
                    self.assign(each, self.elements(value), frame)
            case ast.Subscript(value=ast.Name(id=name) as base, slice=key):
                self.value(key, frame)
                self.given_away(value, target)  # the container may have other names, too
                if any(isinstance(atom, Items) for atom in self.value(base, frame)):
                    frame.assign(name, frozenset((Items(value),)))
            case _:
                for child in ast.iter_child_nodes(target):
                    if isinstance(child, ast.expr):
                        self.value(child, frame)
                self.given_away(value, target)

    def _import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        for alias in node.names:
            name = (alias.asname or alias.name).partition(".")[0]
            if isinstance(node, ast.Import):
                module = sys.modules.get(alias.name if alias.asname else name)
                found = _UNKNOWN if module is None else frozenset((known(module),))
            else:
                module = None if node.level else sys.modules.get(node.module or "")
                found = _UNKNOWN if module is None else attribute(module, alias.name)
            frame.assign(name, found)


def _falls_through(body: list[ast.stmt]) -> bool:
    """Return whether control may reach the end of a body, so that it returns None."""
    match body[-1] if body else None:
        case ast.Return() | ast.Raise():
            return False
        case ast.If(body=inner, orelse=other):
            return not other or _falls_through(inner) or _falls_through(other)
        case ast.With(body=inner):
            return _falls_through(inner)
        case _:
            return True
