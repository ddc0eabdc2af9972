"""Source of existing functions: syntax trees, and whether they certainly match the compiled code.

No code is run. The text of a file may differ from the running code: the file may have changed
since, or a decorator may have substituted another function. `node_of` returns the definition that
fits; `source_of` compiles the text again, compares the code, and is certain.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import TypeAlias

__all__ = [
    "Bindings",
    "FunctionNode",
    "FunctionSource",
    "codes_in",
    "file_of",
    "node_of",
    "source_of",
]

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Definitions: TypeAlias = dict[int, list[tuple[FunctionNode, tuple[FunctionNode, ...]]]]


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


def file_of(function: FunctionType) -> str:
    """Return the name of the file that defines a function, without its folder."""
    return PurePath(function.__code__.co_filename).name


def node_of(function: FunctionType) -> FunctionNode | None:
    """Return the definition of a function in its source file; None if it is not found or ambiguous.

    O(nodes of the file) once per file, then O(definitions at its line).
    """
    code = function.__code__
    # A notebook's cells and the like have no file, but linecache knows their source.
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    _, definitions = _parsed(text)
    fitting = [node for node, _ in definitions.get(code.co_firstlineno, ()) if _fits(node, code)]
    if len(fitting) > 1:
        fitting = _narrowed(fitting, code)
    return fitting[0] if len(fitting) == 1 else None


def source_of(function: object) -> FunctionSource | None:
    """Return the source of a function; None if it is not certain.

    O(nodes of the file) once per file, then O(definitions at its line).
    """
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    codes = _compiled(text, code.co_filename)
    if not any(_is_same(code, each) for each in codes.get(code.co_firstlineno, ())):
        return None
    module, definitions = _parsed(text)
    fitting = [each for each in definitions.get(code.co_firstlineno, ()) if _fits(each[0], code)]
    if module is None or len(fitting) != 1:
        return None
    return FunctionSource(*fitting[0], Bindings.of(module))


@lru_cache(maxsize=64)
def _parsed(text: str) -> tuple[ast.Module | None, _Definitions]:
    """Return a file's tree, and its definitions, with those around each, by their first line."""
    definitions: _Definitions = {}
    try:
        module = ast.parse(text)
        for node, around in _functions(module, ()):
            decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
            first = min([node.lineno, *(each.lineno for each in decorators)])
            definitions.setdefault(first, []).append((node, around))
    except (SyntaxError, ValueError, RecursionError):
        return None, {}
    return module, definitions


@lru_cache(maxsize=64)
def _compiled(text: str, name: str) -> dict[int, list[CodeType]]:
    """Return a file's code objects by their first line."""
    codes: dict[int, list[CodeType]] = {}
    try:
        whole = compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return codes
    for code in codes_in(whole):
        codes.setdefault(code.co_firstlineno, []).append(code)
    return codes


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and those of the functions and comprehensions inside."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)


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
    rest = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    count = len(named) + len(rest)
    return (
        name == code.co_name
        and len(named) == code.co_argcount + code.co_kwonlyargcount
        and tuple(each.arg for each in [*named, *rest]) == code.co_varnames[:count]
    )


def _narrowed(nodes: list[FunctionNode], code: CodeType) -> list[FunctionNode]:
    """Return, of definitions on one line, the innermost ones that contain all instructions."""
    places = list(_places(code))
    holding = [node for node in nodes if all(_holds(node, place) for place in places)]
    holding = [
        node
        for node in holding
        if not any(other is not node and other in ast.walk(node) for other in holding)
    ]
    return holding if places else []


def _places(code: CodeType) -> Iterator[tuple[int, int]]:
    for line, end_line, start, end in code.co_positions():
        if None not in (line, end_line, start, end) and (line, start) != (end_line, end):
            yield line or 0, start or 0


def _holds(node: FunctionNode, place: tuple[int, int]) -> bool:
    end = (node.end_lineno or 0, node.end_col_offset or 0)
    return (node.lineno, node.col_offset) <= place < end


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
    shared : set of str
        Names declared global or nonlocal in this scope.
    has_classes : bool
    """

    bound: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    inner: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
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
                if not self.is_inner:
                    self.found.shared.update(names)
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
