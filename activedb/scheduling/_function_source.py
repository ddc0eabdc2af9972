"""Syntax tree of a function, if it certainly matches the compiled code; nothing is run.

The text of a file may differ from the running code: the file may have changed since, or a decorator
may have substituted another function. So the text is compiled again, and the code compared.

References and values are found by a small interpreter of the tree, which knows names that are bound
once, constants, tuples, the parameters, arithmetic on these, and the methods that create
references. All other nodes are unclear.
"""

from __future__ import annotations

import ast
import linecache
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NoReturn, TypeAlias

from activedb.errors import DefinitionError
from activedb.scheduling._tables import Computed, Ref, SharedTable

__all__ = [
    "Bindings",
    "Expressions",
    "FunctionNode",
    "FunctionSource",
    "Params",
    "Refs",
    "Unclear",
    "written",
]


FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class FunctionSource:
    """Source of a function.

    Attributes
    ----------
    node : ast node
    around : tuple of ast nodes
        The enclosing functions, innermost first.
    outside : Bindings
        Names bound by the module.
    """

    node: FunctionNode
    around: tuple[FunctionNode, ...]
    outside: Bindings

    def is_bound_once(self, name: str, *, is_free: bool) -> bool:
        """Return whether a name from outside the function is bound in one place, not in a loop.

        Parameters
        ----------
        name : str
        is_free : bool
            Whether it belongs to an enclosing function; else it is global.
        """
        bindings = self.outside
        if name in bindings.declared:  # a function binds it as global or nonlocal
            return False
        if is_free:
            for node in self.around:
                bindings = Bindings.of(node)
                if name in bindings.bound:
                    break
            if name in bindings.inner:  # possibly bound by a comprehension
                return False
        return len(bindings.bound.get(name, ())) == 1 and name not in bindings.repeated


def written(function: object) -> FunctionSource | None:
    """Return the source of a function; None if it is not certain.

    O(nodes of the file) once per file, then O(definitions at its line).
    """
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    codes, definitions, outside = _compiled("".join(lines), code.co_filename)
    if not any(_is_same(code, each) for each in codes.get(code.co_firstlineno, ())):
        return None
    fitting = [each for each in definitions.get(code.co_firstlineno, ()) if _fits(each[0], code)]
    if len(fitting) != 1:
        return None
    return FunctionSource(*fitting[0], outside)


_Definitions: TypeAlias = dict[int, list[tuple[FunctionNode, tuple[FunctionNode, ...]]]]


@lru_cache(maxsize=64)
def _compiled(text: str, name: str) -> tuple[dict[int, list[CodeType]], _Definitions, Bindings]:
    """Return code objects and definitions by their first line, and the module's bindings."""
    codes: dict[int, list[CodeType]] = {}
    definitions: _Definitions = {}
    try:
        module = ast.parse(text)
        whole = compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return codes, definitions, Bindings()
    for code in _codes(whole):
        codes.setdefault(code.co_firstlineno, []).append(code)
    for node, around in _functions(module, ()):
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        first = min([node.lineno, *(each.lineno for each in decorators)])
        definitions.setdefault(first, []).append((node, around))
    return codes, definitions, Bindings.of(module)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _functions(
    node: ast.AST, around: tuple[FunctionNode, ...]
) -> Iterator[tuple[FunctionNode, tuple[FunctionNode, ...]]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, FunctionNode):
            yield each, around
            yield from _functions(each, (each, *around))
        else:
            yield from _functions(each, around)


