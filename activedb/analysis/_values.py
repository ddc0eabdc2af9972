"""Abstract values of expressions: what is known of them before a rule runs.

::

    Atom
    ├── DATA          a plain value: of an event, of a row, computed
    ├── UNKNOWN       anything
    ├── SLICE         a slice: a subscript with it is a container with some of the elements
    ├── TRANSACTION   the rule's transaction, or an inferior of it
    ├── Known         an object that exists: a module, a table, a function, a constant
    ├── Method        a method of a transaction or database about to be called
    ├── Local         a function written inside a function
    ├── BoundFunction a function or method with its first arguments
    ├── Items         a list, tuple, set or dict that the source makes, with its contents
    ├── Columns       ``table.c``
    └── Sql           a statement or a part of one, with what it reads and writes

A value is a set of atoms, one of which the expression has. The empty set means: not assigned yet.

SQLAlchemy stays in the store: an object with a full name and columns counts as a table, as for
events.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, TypeAlias

__all__ = [
    "ANYTHING",
    "DATA",
    "NOTHING",
    "SLICE",
    "SOME_DATA",
    "TRANSACTION",
    "UNKNOWN",
    "Atom",
    "BoundFunction",
    "CallSite",
    "Column",
    "Columns",
    "Items",
    "Known",
    "Local",
    "Method",
    "Plain",
    "RowCondition",
    "Sql",
    "Table",
    "Value",
    "column_of",
    "display",
    "is_of_sqlalchemy",
    "join",
    "only",
    "ordered",
    "sites_of",
    "strings",
    "table_of",
]


# -- tables and columns ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes
    ----------
    name : str
        Full name.
    columns : tuple of (str, str)
        Key and name of each column. The key is the name of the Python attribute.
    touched : frozenset of str
        Columns that every update changes: ``onupdate``, computed ones.
    key : tuple of str
        Columns of the primary key; empty if they are not known.
    """

    name: str
    columns: tuple[tuple[str, str], ...]
    touched: frozenset[str]
    key: tuple[str, ...] = ()

    def column(self, key: str) -> Column | None:
        """Return the column with this key or name, or None."""
        for known, name in self.columns:
            if key in (known, name):
                return Column(self.name, name, self.key)
        return None


@dataclass(frozen=True, slots=True)
class Column:
    """A column, by the full name of its table and its own name; with the table's primary key."""

    table: str
    name: str
    key: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RowCondition:
    """A condition of a statement that must hold, together with all others of it.

    Attributes
    ----------
    column : Column
    other : Column or None
        Column with which it is compared; None: a value.
    is_equality : bool
        True for ``=`` and IN.
    """

    column: Column
    other: Column | None
    is_equality: bool


def table_of(thing: Any) -> Table | None:
    """Return the table that a Table or a mapped class stands for, or None. O(columns)."""
    if isinstance(thing, type):
        mapper = inspect.getattr_static(thing, "__mapper__", None)
        thing = getattr(mapper, "local_table", None)
    if not is_of_sqlalchemy(thing) or not isinstance(getattr(thing, "fullname", None), str):
        return None
    columns = list(thing.columns)
    return Table(
        str(thing.fullname),
        tuple((str(column.key), str(column.name)) for column in columns),
        frozenset(str(column.name) for column in columns if _changes_by_itself(column)),
        tuple(str(column.name) for column in thing.primary_key),
    )


def column_of(thing: Any) -> Column | None:
    """Return the column that a Column or an attribute of a mapped class stands for, or None."""
    if not is_of_sqlalchemy(thing) or isinstance(thing, type):
        return None
    if hasattr(thing, "__clause_element__"):
        thing = thing.__clause_element__()
    table, name = getattr(thing, "table", None), getattr(thing, "name", None)
    known = None if table is None else table_of(table)
    return known.column(name) if known is not None and isinstance(name, str) else None


def is_of_sqlalchemy(thing: Any) -> bool:
    """Return whether an object, function or class comes from SQLAlchemy."""
    described = thing if isinstance(thing, type | FunctionType) else type(thing)
    return str(described.__module__).partition(".")[0] == "sqlalchemy"


def _changes_by_itself(column: Any) -> bool:
    return any(
        getattr(column, name, None) is not None
        for name in ("onupdate", "server_onupdate", "computed")
    )


# -- atoms, and sets of them -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plain:
    """Atom without parts."""

    name: str


DATA = Plain("data")
UNKNOWN = Plain("unknown")
SLICE = Plain("slice")
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
class BoundFunction:
    """A function with leading and named arguments bound: a method, ``functools.partial``."""

    function: Atom
    first: tuple[Value, ...]
    named: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, slots=True)
