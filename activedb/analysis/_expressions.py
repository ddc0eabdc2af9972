"""Interpretation of the expressions in a rule's source."""

from __future__ import annotations

import ast
from abc import abstractmethod
from types import FunctionType
from typing import Any

from activedb.analysis import _objects
from activedb.analysis._calls import Calls
from activedb.analysis._frames import Frame
from activedb.analysis._statements import compared
from activedb.analysis._tables import table_of
from activedb.analysis._values import (
    DATA,
    TRANSACTION,
    UNKNOWN,
    Bound,
    Columns,
    Items,
    Known,
    Local,
    Method,
    Sql,
    Value,
)

__all__ = ["Expressions"]

_NOTHING: Value = frozenset()
_DATA: Value = frozenset((DATA,))
_UNKNOWN: Value = frozenset((UNKNOWN,))
_GROWING = {"append", "add", "insert", "extend", "update", "setdefault", "appendleft"}


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
                return frozenset().union(*(self._attribute(atom, name, node) for atom in found))
            case ast.Subscript(value=base, slice=key):
                keys = self.value(key, frame)
                found = self.value(base, frame)
                return frozenset().union(*(self._subscript(atom, keys) for atom in found))
            case ast.Call():
                return self.call(node, frame, is_used=True)
            case ast.Lambda():
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
                return self._items([*keys_found, *(self.value(v, frame) for v in dict_values)])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.Compare(left=left, comparators=others):
                operands = [self.value(each, frame) for each in (left, *others)]
                made = compared(operands)
                return _DATA if made is None else frozenset((made,))
            case ast.BinOp(left=left, right=right):
                return self.joined([self.value(left, frame), self.value(right, frame)])
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
        inside = self.elements(self.value(spread, frame))
        named["**"] = named.get("**", _NOTHING) | inside

    def _grow(self, function: ast.Attribute, args: list[Value], frame: Frame) -> None:
        """Add the arguments of ``append`` and the like to the contents of a list."""
        if function.attr not in _GROWING or not isinstance(function.value, ast.Name):
            return
        if any(isinstance(atom, Items) for atom in frame.lookup(function.value.id)):
            more = frozenset().union(*args, *(self.elements(each) for each in args))
            plain = frozenset(atom for atom in more if not isinstance(atom, Items))
            frame.assign(function.value.id, frozenset((Items(plain),)))

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
        assert isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp)
        for generator in node.generators:
            found = self.elements(self.value(generator.iter, frame))
            self.assign(generator.target, found, frame)
            for test in generator.ifs:
                self.value(test, frame)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return self._items([self.value(part, frame) for part in parts])

    def _attribute(self, atom: Any, name: str, node: ast.AST) -> Value:
        if atom == TRANSACTION:
            return self.of_transaction_attribute(name, node)
        if isinstance(atom, Method):
            self.found.unresolved(node, f"{atom.name} of a {atom.of} is not followed")
            return _UNKNOWN
        if isinstance(atom, Columns):
            column = atom.table.column(name)
            return frozenset((Sql(reads=frozenset((column or atom.table,))),))
        if isinstance(atom, Sql):
            return frozenset((atom,))
        if isinstance(atom, Known):
            if _objects.is_database(atom.thing) and name not in ("metadata", "settings"):
                return frozenset((Method("database", name),))
            return _objects.attribute(atom.thing, name)
        return _DATA if atom == DATA else _UNKNOWN

    def _subscript(self, atom: Any, keys: Value) -> Value:
        if isinstance(atom, Columns):
            names = [k.thing for k in keys if isinstance(k, Known) and type(k.thing) is str]
            found = [atom.table.column(name) for name in names] or [None]
            return frozenset(Sql(reads=frozenset((column or atom.table,))) for column in found)
        if isinstance(atom, Items):
            return atom.inside or _UNKNOWN
        if isinstance(atom, Known):
            return _objects.subscript(atom.thing, keys)
        if isinstance(atom, Sql):
            return frozenset((atom,))
        return _DATA if atom == DATA else _UNKNOWN

    def elements(self, value: Value) -> Value:
        found: Value = _NOTHING
        for atom in value:
            if isinstance(atom, Items):
                found |= atom.inside or _UNKNOWN
            elif isinstance(atom, Known):
                found |= _objects.elements(atom.thing)
            else:
                found |= _DATA if atom == DATA else _UNKNOWN
                if atom == TRANSACTION or isinstance(atom, Bound | Local):
                    found |= {atom}
        return found

    def joined(self, operands: list[Value]) -> Value:
        """Return the value of an arithmetic operator."""
        made = compared(operands)
        if made is not None:
            return frozenset((made,))
        together: Value = frozenset().union(*operands)
        items = [atom for atom in together if isinstance(atom, Items)]
        if items:
            return self._items([item.inside for item in items]) | (together - set(items))
        if all(
            atom == DATA or (isinstance(atom, Known) and type(atom.thing) is str)
            for atom in together
        ):
            return _DATA if together else _NOTHING
        return _UNKNOWN | {atom for atom in together if atom == TRANSACTION}


def _place_in_order(atom: Any) -> str:
    """Return a stable sort key of an atom, which fixes the order of findings."""
    if isinstance(atom, Known):
        thing, table = atom.thing, table_of(atom.thing)
        name = thing.__qualname__ if isinstance(thing, type | FunctionType) else ""
        return f"{type(thing).__name__} {name if table is None else table.name}"
    return type(atom).__name__
