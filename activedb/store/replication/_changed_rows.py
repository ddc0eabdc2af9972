"""Conversion of rows from logical decoding to the values that the same rows have when queried.

A value arrives as the text of its type; psycopg loads it like a column of that type, and the
declared column converts it as SQLAlchemy would. Values that the server has not sent are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from psycopg.adapt import Transformer
from psycopg.pq import Format
from sqlalchemy import Connection

from activedb.errors import StoreError
from activedb.store.replication._pgoutput import UNCHANGED, Relation, Update, Value
from activedb.store.sql import Row, TableSpec

__all__ = ["ChangedRows"]

_Load = Callable[[Value], Any]


class ChangedRows:
    """Converter of one table's changes to rows.

    Parameters
    ----------
    spec : TableSpec
    relation : Relation
        The server's definition of the table when the changes were made.
    connection : sqlalchemy.Connection
        Connection to the same server; its driver knows the types.

    Raises
    ------
    StoreError
        If the server's table lacks a column of the key.
    """

    def __init__(self, spec: TableSpec, relation: Relation, connection: Connection):
        self.spec = spec
        driver: Any = connection.connection.driver_connection
        transformer, dialect = Transformer(driver), connection.dialect
        declared = {str(column.name): column for column in spec.table.columns}
        self._columns: list[tuple[int, str, bool, _Load]] = []
        for place, column in enumerate(relation.columns):
            if column.name not in declared:
                continue
            load = transformer.get_loader(column.type_oid, Format.TEXT).load
            kind = declared[column.name].type.dialect_impl(dialect)
            process = kind.result_processor(dialect, column.type_oid)
            self._columns.append((place, column.name, column.is_key, _both(load, process)))
        found = {name for _, name, _, _ in self._columns}
        # The server does not send generated columns.
        self._computed = dict.fromkeys(
            name for name, c in declared.items() if c.computed is not None and name not in found
        )
        if not found >= set(spec.key_columns):
            raise StoreError(
                f"table {spec.name} has no column {', '.join(set(spec.key_columns) - found)} at "
                f"the server, or did not have it when a change was made that is to be followed"
            )

    def whole(self, values: Sequence[Value]) -> Row:
        """Return the row with these values, without those that were not sent. O(columns)."""
        row = {
            name: load(values[place])
            for place, name, _, load in self._columns
            if values[place] is not UNCHANGED
        }
        return self._shown(row)

    def key_alone(self, values: Sequence[Value]) -> Row:
        """Return the identifying columns of a row of which only these are sent."""
        return MappingProxyType(
            {name: load(values[place]) for place, name, is_key, load in self._columns if is_key}
        )

    def of_update(self, change: Update) -> tuple[Row, Row]:
        """Return the row before an update and the row after it.

        Long values that the update left unchanged are taken from the old row, if it is sent whole.
        """
        new, old = change.new, change.old
        if old is None:
            return self.key_alone(new), self.whole(new)
        if not change.is_whole:
            return self.key_alone(old), self.whole(new)
        filled = [o if n is UNCHANGED else n for o, n in zip(old, new, strict=True)]
        return self.whole(old), self.whole(filled)

    def _shown(self, row: dict[str, Any]) -> Row:
        row |= self._computed
        if list(row) == self._order(row):
            return MappingProxyType(row)
        return MappingProxyType({name: row[name] for name in self._order(row)})

    def _order(self, row: dict[str, Any]) -> list[str]:
        return [str(c.name) for c in self.spec.table.columns if c.name in row]


def _both(load: Callable[[Any], Any], process: Callable[[Any], Any] | None) -> _Load:
    if process is None:
        return lambda value: None if value is None else load(value)
    return lambda value: process(None if value is None else load(value))
