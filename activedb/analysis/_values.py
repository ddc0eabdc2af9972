"""Abstract values of expressions in a rule's source, and the objects behind its names.

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
    ├── Items         a list, tuple, set or dict display, with its contents
    ├── Columns       ``table.c``
    └── Sql           a statement or a part of one, with what it reads and writes

The empty set means: not assigned yet.

Objects are inspected, never called or imported. Properties, ``__getattr__`` and ``__get__`` written
in Python are not run. Values that only running them would give are unknown.

SQLAlchemy stays in the store: an object with a full name and
columns counts as a table, as for events.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, TypeAlias, cast

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

__all__ = [
    "DATA",
    "SLICE",
    "TRANSACTION",
    "UNKNOWN",
    "Atom",
    "BoundFunction",
    "Column",
    "Columns",
    "Items",
    "Known",
    "Local",
    "Method",
    "Plain",
    "Sql",
    "Table",
    "Value",
    "attribute",
    "built",
    "chained",
    "column_of",
    "compared",
    "elements",
    "emitted",
    "is_database",
    "is_of_sqlalchemy",
    "items_of",
    "known",
    "of_object",
    "of_table",
    "subscript",
    "table_of",
]


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
    if not _is_of_sqlalchemy(thing) or not isinstance(getattr(thing, "fullname", None), str):
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
    if not _is_of_sqlalchemy(thing):
        return None
    if hasattr(thing, "__clause_element__"):
        thing = thing.__clause_element__()
    table, name = getattr(thing, "table", None), getattr(thing, "name", None)
    known = None if table is None else table_of(table)
    return known.column(name) if known is not None and isinstance(name, str) else None


def _is_of_sqlalchemy(thing: Any) -> bool:
    return str(type(thing).__module__).partition(".")[0] == "sqlalchemy"


def _changes_by_itself(column: Any) -> bool:
    return any(
        getattr(column, name, None) is not None
        for name in ("onupdate", "server_onupdate", "computed")
    )


# -- abstract values of expressions in a rule's source: sets of atoms ------------------------------


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


# -- objects behind the names of a source: inspected, never called ---------------------------------


_ITEMS_MAX = 1000
_EMITTING = "activedb.database._methods"
_CONTAINERS = (list, tuple, set, frozenset, dict)
_NAMED_FIELD: type = type(inspect.FullArgSpec.__dict__["args"])  # a field of a named tuple
_MISSING: Any = object()


def known(thing: Any) -> Atom:
    """Return the atom for an existing object."""
    if isinstance(thing, MethodType):
        if is_database(thing.__self__) and isinstance(thing.__func__, FunctionType):
            return Method("database", thing.__func__.__name__)
        return _bound(known(thing.__func__), (thing.__self__,), {})
    if isinstance(thing, functools.partial):
        return _bound(known(thing.func), thing.args, thing.keywords)
    if table_of(thing) is not None:
        return Known(thing)
    column = column_of(thing)
    if column is not None:
        return Sql.of(column)
    if is_of_sqlalchemy(thing) and not callable(thing):
        return of_object(thing) or Known(thing)
    if isinstance(thing, bool | int | float | bytes) or thing is None:
        return DATA
    return SLICE if isinstance(thing, slice) else Known(thing)


def _bound(function: Atom, args: tuple[Any, ...], named: Mapping[str, Any]) -> BoundFunction:
    first = tuple(frozenset((known(each),)) for each in args)
    last = {name: frozenset((known(each),)) for name, each in named.items()}
    if isinstance(function, BoundFunction):  # such as a partial of a method
        first, last = (*function.first, *first), dict(function.named) | last
        function = function.function
    return BoundFunction(function, first, tuple(sorted(last.items())))


def is_database(thing: Any) -> bool:
    """Return whether an object is, or looks like, a database.

    `Database` is in a higher layer and cannot be imported here.
    """
    kind = type(thing)
    return all(
        callable(inspect.getattr_static(kind, name, None))
        for name in ("signal", "transaction", "rule")
    )


def emitted(thing: Any) -> FunctionType | None:
    """Return the function wrapped by `Database.emits`, or None if `thing` is no such wrapper."""
    # Recognised by its module, as that layer cannot be imported here.
    if isinstance(thing, FunctionType) and thing.__globals__.get("__name__") == _EMITTING:
        below = inspect.getattr_static(thing, "__wrapped__", None)
        return below if isinstance(below, FunctionType) else None
    return None


def attribute(thing: Any, name: str) -> Value:
    """Return the value of ``thing.name``."""
    table = table_of(thing)
    if table is not None and not isinstance(thing, type):
        return frozenset((Columns(table) if name in ("c", "columns") else DATA,))
    if is_of_sqlalchemy(thing):
        return frozenset((Sql(),))  # such as func.sum
    if isinstance(thing, ModuleType):
        found = vars(thing).get(name, _MISSING)
    else:
        found = inspect.getattr_static(thing, name, _MISSING)
    if found is _MISSING:
        return frozenset((UNKNOWN,))
    if isinstance(found, MemberDescriptorType | _NAMED_FIELD) and not isinstance(thing, type):
        try:
            found = cast("Any", found).__get__(thing)
        except AttributeError:
            return frozenset((UNKNOWN,))
    elif isinstance(found, staticmethod):
        found = found.__func__
    elif isinstance(found, classmethod):
        owner = thing if isinstance(thing, type) else type(thing)
        return frozenset((BoundFunction(Known(found.__func__), (frozenset((Known(owner),)),)),))
    elif isinstance(found, FunctionType) and not isinstance(thing, type | ModuleType):
        return frozenset((BoundFunction(Known(found), (frozenset((Known(thing),)),)),))
    elif hasattr(type(found), "__get__") and not isinstance(found, FunctionType):
        if table is not None and is_of_sqlalchemy(found):
            of_column = column_of(found)
            problem = "" if of_column else f"{name} of a mapped class may read other tables"
            return frozenset((replace(Sql.of(of_column or table), problem=problem),))
        return frozenset((UNKNOWN,))
    return frozenset((known(found),))


def subscript(thing: Any, key: Value) -> Value:
    """Return the value of ``thing[key]``."""
    if type(thing) is str:
        return frozenset((DATA,))
    if SLICE in key:
        return frozenset((Items(elements(thing)),))
    if type(thing) is dict:
        names = [k.thing if isinstance(k, Known) and type(k.thing) is str else None for k in key]
        if names and None not in names and all(name in thing for name in names):
            return frozenset(known(thing[name]) for name in names)
        return _each(thing.values())
    return elements(thing)


def elements(thing: Any) -> Value:
    """Return the value of an element of `thing`, as in a loop."""
    return _each(thing) if type(thing) in _CONTAINERS else frozenset((UNKNOWN,))


def items_of(thing: Any, method: str) -> Value | None:
    """Return the value of ``thing.items()`` and the like; None if `thing` is no dict."""
    if type(thing) is not dict or method not in ("items", "keys", "values", "get"):
        return None
    values, keys = _each(thing.values()), _each(thing.keys())
    if method == "get":
        return values | {DATA}
    inside = {"keys": keys, "values": values}.get(method) or frozenset((Items(keys | values),))
    return frozenset((Items(inside),))


def _each(things: Iterable[Any]) -> Value:
    listed = list(things)
    if not listed or len(listed) > _ITEMS_MAX:
        return frozenset((UNKNOWN,))
    return frozenset(known(thing) for thing in listed)


# -- tables that SQLAlchemy statements read and write, inferred from their construction ------------


# Arguments of these select the tables. Elsewhere an unknown argument is only a value.
_TAKE_TABLES = {
    *("select", "select_from", "join", "outerjoin", "join_from", "outerjoin_from", "exists"),
    *("insert", "update", "delete", "aliased", "union", "union_all", "intersect", "except_"),
    *("from_statement", "from_select", "with_only_columns", "add_columns", "lateral", "alias"),
}
_WRITES = {"insert", "update", "delete"}
# Their arguments' conditions hold for each row; of all others they may not.
_RESTRICT = {"where", "and_", "&", "join"}
# Their arguments may be conditions.
_CHOOSE = {"where", "filter", "filter_by", "having", "join", "outerjoin", "join_from", "and_"}
_QUERIES = {"select", "exists"}
_COMBINE = {"union", "union_all", "intersect", "intersect_all", "except_", "except_all"}
_EQUALITIES = {"==", "in_"}
_IN_ORDER = {"<", "<=", ">", ">=", "between"}


def is_of_sqlalchemy(thing: Any) -> bool:
    """Return whether an object, function or class comes from SQLAlchemy."""
    described = thing if isinstance(thing, type | FunctionType) else type(thing)
    return str(described.__module__).partition(".")[0] == "sqlalchemy"


def built(name: str, args: list[Value], named: Mapping[str, Value]) -> Sql:
    """Return the result of an SQLAlchemy function, such as ``select(…)`` or ``func.sum(…)``."""
    if name == "text":
        return _of_text_value(args)
    if name in _WRITES and args:
        return _write(name, args[0])
    made = _merged(Sql(), name, [*args, *named.values()])
    return replace(made, is_query=True) if name in _QUERIES else made


def chained(sql: Sql, method: str, args: list[Value], named: Mapping[str, Value]) -> Sql:
    """Return the result of a statement's method, such as ``.where(…)`` or ``.values(…)``."""
    if method == "join" and named.keys() & {"isouter", "full"}:
        method = "outerjoin"
    merged = _merged(sql, method, [*args, *named.values()])
    if method in ("in_", "between"):
        return _condition(merged, method, [frozenset((sql,)), *args])
    if method == "with_for_update":
        return replace(merged, is_for_update=True)
    if method in ("values", "ordered_values"):
        return _with_columns(merged, named, is_all=bool(args) or method != "values")
    if method == "on_conflict_do_update":
        target = frozenset() if sql.target is None else frozenset((sql.target,))
        return replace(merged, kind="upsert", columns=None, reads=merged.reads | target)
    return merged


