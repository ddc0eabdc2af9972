"""Rows of activedb itself: the rules with their versions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import inspect, select

from activedb.store.server import translate_errors
from activedb.store.session import Session, Store
from activedb.store.system import rules

__all__ = ["RuleRows"]


class RuleRows:
    """Access to the table of rules.

    Attributes
    ----------
    table : sqlalchemy.Table
        Table that transactions write like any other: a change of a rule commits or is undone with
        its transaction, and the rule's row is locked until then.
    """

    table: Any = rules
    name_length_max: int = rules.c.name.type.length  # type: ignore[attr-defined]  # a String

    def __init__(self, store: Store):
        self._store = store

    def read(self) -> dict[str, dict[str, Any]]:
        """Return the committed rows by name; one round trip."""
        with translate_errors("read the rules"), self._store.short() as connection:
            rows = connection.execute(select(rules)).mappings()
            return {row["name"]: dict(row) for row in rows}

    def missing_tables(self, session: Session, names: Iterable[str]) -> list[str]:
        """Return the `names` for which the flat transaction of `session` finds no table."""
        wanted = sorted(names)
        if not wanted:
            return []
        with session.reading("look for tables") as connection:
            look = inspect(connection)
            return [name for name in wanted if not look.has_table(*_split(name))]


def _split(name: str) -> tuple[str, str | None]:
    """Split a full name into (table, schema)."""
    schema, _, table = name.rpartition(".")
    return table, schema or None
