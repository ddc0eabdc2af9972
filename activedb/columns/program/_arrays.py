"""Check that compiled functions do not misuse windows and other arrays.

Compiled, a window is a NumPy array without bounds checks; in Python it is a list. Operations that
differ between the two, or could read memory outside the window, stay in Python. A function may take
the length or sum of a window, and loop over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from numba.core import ir
from numba.core import types as numba_types

__all__ = ["misuse_of_array"]

types: Any = numba_types  # some are unknown to type checkers

_WITHOUT_HARM: Final = frozenset(
    {"getiter", "iternext", "pair_first", "pair_second", "cast", "phi"}
)
_BUILTINS: Final = (len, sum, enumerate, zip)  # sum: see `_functions`


def misuse_of_array(annotation: Any) -> str | None:
    """Return the forbidden array operation of a compiled function; None if there is none.

    Parameters
    ----------
    annotation : numba's TypeAnnotation
        Blocks of the function, and the types of its variables.
    """
    for block in annotation.blocks.values():
        for statement in block.body:
            if isinstance(statement, ir.SetItem | ir.StaticSetItem | ir.DelItem):
                return "changes a list or an array"
            if not isinstance(statement, ir.Assign) or not isinstance(statement.value, ir.Expr):
                continue
            expression = statement.value
            if not any(_is_array(annotation, v) for v in _variables(expression)):
                continue
            if expression.op in _WITHOUT_HARM:
                continue
            if expression.op == "call":
                if _may_be_called(annotation.typemap[expression.func.name]):
                    continue
                return "hands a window, or an array, to what is not known"
            if expression.op in ("getitem", "static_getitem", "typed_getitem"):
                return "takes a part of a window, or of an array, by its number"
            return f"does {expression.op} with a window, or an array"
    return None


def _variables(expression: ir.Expr) -> Iterator[ir.Var]:
    variables: Any = expression.list_vars
    found: list[ir.Var] = variables()
    return iter(found)


def _is_array(annotation: Any, variable: ir.Var) -> bool:
    known = annotation.typemap.get(variable.name)
    if isinstance(known, types.BaseTuple):
        return any(isinstance(part, types.Buffer) for part in known)
    return isinstance(known, types.Buffer)


def _may_be_called(function: Any) -> bool:
    if isinstance(function, types.Dispatcher):
        return True  # checked separately
    return getattr(function, "typing_key", None) in _BUILTINS