class Items:
    """A list, tuple, set or dict that the source makes.

    Attributes
    ----------
    inside : Value
        Its contents.
    sites : frozenset of ast.AST or Known
        Allocation sites: nodes of the source that make it, and containers of which it is a copy.
        If two values share one, they may be the same container, so that one grows with the other.
    """

    inside: Value
    sites: frozenset[Any]


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
    conditions : frozenset of RowCondition
        Comparisons that must hold for each row.
    is_restricted : bool
        True if it may have further conditions.
    is_for_update : bool
        True if the rows that it finds are locked for writing.
    column : Column or None
        Column that it is, and nothing else.
    is_query : bool
        True if it is a SELECT, whose conditions say nothing of the statement around it.
    """

    kind: str = "read"
    reads: frozenset[Table | Column] = frozenset()
    target: Table | None = None
    columns: frozenset[str] | None = frozenset()
    problem: str = ""
    conditions: frozenset[RowCondition] = frozenset()
    is_restricted: bool = False
    is_for_update: bool = False
    column: Column | None = None
    is_query: bool = False

    @classmethod
    def of(cls, place: Table | Column) -> Sql:
        """Return a table or a column as a part of a statement."""
        return cls(reads=frozenset((place,)), column=place if isinstance(place, Column) else None)


Atom: TypeAlias = Plain | Known | Method | Local | BoundFunction | Items | Columns | Sql
Value: TypeAlias = frozenset[Atom]


NOTHING: Value = frozenset()
SOME_DATA: Value = frozenset((DATA,))
ANYTHING: Value = frozenset((UNKNOWN,))


def only(*atoms: Atom) -> Value:
    """Return the value that is one of these atoms."""
    return frozenset(atoms)


def join(values: Iterable[Value]) -> Value:
    """Return the least upper bound of values: it may be what any of them may be."""
    return NOTHING.union(*values)


def display(parts: Iterable[Value], *sites: Any) -> Value:
    """Return a container with these contents.

    Containers inside are flattened, so that nesting stays finite: their contents count as contents
    of the outer one, too.
    """
    inside = join(parts)
    inner = [atom for atom in inside if isinstance(atom, Items)]
    made_at = frozenset(sites) | sites_of(inside)
    if inner:
        inside = _flattened(inside)
        inside |= only(Items(inside, made_at))
    return only(Items(inside, made_at))


def _flattened(value: Value) -> Value:
    """Return a value with the contents of containers in their place."""
    return join(
        _flattened(atom.inside) if isinstance(atom, Items) else only(atom) for atom in value
    )


def sites_of(value: Value) -> frozenset[Any]:
    """Return the allocation sites of the containers that a value may be, and of those in them."""
    return frozenset().union(
        *(atom.sites | sites_of(atom.inside) for atom in value if isinstance(atom, Items))
    )


def strings(value: Value) -> list[str] | None:
    """Return the strings that a value may be, in order; None if it may be anything else."""
    found = [a.thing for a in value if isinstance(a, Known) and type(a.thing) is str]
    return sorted(found) if len(found) == len(value) else None


def ordered(value: Value) -> list[Atom]:
    """Return the atoms of a value in an order that fixes the order of findings."""
    return sorted(value, key=_place_in_order)


def _place_in_order(atom: Atom) -> str:
    if not isinstance(atom, Known):
        return type(atom).__name__
    thing, table = atom.thing, table_of(atom.thing)
    name = thing.__qualname__ if isinstance(thing, type | FunctionType) else ""
    return f"{type(thing).__name__} {name if table is None else table.name}"


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call in the source, with the values of its arguments.

    Attributes
    ----------
    node : ast.AST
    args : tuple of Value
        Values of an argument ``*values`` are one argument.
    named : mapping of str to Value
        Under ``"**"``: values of an argument ``**values``.
    is_spread : bool
        True if one of `args` may stand for any number of arguments.
    is_used : bool
        False if the result is thrown away.
    """

    node: ast.AST
    args: tuple[Value, ...] = ()
    named: Mapping[str, Value] = field(default_factory=dict)
    is_spread: bool = False
    is_used: bool = True

    @property
    def arguments(self) -> list[Value]:
        """All arguments, positional ones first."""
        return [*self.args, *self.named.values()]

    def first(self, *names: str) -> Value:
        """Return the first argument, which may also be given by one of these names."""
        found = [*self.args[:1], *(self.named[name] for name in names if name in self.named)]
        return found[0] if found else ANYTHING

    def binding(self, function: BoundFunction) -> CallSite:
        """Return the call of the function below, with the arguments that are bound."""
        args, named = (*function.first, *self.args), {**dict(function.named), **self.named}
        return replace(self, args=args, named=named)
