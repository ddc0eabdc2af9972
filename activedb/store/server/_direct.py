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
from psycopg import generators
from sqlalchemy import Connection, Dialect, Select
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.sql.dml import UpdateBase

from activedb.store.server._driver_errors import is_lost
from activedb.store.server._prepared import Step, StepFailed, checked, prepared_on

__all__ = ["driver_cursor", "execute_alone", "fetch", "run", "takes_messages", "together"]


def takes_messages(connection: Connection) -> bool:
    """Whether `together` can be used: on Postgres, and not on a caller's connection."""
    return prepared_on(connection) is not None


def together(
    connection: Connection, steps: Sequence[Step], *, last: bool = False
) -> list[list[tuple[Any, ...]]]:
    """Rows of each of some statements, sent as one message; one round trip.

    REQUIRES: `takes_messages`.

    Parameters
    ----------
    steps : sequence of (statement, values)
        Statements are compiled once, so the same objects have to come each time.
    last : bool
        Commit with them.

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
    """Execute `statement` for each of `rows`, which give all of its parameters.

    One round trip, however many rows. Errors are the driver's.

    Parameters
    ----------
    statement : INSERT, UPDATE or DELETE
        Compiled once, so the same object has to come each time.
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
    """Rows of each of some SELECTs.

    One round trip; on a caller's connection one for each. Errors are the driver's.

    Parameters
    ----------
    steps : sequence of (statement, values)
        Statements are compiled once, so the same objects have to come each time.
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
    """Execute a statement in no transaction of SQLAlchemy's or psycopg's; one round trip.

    Parameters
    ----------
    statement : bytes
        With $1 and so on; its rows are not looked at.
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
