"""Tables that SQLAlchemy statements read and write, inferred from their construction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import FunctionType
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from activedb.analysis._tables import Column, Table, column_of, table_of
from activedb.analysis._values import UNKNOWN, Columns, Items, Known, Sql, Value

__all__ = ["built", "chained", "compared", "is_of_sqlalchemy", "of_object", "of_table"]

# Arguments of these select the tables. Elsewhere an unknown argument is only a value.
_TAKE_TABLES = {
    *("select", "select_from", "join", "outerjoin", "join_from", "outerjoin_from", "exists"),
    *("insert", "update", "delete", "aliased", "union", "union_all", "intersect", "except_"),
    *("from_statement", "from_select", "with_only_columns", "add_columns", "lateral", "alias"),
}
_WRITES = {"insert", "update", "delete"}


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
    return _merged(Sql(), name, [*args, *named.values()])


def chained(sql: Sql, method: str, args: list[Value], named: Mapping[str, Value]) -> Sql:
    """Return the result of a statement's method, such as ``.where(…)`` or ``.values(…)``."""
    merged = _merged(sql, method, [*args, *named.values()])
    if method in ("values", "ordered_values"):
        return _with_columns(merged, named, is_all=bool(args) or method != "values")
    if method == "on_conflict_do_update":
        target = frozenset() if sql.target is None else frozenset((sql.target,))
        return replace(merged, kind="upsert", columns=None, reads=merged.reads | target)
    return merged


def compared(values: Iterable[Value]) -> Sql | None:
    """Return the result of an operator; None if no operand is a statement."""
    given = list(values)
    if not any(
        isinstance(atom, Sql) or (isinstance(atom, Known) and column_of(atom.thing))
        for value in given
        for atom in value
    ):
        return None
    return _merged(Sql(), "", given)


def of_table(table: Table, method: str, args: list[Value], named: Mapping[str, Value]) -> Sql:
    """Return the result of a table's method, such as ``table.select()`` or ``table.join(…)``."""
    if method in _WRITES:
        return _with_columns(Sql(method, target=table), named, is_all=True)
    return _merged(Sql(reads=frozenset((table,))), method, [*args, *named.values()])


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
    return Sql(kind, frozenset(reads), target, None, problem)


def _merged(sql: Sql, name: str, values: Iterable[Value]) -> Sql:
    """Return `sql` with the reads of a call's arguments added."""
    reads = set(sql.reads)
    problem = sql.problem
    for atom in (atom for value in values for atom in value):
        if atom == UNKNOWN and name in _TAKE_TABLES:
            problem = problem or f"{name}() of something that is not known before it runs"
        for part in _parts(atom, set()):
            reads |= part.reads
            problem = problem or part.problem
    return replace(sql, reads=frozenset(reads), problem=problem)


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
            return [Sql(reads=frozenset((place,)))]
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
        return Sql(problem="text() that is no SQL as far as can be told here")
    if not isinstance(tree, exp.Query):
        return Sql(problem="text() that is no SELECT")
    tables: set[Table | Column] = set()
    for found in tree.find_all(exp.Table):
        name = ".".join(_folded(part) for part in found.parts if isinstance(part, exp.Identifier))
        if name:
            # The name of a CTE counts as a table: a superset of the actual reads.
            tables.add(Table(name, (), frozenset()))
    return Sql(reads=frozenset(tables))


def _folded(name: exp.Identifier) -> str:
    return str(name.this) if name.args.get("quoted") else str(name.this).lower()
