"""Abstract interpretation of the source of a rule, for its effects on tables; no code is run.

Every name stands for a set of atoms (`_values`) that only grows. A body is read again until no set
changes; all branches are taken. The transaction is tracked: if it escapes to code that cannot be
read, the rule is opaque.
"""

from __future__ import annotations

import ast
import sys
from types import FunctionType

from activedb.analysis import _objects
from activedb.analysis._expressions import Expressions
from activedb.analysis._frames import Frame
from activedb.analysis._objects import known
from activedb.analysis._source import FunctionNode, node_of
from activedb.analysis._values import (
    DATA,
    UNKNOWN,
    Items,
    Known,
    Local,
    Value,
)

__all__ = ["Reading"]

_NOTHING: Value = frozenset()
_DATA: Value = frozenset((DATA,))
_UNKNOWN: Value = frozenset((UNKNOWN,))
_CALLS_MAX = 500
_PASSES_MAX = 20
_GROWING = {"append", "add", "insert", "extend", "update", "setdefault", "appendleft"}


class Reading(Expressions):
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
            rest = frozenset().union(*args[len(positional) :])
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
                    frame.assign(target.id, self.joined([frame.lookup(target.id), more]))
                else:
                    self.given_away(more, node)
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
                frame.assign(name, made)
                return returned
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
                if any(isinstance(atom, Items) for atom in self.value(base, frame)):
                    frame.assign(name, frozenset((Items(value),)))
                else:
                    self.given_away(value, target)
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
                found = _UNKNOWN if module is None else _objects.attribute(module, alias.name)
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
