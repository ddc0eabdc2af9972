"""Abstract values of expressions in a rule's source: sets of atoms.

::

    Atom
    ├── DATA          a plain value: of an event, of a row, computed
    ├── UNKNOWN       anything
    ├── TRANSACTION   the rule's transaction, or an inferior of it
    ├── Known         an object that exists: a module, a table, a function, a constant
    ├── Method        a method of a transaction or database about to be called
    ├── Local         a function written inside a function
    ├── Bound         a function with its first arguments
    ├── Items         a list, tuple, set or dict display, with its contents
    ├── Columns       ``table.c``
    └── Sql           a statement or a part of one, with what it reads and writes

The empty set means: not assigned yet.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any, TypeAlias

from activedb.analysis._tables import Column, Table

__all__ = [
    "DATA",
    "TRANSACTION",
    "UNKNOWN",
    "Atom",
    "Bound",
    "Columns",
    "Items",
    "Known",
    "Local",
    "Method",
    "Plain",
    "Sql",
    "Value",
]


@dataclass(frozen=True, slots=True)
class Plain:
    """Atom without parts."""

    name: str


DATA = Plain("data")
UNKNOWN = Plain("unknown")
TRANSACTION = Plain("transaction")


class Known:
    """An existing object; equal to the same object, and a string to an equal string."""

    __slots__ = ("_key", "thing")

    def __init__(self, thing: Any):
        self.thing = thing
        self._key = (str, thing) if type(thing) is str else (object, id(thing))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a transaction (``of="transaction"``) or a database (``of="database"``)."""

    of: str
    name: str


@dataclass(frozen=True, slots=True)
class Local:
    """A function defined inside another one, with the frame that surrounds it."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    frame: Any


@dataclass(frozen=True, slots=True)
class Bound:
    """A function with leading and named arguments bound: a method, ``functools.partial``."""

    function: Known | Local
    first: tuple[Value, ...]
    named: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, slots=True)
class Items:
    """Contents of a list, tuple, set or dict display."""

    inside: Value


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table, ``table.c``."""

    table: Table


@dataclass(frozen=True, slots=True)
class Sql:
    """A statement or a part of one.

    Attributes
    ----------
    kind : str
        ``"insert"``, ``"update"``, ``"delete"``, or ``"read"`` for everything else.
    reads : frozenset of Table or Column
    target : Table or None
        Table that is written.
    columns : frozenset of str or None
        Columns of an update written so far; None: any.
    problem : str
        Reason why part of it is unknown; empty if all of it is known.
    """

    kind: str = "read"
    reads: frozenset[Table | Column] = frozenset()
    target: Table | None = None
    columns: frozenset[str] | None = frozenset()
    problem: str = ""


Atom: TypeAlias = Plain | Known | Method | Local | Bound | Items | Columns | Sql
Value: TypeAlias = frozenset[Atom]
