"""Abstract interpretation of the source of a rule, for its effects on tables; no code is run.

Every name stands for a value (`_values`) that only grows. A body is read again until no value
grows; all branches are taken.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Sequence
from types import FunctionType

from activedb.analysis._calls import Calls
from activedb.analysis._escape import EscapeAnalysis
from activedb.analysis._frame import Comprehension, Frame
from activedb.analysis._objects import attribute, elements, known, subscript
from activedb.analysis._recorder import Recorder
from activedb.analysis._statements import compared
from activedb.analysis._values import (
    ANYTHING,
    DATA,
    NOTHING,
    SLICE,
    SOME_DATA,
    CallSite,
    Items,
    Known,
    Local,
    Value,
    display,
    join,
    only,
    ordered,
    sites_of,
)
from activedb.function_sources import FunctionNode, node_of

__all__ = ["FunctionInterpreter"]

_CALLS_MAX = 500
_PASSES_MAX = 20
_WRITTEN: dict[type[ast.AST], str] = {
    ast.Eq: "==",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.BitAnd: "&",
}
"""Operators that matter in the conditions of statements, as they are written."""
_SPREADING = {"extend", "extendleft", "update"}
_GROWING = _SPREADING | {"add", "append", "appendleft", "insert", "setdefault"}


class FunctionInterpreter:
    """Interpreter of a function and of the functions of its file that it calls.

    Parameters
    ----------
    found : Recorder
    file : str
        Functions of this file are read. If a transaction is passed to any other, what it does is
        unresolved.
    """

    def __init__(self, found: Recorder, *, file: str):
        self._found = found
        self._escapes = EscapeAnalysis(found, file, self.follow)
        self._calls = Calls(found, self._escapes, self.follow)
        self._returned: dict[tuple[object, ...], Value] = {}
        self._frames: list[Frame] = []
        self._scopes: dict[tuple[Comprehension, Frame], Frame] = {}

    # -- functions -------------------------------------------------------------------------

    def follow(self, function: Known | Local, call: CallSite) -> Value:
        """Read the body of a function that is called; return the value it may return."""
        node: FunctionNode | None
        if isinstance(function, Local):
            node, outer, age = function.node, function.frame, function.frame.age
        else:
            node, outer, age = node_of(function.thing), function.thing, 0
            if node is None:
                why = f"the source of {outer.__qualname__} cannot be found"
                self._found.unresolved(call.node, why)
                return ANYTHING
        named = tuple(sorted(call.named.items()))
        key = (node, outer, age, call.args, named, call.is_spread)
        if key not in self._returned:
            if len(self._returned) >= _CALLS_MAX:
                why = f"more than {_CALLS_MAX} different calls to follow"
                self._found.unresolved(call.node, why)
                return ANYTHING
            self._returned[key] = ANYTHING  # for recursive calls
            frame = self._new_frame(node, outer, self._parameters(node, outer, call))
            self._returned[key] = self._body(node, frame)
        return self._returned[key]

    def _new_frame(
        self,
        node: FunctionNode | Comprehension,
        outer: Frame | FunctionType,
        arguments: dict[str, Value],
    ) -> Frame:
        self._frames.append(Frame(node, outer, arguments))
        return self._frames[-1]

    def _parameters(
        self, node: FunctionNode, outer: Frame | FunctionType, call: CallSite
    ) -> dict[str, Value]:
        """Return the values of a function's parameters in one call."""
        given = node.args
        positional = [each.arg for each in (*given.posonlyargs, *given.args)]
        names = [*positional, *(each.arg for each in given.kwonlyargs)]
        passed = dict(zip(positional, call.args, strict=False))
        for name in call.named.keys() & set(names):
            passed[name] = passed.get(name, NOTHING) | call.named[name]
        if call.is_spread or "**" in call.named:
            loose = join(call.arguments) | ANYTHING
            passed = {name: passed.get(name, NOTHING) | loose for name in names}
        if given.vararg is not None:
            rest = call.args if call.is_spread else call.args[len(positional) :]
            passed[given.vararg.arg] = only(Items(join(rest), frozenset((given.vararg,))))
        if given.kwarg is not None:
            more = join(value for name, value in call.named.items() if name not in names)
            passed[given.kwarg.arg] = only(Items(more, frozenset((given.kwarg,))))
        return dict.fromkeys(names, ANYTHING) | self._defaults(node, outer) | passed

    def _defaults(self, node: FunctionNode, outer: Frame | FunctionType) -> dict[str, Value]:
        """Return the values of the parameters that need not be passed."""
        given = node.args
        positional = [each.arg for each in (*given.posonlyargs, *given.args)]
        if isinstance(outer, FunctionType):
            last = outer.__defaults__ or ()
            found = dict(zip(reversed(positional), reversed(last), strict=False))
            found |= outer.__kwdefaults__ or {}
            return {name: only(known(thing)) for name, thing in found.items()}
        named = zip((each.arg for each in given.kwonlyargs), given.kw_defaults, strict=True)
        nodes = [*zip(reversed(positional), reversed(given.defaults), strict=False), *named]
        return {name: self._value(each, outer) for name, each in nodes if each is not None}

    def _body(self, node: FunctionNode, frame: Frame) -> Value:
        if isinstance(node, ast.Lambda):
            return self._value(node.body, frame)
        returned = NOTHING
        for _ in range(_PASSES_MAX):
            before = frame.age
            returned |= self._block(node.body, frame)
            if frame.age == before and not frame.settle():
                return returned | SOME_DATA if _falls_through(node.body) else returned
        self._found.unresolved(node, "too many assignments that depend on each other")
        return ANYTHING

    # -- statements ------------------------------------------------------------------------

    def _block(self, nodes: Iterable[ast.AST], frame: Frame) -> Value:
        """Read statements; return the value that they may return from their function."""
        return join([self._statement(node, frame) for node in nodes])

    def _statement(self, node: ast.AST, frame: Frame) -> Value:
        match node:
            case ast.Return(value=value):
                return SOME_DATA if value is None else self._value(value, frame)
            case ast.Expr(value=ast.Call() as call):
                self._call(call, frame, is_used=False)
            case ast.Assign(targets=targets, value=value):
                found = self._value(value, frame)
                for target in targets:
                    self._assign(target, found, frame)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    self._assign(target, self._value(value, frame), frame)
            case ast.AugAssign(target=target, value=value):
                before, found = self._operands([target, value], frame)
                self._grow(before, elements(found) | _mapped(found))
                if isinstance(target, ast.Name):
                    found = _operated([before, found])
                self._assign(target, found, frame)
            case ast.For(target=target, iter=iterated, body=body, orelse=orelse):
                self._assign(target, elements(self._operand(iterated, frame)), frame)
                return self._block([*body, *orelse], frame)
            case ast.With(items=items, body=body):
                for item in items:
                    opened = self._operand(item.context_expr, frame)
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, opened, frame)
                return self._block(body, frame)
            case ast.FunctionDef(name=name):
                made = only(Local(node, frame))
                for decorator in node.decorator_list:
                    self._escapes.value(self._value(decorator, frame) | made, decorator)
                    made |= ANYTHING
                self._define(node, frame)
                self._assign(ast.Name(name, lineno=node.lineno), made, frame)
            case ast.Match(subject=subject, cases=cases):
                # Which part of it a pattern binds is not followed.
                found = self._value(subject, frame)
                self._escapes.value(found, subject)
                for part in (part for case in cases for part in ast.walk(case.pattern)):
                    captured = getattr(part, "name", None) or getattr(part, "rest", None)
                    if captured is not None:
                        frame.assign(captured, found | elements(found) | ANYTHING)
                return self._block(cases, frame)
            case ast.Import() | ast.ImportFrom():
                self._import(node, frame)
            case ast.ClassDef() | ast.AsyncFunctionDef() | ast.AsyncFor() | ast.AsyncWith():
                self._found.unresolved(node, "a class or coroutine in a rule is not followed")
            case ast.Raise():
                for child in ast.iter_child_nodes(node):
                    self._escapes.value(self._value(child, frame), node)
            case ast.expr():
                self._operand(node, frame)
            case _:
                if isinstance(node, ast.ExceptHandler) and node.name:
                    frame.assign(node.name, SOME_DATA)
                return self._block(ast.iter_child_nodes(node), frame)
        return NOTHING

    def _assign(self, target: ast.AST, value: Value, frame: Frame) -> None:
        """Add to the value that an assignment target may have."""
        match target:
            case ast.Name(id=name):
                if name in frame.shared:
                    self._escapes.value(value, target)
                frame.assign(name, value)
            case ast.Starred(value=inner):
                self._assign(inner, only(Items(value, frozenset((target,)))), frame)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                self._escapes.operands(value, target)
                for each in targets:
                    self._assign(each, elements(value), frame)
            case ast.Subscript(value=base, slice=key):
                objects, keys = self._operands([base, key], frame)
                self._escapes.value(value, target)  # the container may not be of this source
                self._grow(objects, value | elements(value) if SLICE in keys else value)
            case _:
                self._operands(list(ast.iter_child_nodes(target)), frame)
                self._escapes.value(value, target)

    def _import(self, node: ast.Import | ast.ImportFrom, frame: Frame) -> None:
        for alias in node.names:
            name = (alias.asname or alias.name).partition(".")[0]
            if isinstance(node, ast.Import):
                module = sys.modules.get(alias.name if alias.asname else name)
                found = ANYTHING if module is None else only(known(module))
            else:
                module = None if node.level else sys.modules.get(node.module or "")
                found = ANYTHING if module is None else attribute(module, alias.name)
            frame.assign(name, found)

    # -- expressions -----------------------------------------------------------------------

    def _value(self, node: ast.AST, frame: Frame) -> Value:
        """Return the value that an expression may have, reading its calls on the way."""
        match node:
            case ast.Constant(value=constant):
                return only(Known(constant)) if type(constant) is str else SOME_DATA
            case ast.Name(id=name):
                return frame.lookup(name)
            case ast.Attribute(value=base, attr=name):
                objects = ordered(self._value(base, frame))
                return join([self._calls.attribute(atom, name, node) for atom in objects])
            case ast.Subscript(value=base, slice=key):
                found, key_found = self._operands([base, key], frame)
                return join(subscript(atom, key_found) for atom in found)
            case ast.Slice():
                self._operands(list(ast.iter_child_nodes(node)), frame)
                return only(SLICE)
            case ast.Call():
                return self._call(node, frame)
            case ast.Lambda():
                self._define(node, frame)
                return only(Local(node, frame))
            case ast.IfExp(test=test, body=body, orelse=other):
                self._operand(test, frame)
                return join(self._values([body, other], frame))
            case ast.BoolOp(values=values):
                return join([self._operand(each, frame) for each in values])
            case ast.NamedExpr(target=target, value=inner):
                found = self._value(inner, frame)
                self._assign(target, found, frame)
                return found
            case ast.Tuple(elts=inside) | ast.List(elts=inside):
                return display(self._values(inside, frame), node)
            case ast.Set(elts=inside):
                return display(self._operands(inside, frame), node)
            case ast.Dict(keys=keys, values=values):
                parts = self._operands([each for each in keys if each is not None], frame)
                for each, mapped in zip(keys, values, strict=True):
                    read = self._unpacked if each is None else self._value
                    parts.append(read(mapped, frame))
                return display(parts, node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.Compare(left=left, ops=operators, comparators=others):
                compared_nodes = [left, *others]
                is_plain = len(operators) == 1 and not any(map(_is_none, compared_nodes))
                operator = _WRITTEN.get(type(operators[0]), "") if is_plain else ""
                made = compared(self._operands(compared_nodes, frame), operator)
                return SOME_DATA if made is None else only(made)
            case ast.BinOp(left=left, right=right, op=operator):
                operands = self._operands([left, right], frame)
                return _operated(operands, _WRITTEN.get(type(operator), ""))
            case ast.UnaryOp(operand=operand):
                return _operated([self._operand(operand, frame)])
            case ast.Starred(value=inner):
                return elements(self._operand(inner, frame))
            case ast.expr():
                for child in ast.iter_child_nodes(node):
                    self._escapes.value(self._value(child, frame), child)
                is_text = isinstance(node, ast.JoinedStr | ast.FormattedValue)
                return SOME_DATA if is_text else ANYTHING
        return NOTHING  # no expression, such as the context of a name

    def _values(self, nodes: Iterable[ast.AST], frame: Frame) -> list[Value]:
        return [self._value(node, frame) for node in nodes]

    def _operand(self, node: ast.AST, frame: Frame) -> Value:
        """Return the value of an expression that an operator gets, such as a test."""
        return self._operands([node], frame)[0]

    def _operands(self, nodes: Sequence[ast.AST], frame: Frame) -> list[Value]:
        """Return the values of expressions that one operator gets."""
        found = self._values(nodes, frame)
        if nodes:
            self._escapes.operands(join(found), nodes[0])
        return found

    def _unpacked(self, node: ast.expr, frame: Frame) -> Value:
        """Return the values of a mapping, as ``**mapping`` gives them."""
        return _mapped(self._operand(node, frame))

    def _call(self, node: ast.Call, frame: Frame, *, is_used: bool = True) -> Value:
        """Read a call and return its value."""
        args = tuple(self._values(node.args, frame))
        is_spread = any(isinstance(each, ast.Starred) for each in node.args)
        call = CallSite(node, args, self._named(node.keywords, frame), is_spread, is_used)
        if isinstance(node.func, ast.Attribute):
            base = self._value(node.func.value, frame)
            if node.func.attr in _GROWING:
                more = join(call.arguments)
                if node.func.attr in _SPREADING:
                    more |= elements(more) | _mapped(more)
                self._grow(base, more)
            methods = [self._calls.method(atom, node.func.attr, call) for atom in ordered(base)]
            return join(methods)
        return self._calls.any_of(self._value(node.func, frame), call)

    def _named(self, keywords: list[ast.keyword], frame: Frame) -> dict[str, Value]:
        """Return the values of named arguments, and those of ``**mapping`` under ``"**"``."""
        named: dict[str, Value] = {}
        for keyword in keywords:
            pairs = [(keyword.arg, keyword.value)]
            if keyword.arg is None and isinstance(keyword.value, ast.Dict):
                keys = [getattr(key, "value", None) for key in keyword.value.keys]
                if all(type(key) is str for key in keys):
                    pairs = list(zip(keys, keyword.value.values, strict=True))
            for name, value in pairs:
                if name is None:
                    named["**"] = named.get("**", NOTHING) | self._unpacked(value, frame)
                else:
                    named[name] = self._value(value, frame)
        return named

    def _grow(self, containers: Value, more: Value) -> None:
        """Add to the contents of containers, in all values that may be one of them."""
        sites = sites_of(frozenset(atom for atom in containers if isinstance(atom, Items)))
        if sites:
            grown = display([more], *sites)
            for frame in self._frames:
                frame.grow(sites, grown)
            for call, value in self._returned.items():
                if sites & sites_of(value):
                    self._returned[call] = value | grown

    def _define(self, node: FunctionNode, frame: Frame) -> None:
        """Read what runs when a function is defined: its defaults and annotations."""
        arguments = [
            each.annotation if isinstance(each, ast.arg) else each
            for each in ast.iter_child_nodes(node.args)
        ]
        returned = None if isinstance(node, ast.Lambda) else node.returns
        self._values([each for each in (*arguments, returned) if each is not None], frame)

    def _comprehension(self, node: Comprehension, outer: Frame) -> Value:
        # One frame for each frame around it, as names only grow.
        if (node, outer) not in self._scopes:
            self._scopes[node, outer] = self._new_frame(node, outer, {})
        frame = self._scopes[node, outer]
        for place, generator in enumerate(node.generators):
            # The first iterable belongs to the scope around the comprehension.
            found = elements(self._operand(generator.iter, frame if place else outer))
            self._assign(generator.target, found, frame)
            for test in generator.ifs:
                self._operand(test, frame)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return display(self._operands(parts, frame), node)


def _operated(operands: list[Value], operator: str = "") -> Value:
    """Return the value of an arithmetic or bitwise operator, as it is written."""
    statement = compared(operands, operator)
    if statement is not None:
        return only(statement)
    together = join(operands)
    items = [atom for atom in together if isinstance(atom, Items)]
    if items:
        made = display([atom.inside for atom in items], *sites_of(together))
        return made | together.difference(items)
    others = frozenset(
        atom
        for atom in together
        if not (atom == DATA or (isinstance(atom, Known) and type(atom.thing) is str))
    )
    if not others:
        return SOME_DATA if together else NOTHING
    return ANYTHING | others  # such as the lists that are added


def _mapped(value: Value) -> Value:
    """Return the values of a mapping."""
    return join(subscript(atom, ANYTHING) for atom in value)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


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
