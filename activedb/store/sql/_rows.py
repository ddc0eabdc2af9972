"""Rows of a statement: plain ones, or objects of mapped classes loaded by an ORM session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy import Row as SQLRow
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.orm import Session as ORMSession

__all__ = ["named_rows", "rows_of"]

_mapped: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""Statements run before, and whether they select mapped classes."""


def rows_of(
    connection: Connection, statement: Any, parameters: Mapping[str, Any] | None
) -> list[SQLRow[Any]]:
    """Run a SELECT; rows of mapped classes contain their objects, loaded and detached.

    Eager relationships are read over the same connection. The connection's transaction stays open.
    """
    values = dict(parameters or {})
    if not _is_mapped(statement):
        return list(connection.execute(statement, values).all())
    if not connection.in_transaction():
        connection.begin()  # otherwise the ORM session would begin its own, and end it
    orm = ORMSession(connection, autoflush=False, join_transaction_mode="rollback_only")
    try:
        result = orm.execute(statement, values)
        if result._unique_filter_state is not None:
            # A collection loaded by a join repeats its owner, and requires this call.
            result = result.unique()
        return list(result.all())
    finally:
        orm.expunge_all()
        orm.close()


def named_rows(names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> list[SQLRow[Any]]:
    """Return rows like those of a SELECT, from known values."""
    result: IteratorResult[Any] = IteratorResult(SimpleResultMetaData(names), iter(rows))
    return list(result.all())


def _is_mapped(statement: Any) -> bool:
    known = _mapped.get(statement)
    if known is None:
        described = getattr(statement, "column_descriptions", ())
        known = any(column.get("entity") is not None for column in described)
        _mapped[statement] = known
    return known
