"""Local names of a function and the atoms they may stand for."""

from __future__ import annotations

import ast
import builtins
from types import FunctionType
from typing import Any

from activedb.analysis._objects import known
from activedb.analysis._source import FunctionNode
from activedb.analysis._values import UNKNOWN, Value

__all__ = ["Frame"]

_UNKNOWN: Value = frozenset((UNKNOWN,))
_MISSING: Any = object()


class Frame:
    """Names in one call of a function. The set of atoms of a name only grows.

    Parameters
    ----------
    node : FunctionNode
    outer : Frame or FunctionType
        Scope of the names that are not local: the enclosing frame, or the function itself with its
        globals and closure.
    arguments : dict
        Atoms of the parameters.
    """

    def __init__(
        self, node: FunctionNode, outer: Frame | FunctionType, arguments: dict[str, Value]
    ):
        self.outer = outer
        self.names = dict(arguments)
        self.version = 0
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

    Names of inner functions are left out.
    """
    stored: set[str] = set()
    shared: set[str] = set()
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            stored.add(node.name)
            waiting += node.decorator_list
            continue
        if isinstance(node, ast.Lambda):
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