def compared(values: Iterable[Value], operator: str = "") -> Sql | None:
    """Return the result of an operator, as it is written; None if no operand is a statement."""
    given = list(values)
    if not any(
        isinstance(atom, Sql) or (isinstance(atom, Known) and column_of(atom.thing))
        for value in given
        for atom in value
    ):
        return None
    merged = _merged(Sql(), operator, given)
    if operator in _EQUALITIES | _IN_ORDER:
        return _condition(merged, operator, given)
    return merged


def _condition(merged: Sql, operator: str, operands: Sequence[Value]) -> Sql:
    """Add what a comparison says of columns, if each operand is one known column or a value."""
    columns = [_one_column(operand) for operand in operands]
    is_value = [not any(_parts(atom, set()) for atom in operand) for operand in operands]
    is_equality = operator in _EQUALITIES
    found = set()
    for place, column in enumerate(columns):
        others = [at for at in range(len(columns)) if at != place]
        if column is not None and all(is_value[at] for at in others):
            found.add(RowCondition(column, None, is_equality))
        elif column is not None and operator == "==" and len(others) == 1:
            other = columns[others[0]]
            if other is not None:
                found.add(RowCondition(column, other, True))
    return replace(merged, conditions=frozenset(found))


def _one_column(value: Value) -> Column | None:
    """Return the column that an operand is; None if it is anything else, or may be."""
    if len(value) != 1:
        return None
    (atom,) = value
    parts = _parts(atom, set())
    return parts[0].column if len(parts) == 1 else None


