"""Analysis of SELECT … FOR UPDATE: the rows to lock, and the kind of lock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, Table, inspect, tuple_
from sqlalchemy.exc import CompileError

from activedb.errors import UnsupportedStatement
from activedb.store.sql._tables import Key

__all__ = ["LockingRead", "plan_locks"]


class LockingRead:
    """SELECT that locks the rows it returns.

    Attributes
    ----------
    table : sqlalchemy.Table
        Table whose rows are locked.
    plain : SELECT
        The statement without its locks.
    limit : int or None
        Maximum number of rows.
    skip_locked, nowait : bool
    """

    def __init__(self, statement: Any, table: Table):
        wish = statement._for_update_arg
        self.table = table
        self.skip_locked = bool(wish.skip_locked)
        self.nowait = bool(wish.nowait)
        self.plain = _without_locks(statement)
        self._keys = _key_columns(statement, table)
        try:
            self.limit: int | None = statement._limit
        except CompileError as error:
            raise UnsupportedStatement("with_for_update() takes a number as limit()") from error

    def keys(self, limit: int | None) -> Any:
        """Return a SELECT of the primary keys of the first rows, in the statement's order."""
        return self._only_keys(self.plain).limit(limit)

    def keys_among(self, keys: Sequence[Key]) -> Any:
        """Return a SELECT of those `keys` whose rows the statement selects."""
        return self._only_keys(self._among(keys))

    def rows(self, keys: Sequence[Key]) -> Any:
        """Return the statement restricted to the rows with these keys."""
        return self._among(keys)

    def _only_keys(self, statement: Any) -> Any:
        return statement.with_only_columns(*self._keys, maintain_column_froms=True)

    def _among(self, keys: Sequence[Key]) -> Any:
        whole = self.plain.limit(None)
        if len(self._keys) == 1:
            return whole.where(self._keys[0].in_([key[0] for key in keys]))
        return whole.where(tuple_(*self._keys).in_(list(keys)))


def plan_locks(statement: Any) -> LockingRead | Any:
    """Analyse a SELECT … FOR UPDATE; return any other statement unchanged.

    FOR SHARE is left out: a query locks that way anyway.

    Raises
    ------
    UnsupportedStatement
        If it does not select rows of exactly one table.
    """
    wish = getattr(statement, "_for_update_arg", None)
    if wish is None:
        return statement
    if wish.read and not (wish.nowait or wish.skip_locked):
        return _without_locks(statement)
    froms = statement.get_final_froms() if isinstance(statement, Select) else []
    if len(froms) != 1 or not isinstance(froms[0], Table):
        raise UnsupportedStatement(
            "with_for_update() takes a select() from one table, without joins; lock rows of the "
            "others with get(…, for_update=True)"
        )
    for part, name in (
        ("_distinct", "distinct()"),
        ("_group_by_clauses", "group_by()"),
        ("_having_criteria", "having()"),
        ("_offset_clause", "offset()"),
        ("_fetch_clause", "fetch()"),
    ):
        value = getattr(statement, part, None)
        if value is not None and value is not False and value != ():
            raise UnsupportedStatement(f"with_for_update() does not go together with {name}")
    return LockingRead(statement, froms[0])


def _without_locks(statement: Any) -> Any:
    copied = statement.with_for_update()
    copied._for_update_arg = None
    return copied


def _key_columns(statement: Any, table: Table) -> list[Any]:
    """Return the primary key; for a mapped class its attributes, which select only its rows."""
    entities = (d.get("entity") for d in statement.column_descriptions)
    entity = next((e for e in entities if e is not None), None)
    columns = list(table.primary_key.columns)
    if entity is None:
        return columns
    mapper = inspect(entity)
    if getattr(mapper, "is_aliased_class", False) or mapper.local_table is not table:
        raise UnsupportedStatement("with_for_update() takes a class that is mapped to one table")
    return [getattr(entity, mapper.get_property_by_column(c).key) for c in columns]
