"""Insertion of rows staged as JSON into a plain table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, text, update

from activedb.errors import DefinitionError, TableOwned
from activedb.store.journals._staging_progress import Sink
from activedb.store.sql import guard_number
from activedb.store.system import owned_tables

__all__ = ["check_table", "insert_staged"]

_SYSTEM = "activedb_"

# Pieces staged by the attempts that count, in the order of their partitions.
_COUNTED = """
    FROM activedb_staged_rows AS s
    JOIN unnest(CAST(%(writers)s AS text[])) WITH ORDINALITY AS n(writer, place)
        ON s.writer = n.writer
    WHERE s.query_id = %(query_id)s AND s.batch_id = %(batch_id)s
"""
_COLUMNS = text(
    """
    SELECT n.nspname || '.' || c.relname AS name, a.attname AS column
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE c.oid = to_regclass(:name)
    ORDER BY a.attnum
    """
)
_USE = text("SELECT pg_try_advisory_xact_lock_shared(:number)")


def check_table(connection: Connection, sink: Sink, columns: Sequence[str]) -> None:
    """Check that the table can take the rows, and keep owners away until the transaction ends.

    Raises
    ------
    DefinitionError
        If there is no such table, or it lacks a column.
    TableOwned
        If an activedb process keeps the table in its memory.
    """
    quoted = connection.dialect.identifier_preparer.quote(sink.name).replace("%%", "%")
    found = connection.execute(_COLUMNS, {"name": quoted}).all()
    if not found or sink.name.startswith(_SYSTEM):
        raise DefinitionError(
            f"there is no table {sink.name} to insert into: create it, with the columns "
            f"{', '.join(columns)}, or check the options table and db_schema"
        )
    theirs = [str(row.column) for row in found]
    missing = [name for name in columns if name not in theirs]
    if missing:
        raise DefinitionError(
            f"table {sink.name} has no column {', '.join(missing)}; it has {', '.join(theirs)}: "
            "select and rename the DataFrame's columns, upper and lower case as there"
        )
    name = str(found[0].name)
    if not connection.scalar(_USE, {"number": guard_number(f"owner of {name}")}):
        raise TableOwned(
            f"table {sink.name} is kept in the memory of another process: let Spark write to "
            "another table, or to a stream"
        )
    # A former owner that has not noticed the loss of its lock will find the new epoch.
    known = owned_tables.c
    connection.execute(update(owned_tables).where(known.name == name).values(epoch=known.epoch + 1))


def insert_staged(
    connection: Connection, sink: Sink, columns: Sequence[str], values: dict[str, Any]
) -> int:
    """Insert the rows of the attempts that count; return the number of pieces. Two statements.

    Parameters
    ----------
    values : dict
        Query, batch, and the writers that count in the order of their partitions.
    """
    pieces = connection.exec_driver_sql(f"SELECT count(*) {_COUNTED}", values).scalar_one()
    quote = connection.dialect.identifier_preparer.quote
    connection.exec_driver_sql(_insertion(quote, sink.name, columns), values)
    return int(pieces)


def _insertion(quote: Callable[[str], str], table: str, columns: Sequence[str]) -> str:
    """Return the statement that inserts staged rows, in the order of partitions and pieces."""
    table, names = quote(table), [quote(name) for name in columns]
    return (
        f"INSERT INTO {table} ({', '.join(names)}) "  # noqa: S608  # names, quoted
        f"SELECT {', '.join(f'r.{name}' for name in names)} "
        f"FROM (SELECT s.data {_COUNTED} ORDER BY n.place, s.piece) AS staged, "
        f"json_populate_recordset(NULL::{table}, convert_from(staged.data, 'UTF8')::json) AS r"
    )