def of_table(table: Table, method: str, args: list[Value], named: Mapping[str, Value]) -> Sql:
    """Return the result of a table's method, such as ``table.select()`` or ``table.join(…)``."""
    if method in _WRITES:
        return _with_columns(Sql(method, target=table), named, is_all=True)
    made = _merged(Sql(reads=frozenset((table,))), method, [*args, *named.values()])
    return replace(made, is_query=True) if method in _QUERIES else made


def of_object(thing: Any) -> Sql | None:
    """Return the effects of an existing statement, or None if `thing` is none. O(its elements)."""
    if not is_of_sqlalchemy(thing) or isinstance(thing, type):
        return None
    if isinstance(getattr(thing, "text", None), str):
        return _of_text(thing.text)
    if not callable(getattr(thing, "get_children", None)):
        return None
    target = None
    kind = "read"
    for name in _WRITES:
        if getattr(thing, f"is_{name}", False) is True:
            kind, target = name, table_of(thing.table)
    reads: set[Table | Column] = set()
    problem = ""
    waiting, seen = [thing], set()
    while waiting:
        element = waiting.pop()
        if id(element) in seen:
            continue
        seen.add(id(element))
        table = table_of(element)
        if table is not None:
            if table != target:
                reads.add(table)
            continue
        if isinstance(getattr(element, "text", None), str):
            text = _of_text(element.text)
            reads |= text.reads
            problem = problem or text.problem
        column = column_of(element)
        if column is not None:
            reads.add(column)
            continue
        waiting += element.get_children() if hasattr(element, "get_children") else ()
    return Sql(kind, frozenset(reads), target, None, problem, is_restricted=True)


