"""UPDATE, DELETE and INSERT taken apart: which rows to read, which values to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Delete, Insert, Select, Table, Update, literal, select
from sqlalchemy.sql.elements import BindParameter, ClauseElement

from activedb.errors import UnsupportedStatement

__all__ = ["StatementPlan", "plan_write"]


@dataclass(frozen=True, slots=True)
class StatementPlan:
    """What a write statement comes down to.

    Attributes
    ----------
    kind : {"insert", "update", "delete"}
    table : sqlalchemy.Table
    columns : sequence of str
        Names of the columns written, in the order of the values.
    select : SELECT
        For update and delete: primary key, then new values. For insert: the rows to insert.
    rows : sequence of tuple or None
        Rows of an INSERT … VALUES of plain values, which need no SELECT.
    """

    kind: Literal["insert", "update", "delete"]
    table: Table
    columns: Sequence[str]
    select: Any = None
    rows: Sequence[tuple[Any, ...]] | None = None


def plan_write(statement: Any) -> StatementPlan:
    """Take a write statement apart.

    Raises
    ------
    UnsupportedStatement
        If it is not a plain INSERT, UPDATE or DELETE built with SQLAlchemy.
    """
    if not isinstance(statement, Insert | Update | Delete) or not isinstance(
        statement.table, Table
    ):
        raise UnsupportedStatement(
            "execute() takes sqlalchemy.insert(), update() or delete() of one table; "
            "use query() for a SELECT"
        )
    if statement._returning:
        raise UnsupportedStatement("RETURNING is not supported; query the rows before or after")
    if isinstance(statement, Insert):
        return _plan_insert(statement)
    keys = list(statement.table.primary_key.columns)
    condition = statement.whereclause
    if isinstance(statement, Delete):
        chosen = select(*keys)
        columns: list[str] = []
    else:
        assigned = _assigned(statement)
        columns = list(assigned)
        chosen = select(*keys, *(value.label(f"new_{n}") for n, value in assigned.items()))
    if condition is not None:
        chosen = chosen.where(condition)
    kind: Literal["update", "delete"] = "delete" if isinstance(statement, Delete) else "update"
    return StatementPlan(kind, statement.table, columns, select=chosen.order_by(*keys))


def _assigned(statement: Update) -> dict[str, Any]:
    values = statement._values or dict(getattr(statement, "_ordered_values", None) or ())
    if not values:
        raise UnsupportedStatement("update() without values() changes nothing; add values()")
    table = statement.table
    assert isinstance(table, Table)
    assigned: dict[str, Any] = {}
    for column, value in values.items():
        name = str(getattr(column, "name", column))
        element = value if isinstance(value, ClauseElement) else literal(value)
        if isinstance(element, BindParameter):
            element = literal(element.value, type_=table.c[name].type)
        assigned[name] = element
    return assigned


def _plan_insert(statement: Insert) -> StatementPlan:
    table = statement.table
    assert isinstance(table, Table)
    if getattr(statement, "_post_values_clause", None) is not None:
        raise UnsupportedStatement("ON CONFLICT is not supported; get() the row, then decide")
    if statement.select is not None:
        if not isinstance(statement.select, Select):
            raise UnsupportedStatement("INSERT … SELECT takes a select()")
        names = [str(getattr(c, "name", c)) for c in statement._select_names or ()]
        return StatementPlan("insert", table, names, select=statement.select)
    records = [r for group in statement._multi_values for r in group] or [statement._values or {}]
    named = [{str(getattr(c, "name", c)): _plain(v) for c, v in dict(r).items()} for r in records]
    columns = list(named[0])
    if any(list(record) != columns for record in named):
        raise UnsupportedStatement("every row of an insert() needs the same columns")
    return StatementPlan("insert", table, columns, rows=[tuple(r.values()) for r in named])


def _plain(value: Any) -> Any:
    if isinstance(value, BindParameter):
        return value.value
    if isinstance(value, ClauseElement):
        raise UnsupportedStatement("insert() takes plain values; use from_select() for expressions")
    return value
