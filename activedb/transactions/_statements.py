"""Statements over the versions of a sphere: SELECT, and writes found by a locked read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from activedb.store import StatementPlan, plan_write, tables_of
from lockmgr import Mode

if TYPE_CHECKING:
    from activedb.transactions._transaction import Transaction

__all__ = ["execute", "query"]


def query(t: Transaction, statement: Any) -> list[Any]:
    """See `Transaction.query`."""
    return _select(t, statement, Mode.S)


def execute(t: Transaction, statement: Any) -> int:
    """See `Transaction.execute`."""
    plan: StatementPlan = plan_write(statement)
    spec = t.forest.tables.spec(plan.table)
    if plan.rows is None:
        # SIX: nobody else writes the table, so no row can join those the statement selects.
        t.lock_table(spec, Mode.SIX)
        found: Sequence[Any] = _select(t, plan.select, Mode.S)
    else:
        found = plan.rows
    keys = len(spec.key_columns)
    for row in found:
        values = tuple(row)
        if plan.kind == "insert":
            t.insert(plan.table, dict(zip(plan.columns, values, strict=True)))
        elif plan.kind == "update":
            changes = dict(zip(plan.columns, values[keys:], strict=True))
            t.update(plan.table, values[:keys], **changes)
        else:
            t.delete(plan.table, values[:keys])
    return len(found)


def _select(t: Transaction, statement: Any, mode: Mode) -> list[Any]:
    specs = [t.forest.tables.spec(table) for table in tables_of(statement)]
    for spec in specs:
        t.lock_table(spec, mode)
    t._check_usable()
    dirty = {spec: t.dirty(spec) for spec in specs}
    with t.hierarchy.breaking():
        return t.hierarchy.session.query(statement, dirty)