def _merged(sql: Sql, name: str, values: Iterable[Value]) -> Sql:
    """Return `sql` with the reads of a call's arguments added."""
    reads = set(sql.reads)
    problem = sql.problem
    conditions = set(sql.conditions)
    is_restricted = sql.is_restricted
    is_for_update = sql.is_for_update
    for atom in (atom for value in values for atom in value):
        if atom == UNKNOWN and name in _TAKE_TABLES:
            problem = problem or f"{name}() of something that is not known before it runs"
        for part in _parts(atom, set()):
            reads |= part.reads
            problem = problem or part.problem
            is_for_update |= part.is_for_update
            is_restricted |= part.is_restricted or part.is_query
            if name in _RESTRICT and part.conditions and not part.is_query:
                conditions |= part.conditions
            else:
                is_restricted |= name in _CHOOSE
    if name in _COMBINE:
        conditions, is_restricted = set(), True
    return replace(
        sql,
        reads=frozenset(reads),
        problem=problem,
        conditions=frozenset(conditions),
        is_restricted=is_restricted,
        is_for_update=is_for_update,
        column=None,
    )


def _parts(atom: Any, seen: set[Any]) -> list[Sql]:
    if isinstance(atom, Sql):
        return [atom]
    if isinstance(atom, Columns):
        return [Sql(reads=frozenset((atom.table,)))]
    if isinstance(atom, Items) and atom not in seen:
        seen.add(atom)
        return [part for inside in atom.inside for part in _parts(inside, seen)]
    if isinstance(atom, Known):
        place = table_of(atom.thing) or column_of(atom.thing)
        if place is not None:
            return [Sql.of(place)]
        made = of_object(atom.thing)
        return [] if made is None else [made]
    return []


def _write(kind: str, target: Value) -> Sql:
    tables = [table_of(atom.thing) if isinstance(atom, Known) else None for atom in target]
    if len(tables) == 1 and tables[0] is not None:
        return Sql(kind, target=tables[0])
    return Sql(kind, problem=f"{kind}() of a table that is not known before it runs")


def _with_columns(sql: Sql, named: Mapping[str, Value], *, is_all: bool) -> Sql:
    if is_all or sql.columns is None or sql.target is None or "**" in named:
        return replace(sql, columns=None)
    found = {name: sql.target.column(name) for name in named}
    names = {name if column is None else column.name for name, column in found.items()}
    return replace(sql, columns=sql.columns | names)


def _of_text_value(args: list[Value]) -> Sql:
    texts = [
        atom.thing if isinstance(atom, Known) and type(atom.thing) is str else None
        for value in args[:1]
        for atom in value
    ]
    if not texts or None in texts:
        return Sql(problem="text() that is not known before it runs")
    return _merged(Sql(), "text", [frozenset(_of_text(text) for text in texts if text is not None)])


def _of_text(text: str) -> Sql:
    """Return the tables that a SELECT reads."""
    try:
        tree = sqlglot.parse_one(text, dialect="postgres")
    except SqlglotError:
        return Sql(problem="text() that is not recognised as SQL")
    if not isinstance(tree, exp.Query):
        return Sql(problem="text() that is not a SELECT")
    tables: set[Table | Column] = set()
    for found in tree.find_all(exp.Table):
        name = ".".join(_folded(part) for part in found.parts if isinstance(part, exp.Identifier))
        if name:
            # The name of a CTE counts as a table: a superset of the actual reads.
            tables.add(Table(name, (), frozenset()))
    return Sql(reads=frozenset(tables), is_restricted=True)


def _folded(name: exp.Identifier) -> str:
    return str(name.this) if name.args.get("quoted") else str(name.this).lower()
