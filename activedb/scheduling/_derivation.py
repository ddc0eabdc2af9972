"""Access sets of the short form, derived from a function's source without running it.

Each ``t.read(...)`` and ``t.write(...)`` in the function's text is one possible access, and there
are no others as long as `t` is used for nothing else. For each access and event, the derivation
determines the table and, if it depends only on the event's parameters, the key. An undetermined
reference may be anything: a whole table, or all tables. So the sets may be too large, but never too
small, for functions that do not change names of their module or of other frames.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType
from typing import Any

from activedb.scheduling._expressions import Expressions, Params, Refs, Unclear
from activedb.scheduling._function_source import Bindings, Written, written
from activedb.scheduling._tables import Ref, SharedTable

__all__ = ["derived"]

_REACHES_NAMES = {"eval", "exec", "globals", "locals", "vars"}
_LOOKS = {"get", "items", "keys", "values"}


def derived(function: Callable[..., Any], tables: tuple[SharedTable, ...]) -> tuple[Refs, Refs]:
    """Return the possible reads and writes of ``function(t, e)``, as functions of `e`.

    Parameters
    ----------
    function : callable
    tables : tuple of SharedTable
        Tables of the program; no others can be accessed.
    """
    everything = [table.range() for table in tables]
    try:
        source = written(function)
        if isinstance(function, FunctionType) and source is not None:
            found = _Accesses(function, source)
            if found.are_all:
                writes = [_without_window(make) for make in found.writes]
                return _sets(found.reads, tables), _sets(writes, tables)
    except RecursionError:  # some texts are nested too deeply, as for the interpreter
        pass
    return (lambda e: everything), (lambda e: everything)


def _sets(makers: list[Refs], tables: tuple[SharedTable, ...]) -> Refs:
    everything = [table.range() for table in tables]

    def refs(e: Params) -> list[Ref]:
        found: list[Ref] = []
        for make in makers:
            try:
                found += [ref for ref in make(e) if ref.table in tables]
            except Unclear:
                return everything
        return found

    return refs


def _without_window(make: Refs) -> Refs:
    return lambda e: [replace(ref, window_us=None) for ref in make(e)]


class _Accesses:
    """Accesses in the text of a function.

    Attributes
    ----------
    are_all : bool
        Whether the accesses found are complete; if not, they are useless.
    reads, writes : list of callable
        For each access, a function from an event's parameters to the possible references; it raises
        `Unclear` if they may be anything.
    """

    def __init__(self, function: FunctionType, source: Written):
        node = source.node
        arguments = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        self.reads: list[Refs] = []
        self.writes: list[Refs] = []
        self.are_all = False
        self._names = Bindings.of(node)
        if len(arguments) < 2 or self._names.has_classes:
            return
        self._t, self._e = arguments[:2]
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        self._parents = {
            child: parent
            for statement in body
            for parent in ast.walk(statement)
            for child in ast.iter_child_nodes(parent)
        }
        names = [
            each for statement in body for each in ast.walk(statement) if isinstance(each, ast.Name)
        ]
        if not (self._is_kept(self._t) and self._is_kept(self._e)):
            return
        if any(name.id in _REACHES_NAMES for name in names):
            return
        are_kept = all(self._is_look(name) for name in names if name.id == self._e)
        self._expressions = Expressions(
            function, source, self._names, self._e if are_kept else None
        )
        self.are_all = all(self._add(name) for name in names if name.id == self._t)

    def _is_kept(self, name: str) -> bool:
        """Return whether the name of a parameter denotes that parameter everywhere."""
        names = self._names
        return (
            len(names.bound[name]) == 1 and name not in names.inner and name not in names.declared
        )

    def _is_look(self, name: ast.Name) -> bool:
        """Return whether this use of the parameters leaves them unchanged."""
        parent = self._parents.get(name)
        if isinstance(parent, ast.Subscript):
            return parent.value is name and isinstance(parent.ctx, ast.Load)
        if isinstance(parent, ast.Compare):
            are_in = all(isinstance(each, ast.In | ast.NotIn) for each in parent.ops)
            return are_in and parent.left is not name
        return self._called(name) in _LOOKS

    def _called(self, name: ast.Name) -> str | None:
        """Return the name of the method called on `name` here, or None."""
        method = self._parents.get(name)
        if not isinstance(method, ast.Attribute):
            return None
        call = self._parents.get(method)
        return method.attr if isinstance(call, ast.Call) and call.func is method else None

    def _add(self, name: ast.Name) -> bool:
        """Add the access at this use of `t`; return whether it is an access or harmless."""
        method = self._called(name)
        if method not in ("read", "write"):
            return method == "abort"
        call = self._parents[self._parents[name]]
        assert isinstance(call, ast.Call)
        given = [*call.args[:1], *(each.value for each in call.keywords if each.arg == "ref")]
        if len(given) != 1:
            return False
        (self.reads if method == "read" else self.writes).append(self._expressions.refs(given[0]))
        return True