def _fits(node: FunctionNode, code: CodeType) -> bool:
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return (
        name == code.co_name
        and tuple(each.arg for each in named)
        == (code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    )


def _is_same(code: CodeType, other: CodeType) -> bool:
    """Return whether two code objects are equivalent, apart from interpreter bookkeeping."""
    return (
        code.co_code == other.co_code
        and code.co_names == other.co_names
        and code.co_varnames == other.co_varnames
        and code.co_freevars == other.co_freevars
        and code.co_cellvars == other.co_cellvars
        and code.co_linetable == other.co_linetable
        and len(code.co_consts) == len(other.co_consts)
        and all(map(_is_same_constant, code.co_consts, other.co_consts))
    )


def _is_same_constant(value: object, other: object) -> bool:
    if isinstance(value, CodeType):
        return isinstance(other, CodeType) and _is_same(value, other)
    if isinstance(value, frozenset):
        return isinstance(other, frozenset) and sorted(map(repr, value)) == sorted(map(repr, other))
    return type(value) is type(other) and repr(value) == repr(other)


@dataclass
class Bindings:
    """Names that the statements of one scope bind.

    Attributes
    ----------
    bound : dict of str to list of (ast.expr or None)
        For each binding of a name in this scope, the expression assigned; None if there is none.
    repeated : set of str
        Names bound in a loop.
    inner : set of str
        Names that nested scopes bind locally.
    declared : set of str
        Names declared global or nonlocal, here or in a nested scope.
    has_classes : bool
    """

    bound: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    inner: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)
    has_classes: bool = False

    @classmethod
    @lru_cache(maxsize=256)
    def of(cls, scope: FunctionNode | ast.Module) -> Bindings:
        """Return the bindings of a function, parameters included, or of a module; read-only."""
        found = cls()
        visit = _Visit(found)
        if isinstance(scope, ast.Module):
            visit.all(scope.body)
        else:
            visit.all(_parameters(scope))
            visit.all([scope.body] if isinstance(scope, ast.Lambda) else scope.body)
        return found


@dataclass(frozen=True)
class _Visit:
    """Visitor for nodes of the scope itself or of a nested one, and inside a loop or not."""

    found: Bindings
    is_inner: bool = False
    is_repeated: bool = False

    def within(self) -> _Visit:
        """Return a visitor for the scopes nested in this one."""
        return replace(self, is_inner=True)

    def all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.node(node)

    def bind(self, name: str | None, value: ast.expr | None = None) -> None:
        if name is not None and self.is_inner:
            self.found.inner.add(name)
        elif name is not None:
            self.found.bound.setdefault(name, []).append(value)
            if self.is_repeated:
                self.found.repeated.add(name)

    def node(self, node: ast.AST) -> None:
        """Record the bindings of a node and of its children."""
        match node:
            case ast.Name(id=name):
                if not isinstance(node.ctx, ast.Load):
                    self.bind(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.bind(name, value)
                self.node(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value):
                self.bind(name, value)
                self.all([node.annotation, value])
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self.bind(name, value)  # binds in this scope even inside a comprehension
                self.node(value)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self.all([*node.args.defaults, *node.args.kw_defaults])
                inner = self.within()
                inner.all(_parameters(node))
                if isinstance(node, ast.Lambda):
                    inner.node(node.body)
                else:
                    self.bind(node.name)
                    self.all(node.decorator_list)
                    inner.all([*getattr(node, "type_params", ()), *node.body])
            case ast.ClassDef():
                self.found.has_classes = True
                self.bind(node.name)
                self.all([*node.decorator_list, *node.bases, *node.keywords])
                self.within().all([*getattr(node, "type_params", ()), *node.body])
            case ast.comprehension():
                self.within().node(node.target)
                self.all([node.iter, *node.ifs])
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                self.found.declared.update(names)
            case ast.alias():
                self.bind((node.asname or node.name).split(".")[0])
            case _:
                if isinstance(node, _OF_NAME) or type(node).__name__ in _OF_TYPES:
                    self.bind(getattr(node, "name", None))
                if isinstance(node, ast.arg):
                    self.bind(node.arg)
                if isinstance(node, ast.MatchMapping):
                    self.bind(node.rest)
                within = replace(self, is_repeated=True) if isinstance(node, _LOOPS) else self
                within.all(ast.iter_child_nodes(node))


_OF_NAME = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_OF_TYPES = ("TypeVar", "TypeVarTuple", "ParamSpec")  # since Python 3.12
_LOOPS = (
    *(ast.For, ast.AsyncFor, ast.While),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


def _parameters(node: FunctionNode) -> list[ast.AST]:
    return [each for each in ast.walk(node.args) if isinstance(each, ast.arg)]


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


_TOO_MUCH = ast.Slice()  # a node that is never interpreted on its own


class Unclear(Exception):
    """An expression does not follow from an event's parameters."""


class Expressions:
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
                return _TOO_MUCH
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
