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
from sqlalchemy import Connection, Dialect
from sqlalchemy.sql.dml import UpdateBase

__all__ = ["driver_cursor", "run"]


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
    statement: UpdateBase, dialect: Dialect
) -> tuple[str, Mapping[str, tuple[str, _Process]]]:
    """SQL, and of each parameter its name there and what prepares its values."""
    compiled: Any = statement.compile(dialect=dialect)
    names: Mapping[str, str] = compiled.escaped_bind_names
    return str(compiled), {
        key: (names.get(key, key), bind.type.dialect_impl(dialect).bind_processor(dialect))
        for key, bind in compiled.binds.items()
    }
