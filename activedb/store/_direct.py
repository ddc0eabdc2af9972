"""Statements that are compiled once and then sent by psycopg itself.

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
from sqlalchemy.sql.dml import UpdateBase

__all__ = ["driver_cursor", "fetch", "run"]


def run(connection: Connection, statement: UpdateBase, rows: Sequence[dict[str, Any]]) -> None:
    """Execute `statement` for each of `rows`, which give all of its parameters.

    One round trip, however many rows. Errors are the driver's or SQLAlchemy's.

    Parameters
    ----------
    statement : INSERT, UPDATE or DELETE
        Compiled once, so the same object has to come each time.
    """
    if connection.dialect.driver != "psycopg":
        connection.execute(statement, rows)
        return
    sql, processors = _compiled(statement, connection.dialect)
    bound = [
        {
            name: row[key] if process is None else process(row[key])
            for key, (name, process) in processors.items()
        }
        for row in rows
    ]
    with driver_cursor(connection) as cursor:
        if len(bound) == 1:
            cursor.execute(sql, bound[0])
        else:
            cursor.executemany(sql, bound)


def fetch(
    connection: Connection, statement: Select[Any], values: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Rows of `statement`, with `values` for all of its parameters.

    One round trip. Errors are the driver's or SQLAlchemy's.

    Parameters
    ----------
    statement : SELECT
        Compiled once, so the same object has to come each time.
    """
    if connection.dialect.driver != "psycopg":
        return [tuple(row) for row in connection.execute(statement, values)]
    dialect = connection.dialect
    sql, processors = _compiled(statement, dialect)
    bound = {
        name: values[key] if process is None else process(values[key])
        for key, (name, process) in processors.items()
    }
    with driver_cursor(connection) as cursor:
        rows = cursor.execute(sql, bound).fetchall()
        if not rows:
            return rows
        kinds = tuple([column.type_code for column in cursor.description or ()])
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
        if driver.closed:
            connection.invalidate(error)  # nobody else would tell the pool
        raise


_Process = Callable[[Any], Any] | None


@lru_cache(maxsize=1_024)
def _compiled(
    statement: UpdateBase | Select[Any], dialect: Dialect
) -> tuple[str, Mapping[str, tuple[str, _Process]]]:
    """SQL, and of each parameter its name there and what prepares its values."""
    compiled: Any = statement.compile(dialect=dialect)
    names: Mapping[str, str] = compiled.escaped_bind_names
    return str(compiled), {
        key: (names.get(key, key), bind.type.dialect_impl(dialect).bind_processor(dialect))
        for key, bind in compiled.binds.items()
    }


@lru_cache(maxsize=1_024)
def _loaders(
    statement: Select[Any], dialect: Dialect, kinds: tuple[int, ...]
) -> Mapping[int, Callable[[Any], Any]]:
    """By position, what makes values of the driver's those of SQLAlchemy's types."""
    columns = statement.selected_columns
    found = {
        position: column.type.dialect_impl(dialect).result_processor(dialect, kind)
        for position, (column, kind) in enumerate(zip(columns, kinds, strict=True))
    }
    return {position: load for position, load in found.items() if load is not None}
