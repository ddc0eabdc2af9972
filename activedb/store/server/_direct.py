"""Statements that are compiled once and then sent directly by the driver.

They send the same SQL and values as SQLAlchemy would, without its work per execution, which takes
longer than the server needs for one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import generators
from sqlalchemy import Connection, Dialect, Select
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.sql.dml import UpdateBase

from activedb.store.server._driver_errors import is_lost
from activedb.store.server._prepared import Step, StepFailed, checked, prepared_on

__all__ = ["driver_cursor", "execute_alone", "fetch", "run", "takes_messages", "together"]


def takes_messages(connection: Connection) -> bool:
    """Return whether `together` works here: on Postgres, and not on a caller's connection."""
    return prepared_on(connection) is not None


def together(
    connection: Connection, steps: Sequence[Step], *, last: bool = False
) -> list[list[tuple[Any, ...]]]:
    """Send statements as one message and return the rows of each; one round trip.

    REQUIRES: `takes_messages`.

    Parameters
    ----------
    steps : sequence of (statement, values)
        Statements are cached when compiled, so pass the same objects each time.
    last : bool
        Whether to commit along with them.

    Raises
    ------
    StepFailed
    """
    prepared = prepared_on(connection)
    assert prepared is not None
    try:
        return prepared.execute(steps, last=last)
    except StepFailed as failed:
        if isinstance(failed.error, psycopg.Error):
            _invalidate_if_lost(connection, failed.error)
        raise


def run(connection: Connection, statement: UpdateBase, rows: Sequence[dict[str, Any]]) -> None:
    """Execute `statement` once per row; each row has all of its parameters.

    One round trip, however many rows. Errors are the driver's.

    Parameters
    ----------
    statement : INSERT, UPDATE or DELETE
        Cached when compiled, so pass the same object each time.
    """
    prepared = prepared_on(connection)
    if prepared is not None:
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
        return
    with driver_cursor(connection) as cursor:
        if len(bound) == 1:
            cursor.execute(sql, bound[0])
        else:
            cursor.executemany(sql, bound)


def fetch(connection: Connection, steps: Sequence[Step]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each of several SELECTs.

    One round trip; on a caller's connection one per statement. Errors are the driver's.

    Parameters
    ----------
    steps : sequence of (statement, values)
        Statements are cached when compiled, so pass the same objects each time.
    """
    if takes_messages(connection):
        try:
            return together(connection, steps)
        except StepFailed as failed:
            raise failed.error from None
    return [_fetched(connection, statement, values) for statement, values in steps]


def _fetched(
    connection: Connection, statement: Any, values: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
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
        cursor = driver.execute(sql, bound)
        rows, kinds = cursor.fetchall(), (None,) * len(cursor.description)
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


def execute_alone(connection: Connection, statement: bytes, values: Sequence[bytes]) -> None:
    """Execute a statement outside transactions of SQLAlchemy and psycopg; one round trip.

    Parameters
    ----------
    statement : bytes
        SQL with parameters $1 and so on; its rows are ignored.
    """
    driver: Any = connection.connection.driver_connection
    try:
        driver.pgconn.send_query_params(statement, values)
        checked(driver, driver.wait(generators.execute(driver.pgconn)))
    except psycopg.Error as error:
        _invalidate_if_lost(connection, error)
        raise


@contextmanager
def driver_cursor(connection: Connection) -> Iterator[psycopg.Cursor[Any]]:
    """Yield a psycopg cursor inside SQLAlchemy's transaction."""
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
    """Invalidate a lost connection, because SQLAlchemy does not see the driver's errors here."""
    if connection.invalidated:
        return
    driver: Any = connection.connection.driver_connection
    if driver.closed or driver.broken or is_lost(error):
        connection.invalidate(error)


_Process = Callable[[Any], Any] | None
_BY_NAME = SQLiteDialect_pysqlite(paramstyle="named")


@lru_cache(maxsize=1_024)
def _compiled(
    statement: UpdateBase | Select[Any], dialect: Dialect
) -> tuple[str, Mapping[str, tuple[str, _Process]]]:
    """Return the SQL, and the name and bind processor of each parameter."""
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
    """Return result processors, by position, from the driver's values to SQLAlchemy's types."""
    columns = statement.selected_columns
    found = {
        position: column.type.dialect_impl(dialect).result_processor(dialect, kind)
        for position, (column, kind) in enumerate(zip(columns, kinds, strict=True))
    }
    return {position: load for position, load in found.items() if load is not None}
