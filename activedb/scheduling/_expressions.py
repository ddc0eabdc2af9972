"""References and values in a function's text, as functions of an event's parameters.

A small interpreter of the syntax tree. It knows names that are bound once, constants, tuples, the
parameters, arithmetic on these, and the methods that create references. All other nodes are
unclear.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType
from typing import Any, NoReturn

from activedb.errors import DefinitionError
from activedb.function_sources import Bindings, FunctionSource
from activedb.scheduling._tables import Computed, Ref, SharedTable

__all__ = ["AccessExpressions", "Params", "Refs", "Unclear"]

Params = Mapping[str, Any]
Refs = Callable[[Params], Iterable[Ref]]
_Value = Callable[[Params], Any]

_ON_NUMBERS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_NUMBERS = (int, float, bool)
_PLAIN = (*_NUMBERS, str, bytes, type(None))
_PARTS_MAX = 100  # per access; names may refer to each other, and expand to large expressions


_TOO_LARGE = ast.Slice()  # a node that is never interpreted on its own


class Unclear(Exception):
    """An expression does not follow from an event's parameters."""


class AccessExpressions:
    """Expressions of a function.

    Parameters
    ----------
    function : function
    source : FunctionSource
        Its source.
    names : Bindings
        Names that it binds.
    parameters : str or None
        Name of the event's parameters throughout the function; None if they have no such name.
    """

    def __init__(
        self,
        function: FunctionType,
        source: FunctionSource,
        names: Bindings,
        parameters: str | None,
    ):
        self._function = function
        self._source = source
        self._names = names
        self._e = parameters
        self._parts_left = 0

    def refs(self, node: ast.expr) -> Refs:
        """Return the possible targets of a reference; `Unclear` if it may be any table."""
        self._parts_left = _PARTS_MAX
        return self._refs(node)

    def _refs(self, node: ast.expr) -> Refs:
        node = self._followed(node)
        if isinstance(node, ast.IfExp):
            first, second = self._refs(node.body), self._refs(node.orelse)
            return lambda e: [*first(e), *second(e)]
        if isinstance(node, ast.Subscript):
            return self._key_of_table(self._thing(node.value), self._value(node.slice))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self._made(node, node.func)
        if isinstance(node, ast.Name):
            return self._named_ref(self._thing(node))
        return _unclear

    def _key_of_table(self, table_of: _Value, key_of: _Value) -> Refs:
        def refs(e: Params) -> list[Ref]:
            table = _table(table_of(e))
            try:
                key = key_of(e)
                table.check_key(key)
                is_itself = bool(key == key)
            except Exception:  # an undetermined or invalid key
                return [table.range()]
            return [table[key] if is_itself else table.range()]

        return refs

    def _made(self, call: ast.Call, method: ast.Attribute) -> Refs:
        """Return the references that a call of `window`, `range` or `computed` creates."""
        if method.attr == "window":
            base = self._followed(method.value)
            seconds = self._value(call.args[0]) if len(call.args) == 1 else _unclear
            return _windows(self._refs(base), seconds, is_key=isinstance(base, ast.Subscript))
        if method.attr == "range":
            return self._range(call, self._thing(method.value))
        if method.attr == "computed":
            return self._computed(call, self._thing(method.value))
        return _unclear

    def _range(self, call: ast.Call, table_of: _Value) -> Refs:
        given = dict(zip(("low", "high"), map(self._value, call.args), strict=False))
        given |= {each.arg or "**": self._value(each.value) for each in call.keywords}

        def refs(e: Params) -> list[Ref]:
            table = _table(table_of(e))
            try:
                bounds = {name: _plain(value(e)) for name, value in given.items()}
            except Unclear:
                return [table.range()]
            return [table.range(**bounds) if set(bounds) <= {"low", "high"} else table.range()]

        return refs

    def _computed(self, call: ast.Call, table_of: _Value) -> Refs:
        """Return the whole table, and the references in `reads`, which must be a tuple display."""
        reads: list[Refs] = []
        for each in call.keywords:
            if each.arg != "reads" or not isinstance(each.value, ast.Tuple):
                return _unclear
            reads += [self._refs(element) for element in each.value.elts]

        def refs(e: Params) -> list[Ref]:
            return [_table(table_of(e)).range(), *(ref for make in reads for ref in make(e))]

        return refs

    def _named_ref(self, thing_of: _Value) -> Refs:
        def refs(e: Params) -> list[Ref]:
            thing = thing_of(e)
            if type(thing) is not Ref:
                raise Unclear
            return list(_with_reads(thing))

        return refs

    # -- names ----------------------------------------------------------------------

    def _followed(self, node: ast.expr) -> ast.expr:
        """Resolve local names that are bound once; return the first expression of another kind."""
        while True:
            self._parts_left -= 1
            if self._parts_left < 0:
                return _TOO_LARGE
            if isinstance(node, ast.NamedExpr):
                node = node.value
                continue
            if not isinstance(node, ast.Name) or self._is_open(node.id):
                return node
            values = self._names.bound.get(node.id, [])
            if len(values) != 1 or values[0] is None:
                return node
            node = values[0]

    def _is_open(self, name: str) -> bool:
        """Return whether a name may denote different things in different places."""
        return name in self._names.inner or name in self._names.declared

    def _thing(self, node: ast.expr) -> _Value:
        """Return a function that gives the table or reference denoted by a name from outside."""
        node = self._followed(node)
        if not isinstance(node, ast.Name) or self._is_open(node.id):
            return _unclear
        name, code = node.id, self._function.__code__
        is_free = name in code.co_freevars
        if name in self._names.bound or not self._source.is_bound_once(name, is_free=is_free):
            return _unclear
        if not is_free:
            names = self._function.__globals__
            return lambda e: names.get(name)
        cell = (self._function.__closure__ or ())[code.co_freevars.index(name)]

        def contents(e: Params) -> Any:
            try:
                return cell.cell_contents
            except ValueError:  # the cell is still empty
                raise Unclear from None

        return contents

    # -- values ---------------------------------------------------------------------

    def _value(self, node: ast.expr) -> _Value:
        """Return the value of an expression over parameters, as a function of these."""
        node = self._followed(node)
        if isinstance(node, ast.Constant):
            constant = node.value
            return (lambda e: constant) if type(constant) in _PLAIN else _unclear
        if isinstance(node, ast.Tuple):
            parts = [self._value(each) for each in node.elts]
            return lambda e: tuple([part(e) for part in parts])
        if isinstance(node, ast.Subscript):
            return self._parameter(node)
        if isinstance(node, ast.BinOp):
            return self._calculated(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            number = self._value(node.operand)
            return lambda e: -_number(number(e))
        return _unclear

    def _parameter(self, node: ast.Subscript) -> _Value:
        is_it = isinstance(node.value, ast.Name) and node.value.id == self._e
        if not (is_it and isinstance(node.slice, ast.Constant)):
            return _unclear
        name: Any = node.slice.value

        def value(e: Params) -> Any:
            if name not in e:
                raise Unclear
            return e[name]

        return value

    def _calculated(self, node: ast.BinOp) -> _Value:
        operate = _ON_NUMBERS.get(type(node.op))
        left, right = self._value(node.left), self._value(node.right)
        if operate is None:
            return _unclear

        def value(e: Params) -> Any:
            a, b = left(e), right(e)
            if not (operate is operator.add and type(a) is type(b) in (str, bytes, tuple)):
                _number(a)
                _number(b)
            try:
                return operate(a, b)
            except ArithmeticError:
                raise Unclear from None

        return value


def _unclear(e: Params) -> NoReturn:
    raise Unclear


def _table(thing: Any) -> SharedTable:
    if type(thing) is not SharedTable:
        raise Unclear
    return thing


def _number(value: Any) -> Any:
    if type(value) not in _NUMBERS:
        raise Unclear
    return value


def _plain(value: Any) -> Any:
    """Return `value` if it is a plain value equal to itself; else raise `Unclear`."""
    if type(value) is tuple:
        return tuple(_plain(part) for part in value)
    if type(value) not in _PLAIN or value != value:
        raise Unclear
    return value


def _windows(of: Refs, seconds_of: _Value, *, is_key: bool) -> Refs:
    def refs(e: Params) -> list[Ref]:
        found = list(of(e))
        try:
            if not is_key:
                raise Unclear
            seconds = _number(seconds_of(e))
            return [ref if ref.is_whole else ref.window(seconds) for ref in found]
        except (Unclear, DefinitionError):  # an undetermined or invalid length
            return [ref.table.range() for ref in found]

    return refs


def _with_reads(ref: Ref) -> Iterator[Ref]:
    """Yield the reference as it is to be declared, and the references its key is computed from."""
    if not isinstance(ref.key, Computed):
        yield ref
        return
    yield ref.table.range()
    for each in ref.key.reads:
        yield from _with_reads(each)
