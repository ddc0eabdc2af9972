"""Tables that SQLAlchemy statements read and write, inferred from how they are built."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from activedb.analysis._values import (
    UNKNOWN,
    Atom,
    CallSite,
    Column,
    Columns,
    Items,
    Known,
    RowCondition,
    Sql,
    Table,
    Value,
    column_of,
    is_of_sqlalchemy,
    only,
    strings,
    table_of,
)

__all__ = ["built", "chained", "compared", "of_object", "of_table"]


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


def built(name: str, call: CallSite) -> Sql:
    """Return the result of an SQLAlchemy function, such as ``select(…)`` or ``func.sum(…)``."""
    if name == "text":
        texts = strings(call.first()) if call.args else None
        if not texts:
            return Sql(problem="text() that is not known before it runs")
        return _merged(Sql(), name, [frozenset(map(_of_text, texts))])
    if name in _WRITES and call.args:
        return _write(name, call.args[0])
    made = _merged(Sql(), name, call.arguments)
    return replace(made, is_query=True) if name in _QUERIES else made


def chained(sql: Sql, method: str, call: CallSite) -> Sql:
    """Return the result of a statement's method, such as ``.where(…)`` or ``.values(…)``."""
    if method == "join" and call.named.keys() & {"isouter", "full"}:
        method = "outerjoin"
    merged = _merged(sql, method, call.arguments)
    if method in ("in_", "between"):
        return _condition(merged, method, [only(sql), *call.args])
    if method == "with_for_update":
        return replace(merged, is_for_update=True)
    if method in ("values", "ordered_values"):
        is_by_name = method == "values" and not call.args
        return replace(merged, columns=_written(sql, call.named) if is_by_name else None)
    if method == "on_conflict_do_update":
        target = frozenset() if sql.target is None else frozenset((sql.target,))
        return replace(merged, kind="upsert", columns=None, reads=merged.reads | target)
    return merged


def compared(operands: Sequence[Value], operator: str = "") -> Sql | None:
    """Return the result of an operator, as it is written; None if no operand is a statement."""
    if not any(
        isinstance(atom, Sql) or (isinstance(atom, Known) and column_of(atom.thing))
        for operand in operands
        for atom in operand
    ):
        return None
    merged = _merged(Sql(), operator, operands)
    if operator in _EQUALITIES | _IN_ORDER:
        return _condition(merged, operator, operands)
    return merged


def _condition(merged: Sql, operator: str, operands: Sequence[Value]) -> Sql:
    """Add what a comparison says of columns, if each operand is one known column or a value."""
    columns = [_one_column(operand) for operand in operands]
    is_value = [not any(_parts(atom) for atom in operand) for operand in operands]
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
    parts = _parts(atom)
    return parts[0].column if len(parts) == 1 else None


def of_table(table: Table, method: str, call: CallSite) -> Sql:
    """Return the result of a table's method, such as ``table.select()`` or ``table.join(…)``."""
    if method in _WRITES:
        return Sql(method, target=table, columns=None)
    made = _merged(Sql.of(table), method, call.arguments)
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
        for part in _parts(atom):
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


def _parts(atom: Atom) -> list[Sql]:
    """Return the parts of statements that an atom is or contains."""
    if isinstance(atom, Sql):
        return [atom]
    if isinstance(atom, Columns):
        return [Sql.of(atom.table)]
    if isinstance(atom, Items):
        return [part for inside in atom.inside for part in _parts(inside)]
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


def _written(sql: Sql, named: Mapping[str, Value]) -> frozenset[str] | None:
    """Return the columns that an update writes so far, with those that are named; None: any."""
    if sql.columns is None or sql.target is None or "**" in named:
        return None
    found = {name: sql.target.column(name) for name in named}
    return sql.columns | {name if column is None else column.name for name, column in found.items()}


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
