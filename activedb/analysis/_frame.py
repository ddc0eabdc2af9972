"""Environment of an abstract interpretation: the values that the names of a scope may have."""

from __future__ import annotations

import ast
import builtins
from types import FunctionType
from typing import Any, TypeAlias, TypeGuard

from activedb.analysis._objects import known
from activedb.analysis._values import ANYTHING, NOTHING, Value, only, sites_of
from activedb.function_sources import Bindings, FunctionNode

__all__ = ["Comprehension", "Frame"]

Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
_MISSING: Any = object()


class Frame:
    """Names in one call of a function, or in a comprehension. Their values only grow.

    Parameters
    ----------
    node : FunctionNode or Comprehension
    outer : Frame or FunctionType
        Scope of the names that are not local: the enclosing frame, or the function itself with its
        globals and closure.
    arguments : dict
        Values of the parameters.

    Attributes
    ----------
    shared : set of str
        Names that are global or belong to an enclosing function, though they are assigned here.
    """

    def __init__(
        self,
        node: FunctionNode | Comprehension,
        outer: Frame | FunctionType,
        arguments: dict[str, Value],
    ):
        self._outer = outer
        self._values = dict(arguments)
        self._version = 0
        if isinstance(node, Comprehension):
            parts = [part for each in node.generators for part in ast.walk(each.target)]
            bound = {part.id for part in parts if _is_stored(part)}
            self.shared: set[str] = outer.shared if isinstance(outer, Frame) else set()
        else:
            bindings = Bindings.of(node)
            bound, self.shared = set(bindings.bound), bindings.shared
        self._own = (bound | set(arguments)) - self.shared

    def lookup(self, name: str) -> Value:
        """Return the value that a name may have; empty if it is not assigned yet."""
        if name in self._own:
            return self._values.get(name, NOTHING)
        if isinstance(self._outer, Frame):
            found = self._outer.lookup(name)
        else:
            found = _outside(self._outer, name)
        return found | ANYTHING if name in self.shared else found

    def assign(self, name: str, value: Value) -> None:
        """Add to the value that a name may have."""
        if name not in self._own:
            if isinstance(self._outer, Frame):
                self._outer.assign(name, value)
            return
        before = self._values.get(name, NOTHING)
        if not value <= before:
            self._values[name] = before | value
            self._version += 1

    def grow(self, sites: frozenset[Any], value: Value) -> None:
        """Add to each value that may be, or hold, a container made at one of these sites."""
        for name, before in list(self._values.items()):
            if sites & sites_of(before):
                self.assign(name, value)

    def settle(self) -> bool:
        """Make unassigned names unknown; return whether there were any."""
        bare = [name for name in self._own if not self._values.get(name)]
        for name in bare:
            self.assign(name, ANYTHING)
        return bool(bare)

    @property
    def age(self) -> int:
        """Counter that grows whenever a value of this or an enclosing frame grows."""
        return self._version + (self._outer.age if isinstance(self._outer, Frame) else 0)


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _outside(function: FunctionType, name: str) -> Value:
    """Return the present value of a name in the closure or globals of a function."""
    code = function.__code__
    if name in code.co_freevars and function.__closure__ is not None:
        try:
            return only(known(function.__closure__[code.co_freevars.index(name)].cell_contents))
        except ValueError:
            return ANYTHING  # assigned later
    found = function.__globals__.get(name, vars(builtins).get(name, _MISSING))
    return ANYTHING if found is _MISSING else only(known(found))
