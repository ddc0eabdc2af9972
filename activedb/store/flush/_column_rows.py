"""Rows of an integer key and a float value, read and written column by column.

Values pass between the server and NumPy arrays directly, without a Python object for each. They
are sent as rows on SQLite, and where the server's column types differ from the declared ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from sqlalchemy import Connection, select

from activedb.store.flush._bulk import Array, ServerColumn, server_table, unnest
from activedb.store.flush._change import Change
from activedb.store.flush._write_set import refuse, write
from activedb.store.server import driver_cursor
from activedb.store.sql import Row, TableSpec

__all__ = ["ColumnRows"]

Values: TypeAlias = Any
"""One-dimensional NumPy array: int64 for keys, float64 for values."""

_INTEGERS = {21: ">i2", 23: ">i4", 20: ">i8"}
_FLOAT8 = 701
_AT_ONCE = 1_000_000  # rows in one statement
_HEAD_BYTES, _END = 19, b"\xff\xff"  # of COPY's binary output


class ColumnRows:
    """Rows of a table with one integer key column and one other column, a float.

    Parameters
    ----------
    spec : TableSpec
    value : str
        Name of the float column.
    """

    def __init__(self, spec: TableSpec, value: str):
        self.spec = spec
        (self._key,) = spec.key_columns
        self._value = value

    def read(self, connection: Connection) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the keys and the values of all rows.

        They are arrays of int64 and float64. If the columns cannot be read as arrays, they are
        lists of whatever values the driver returns. O(rows), one or two round trips.
        """
        found = self._copied(connection)
        if found is not None:
            return found
        c = self.spec.table.c
        rows = connection.execute(select(c[self._key], c[self._value])).all()
        return [row[0] for row in rows], [row[1] for row in rows]

    def write(
        self,
        connection: Connection,
        *,
        added: tuple[Values, Values],
        changed: tuple[Values, Values],
        gone: Values,
    ) -> None:
        """Write rows; on Postgres in four round trips, however many rows there are.

        Parameters
        ----------
        added, changed : tuple of arrays
            Keys and values of new rows, and of rows that have new values.
        gone : array
            Keys of rows to delete.

        Raises
        ------
        ConstraintViolation, InvalidRow, SerializationConflict
            If the server, or the declaration of the table, refuses a row; the error does not
            identify the row.
        """
        server = None
        if connection.dialect.driver == "psycopg":
            server = server_table(connection, self.spec)
            key, value = (server.columns.get(name) for name in (self._key, self._value))
            arrays = [keys for keys, _ in (added, changed)] + [gone]
            if key is not None and value is not None and _fit(key, value, arrays):
                try:
                    self._unnested(connection, (key, value), added, changed, gone)
                except BaseException as error:
                    refuse(error, connection, f"write {self.spec.name}", ())
                    raise
                return
        write(connection, [*self._changes(added, changed, gone)], self.spec.table.metadata)

    # -- inside ----------------------------------------------------------------------------

    def _copied(self, connection: Connection) -> tuple[Values, Values] | None:
        """Return all rows, read by COPY; None if COPY is not possible or there are NULLs."""
        if connection.dialect.driver != "psycopg":
            return None
        import numpy as np

        server = server_table(connection, self.spec)
        key, value = (server.columns.get(name) for name in (self._key, self._value))
        if not server.takes_copy or key is None or value is None or not _fit(key, value, ()):
            return None
        quote = connection.dialect.identifier_preparer
        names = f"{quote.quote(self._key)}::bigint, {quote.quote(self._value)}"
        rows_of = quote.format_table(self.spec.table)
        query = f"SELECT {names} FROM {rows_of}"  # noqa: S608  # names, quoted
        statement = f"COPY ({query}) TO STDOUT (FORMAT BINARY)".replace("%%", "%")
        with driver_cursor(connection) as cursor, cursor.copy(statement) as copy:
            data = b"".join(copy)
        kind = np.dtype([("n", ">i2"), ("a", ">i4"), ("k", ">i8"), ("b", ">i4"), ("v", ">f8")])
        body = memoryview(data)[_HEAD_BYTES : -len(_END)]
        if len(body) % kind.itemsize:
            return None
        rows = np.frombuffer(body, kind)
        if not ((rows["n"] == 2) & (rows["a"] == 8) & (rows["b"] == 8)).all():
            return None
        return rows["k"].astype(np.int64), rows["v"].astype(np.float64)

    def _unnested(
        self,
        connection: Connection,
        server: tuple[ServerColumn, ServerColumn],
        added: tuple[Values, Values],
        changed: tuple[Values, Values],
        gone: Values,
    ) -> None:
        quote = connection.dialect.identifier_preparer
        table = quote.format_table(self.spec.table)
        key, value = quote.quote(self._key), quote.quote(self._value)
        identity = "OVERRIDING SYSTEM VALUE " if self.spec.overrides_identity else ""
        same = f" WHERE t.{key} = n.v0"
        steps: list[tuple[str, Sequence[Values], str]] = [
            (f"DELETE FROM {table} AS t USING", (gone,), same),  # noqa: S608  # names, quoted
            (f"UPDATE {table} AS t SET {value} = n.v1 FROM", changed, same),  # noqa: S608
            (f"INSERT INTO {table} ({key}, {value}) {identity}SELECT v0, v1 FROM", added, ""),
        ]
        for before, columns, after in steps:
            for start in range(0, len(columns[0]), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                arrays = [
                    _array(column, values[part])
                    for column, values in zip(server, columns, strict=False)
                ]
                unnest(connection, before, arrays, after)

    def _changes(
        self, added: tuple[Values, Values], changed: tuple[Values, Values], gone: Values
    ) -> list[Change]:
        """Return the same changes, row by row."""
        spec = self.spec

        def rows(keys: Values, values: Values) -> list[Row]:
            # A server's double takes every float. What takes rows may not: SQLite has no NaN.
            pairs = zip(keys.tolist(), values.tolist(), strict=True)
            return [spec.complete({self._key: key, self._value: value}) for key, value in pairs]

        # The old value of a changed row is unknown, and never read: any different value will do.
        found = [Change(spec, spec.key_of(row), None, row) for row in rows(*added)]
        found += [
            Change(spec, spec.key_of(row), {**row, self._value: None}, row)
            for row in rows(*changed)
        ]
        return found + [Change(spec, (key,), {self._key: key}, None) for key in gone.tolist()]


def _fit(key: ServerColumn, value: ServerColumn, keys: Sequence[Values]) -> bool:
    """Return whether the server's columns have the expected types, with room for the keys."""
    if key.oid not in _INTEGERS or value.oid != _FLOAT8:
        return False
    limit = 1 << (8 * int(_INTEGERS[key.oid][-1]) - 1)
    return all(not len(part) or -limit <= part.min() <= part.max() < limit for part in keys)


def _array(column: ServerColumn, values: Values) -> Array:
    import numpy as np

    kind = _INTEGERS.get(column.oid, ">f8")
    elements = np.empty(len(values), [("length", ">i4"), ("value", kind)])
    elements["length"] = np.dtype(kind).itemsize
    elements["value"] = values
    return Array.of(column.array_oid, column.oid, len(values), elements.tobytes())
