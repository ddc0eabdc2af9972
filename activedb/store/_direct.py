"""Statements that are compiled once and then sent by the driver itself.

The same SQL and the same values as SQLAlchemy would send, without the work it does at each
execution, which takes longer than the server for one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psycopg
from sqlalchemy import Connection, Dialect, Select
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.sql.dml import UpdateBase

from activedb.store._prepared import prepared_on

__all__ = ["driver_cursor", "fetch", "run"]


def run(
    connection: Connection,
    statement: UpdateBase,
    rows: Sequence[dict[str, Any]],
    *,
    last: bool = False,
) -> bool:
    """Execute `statement` for each of `rows`, which give all of its parameters.

    One round trip, however many rows. Errors are the driver's.

    Parameters
    ----------
    statement : INSERT, UPDATE or DELETE
        Compiled once, so the same object has to come each time.
    last : bool
        Whether the transaction may be committed in the same round trip.

    Returns
    -------
    bool
        Whether it has been.
    """
    prepared = prepared_on(connection)
    if prepared is not None:
        if len(rows) == 1:
            try:
                prepared.execute(statement, rows[0], last=last)
            except psycopg.Error as error:
                _invalidate_if_lost(connection, error)
                raise
            return last
        prepared.renew()
    sql, processors = _compiled(statement, connection.dialect)
    bound = [
        {
            name: row[key] if process is None else process(row[key])
            for key, (name, process) in processors.items()
        }
        for row in rows
    ]
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        driver.executemany(sql, bound)
        return False
    with driver_cursor(connection) as cursor:
        if len(bound) == 1:
            cursor.execute(sql, bound[0])
        else:
            cursor.executemany(sql, bound)
    return False


def fetch(
    connection: Connection, statement: Select[Any], values: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Rows of `statement`, with `values` for all of its parameters.

    One round trip. Errors are the driver's.

    Parameters
    ----------
    statement : SELECT
        Compiled once, so the same object has to come each time.
    """
    prepared = prepared_on(connection)
    if prepared is not None:
        try:
            return prepared.execute(statement, values)
        except psycopg.Error as error:
            _invalidate_if_lost(connection, error)
            raise
    dialect = connection.dialect
    sql, processors = _compiled(statement, dialect)
    bound = {
        name: values[key] if process is None else process(values[key])
        for key, (name, process) in processors.items()
    }
    rows: list[tuple[Any, ...]]
    kinds: tuple[int | None, ...]
    if dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection
        found = driver.execute(sql, bound)
        rows, kinds = found.fetchall(), (None,) * len(found.description)
    else:
        with driver_cursor(connection) as cursor:
            rows = cursor.execute(sql, bound).fetchall()
            kinds = tuple([column.type_code for column in cursor.description or ()])
    if not rows:
        return rows
    loaders = _loaders(statement, dialect, kinds)
    if not loaders:
        return rows
    return [
        tuple([loaders[i](cell) if i in loaders else cell for i, cell in enumerate(row)])
        for row in rows
    ]


@contextmanager
def driver_cursor(connection: Connection) -> Iterator[psycopg.Cursor[Any]]:
    """A cursor of psycopg's own, inside SQLAlchemy's transaction."""
    if not connection.in_transaction():
        connection.begin()
    driver: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        with driver.cursor() as cursor:
            yield cursor
    except psycopg.Error as error:
        _invalidate_if_lost(connection, error)
        raise


def _invalidate_if_lost(connection: Connection, error: psycopg.Error) -> None:
    """Tell SQLAlchemy of a connection that is lost; nobody else would."""
    driver: Any = connection.connection.driver_connection
    if driver.closed:
        connection.invalidate(error)


_Process = Callable[[Any], Any] | None
_BY_NAME = SQLiteDialect_pysqlite(paramstyle="named")


@lru_cache(maxsize=1_024)
def _compiled(
    statement: UpdateBase | Select[Any], dialect: Dialect
) -> tuple[str, Mapping[str, tuple[str, _Process]]]:
    """SQL, and of each parameter its name there and what prepares its values."""
    by_name = _BY_NAME if dialect.name == "sqlite" else dialect
    compiled: Any = statement.compile(dialect=by_name)
    names: Mapping[str, str] = compiled.escaped_bind_names
    return str(compiled), {
        key: (names.get(key, key), bind.type.dialect_impl(dialect).bind_processor(dialect))
        for key, bind in compiled.binds.items()
    }


@lru_cache(maxsize=1_024)
def _loaders(
    statement: Select[Any], dialect: Dialect, kinds: tuple[int | None, ...]
) -> Mapping[int, Callable[[Any], Any]]:
    """By position, what makes values of the driver's those of SQLAlchemy's types."""
    columns = statement.selected_columns
    found = {
        position: column.type.dialect_impl(dialect).result_processor(dialect, kind)
        for position, (column, kind) in enumerate(zip(columns, kinds, strict=True))
    }
    return {position: load for position, load in found.items() if load is not None}
