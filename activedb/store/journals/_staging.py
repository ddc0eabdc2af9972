"""Staging area of Spark's processes: they stage rows, and publish them batch by batch.

```
   task 0 ── COPY ──► staged_rows (place NULL) ─┐           ┌─► staged_batches, place = partition
   task 1 ── COPY ──► staged_rows (place NULL) ─┼─ publish ─┤   (stream: until a process takes it)
   task 1, again ───► staged_rows (place NULL) ─┘           └─► the table itself
```

Each attempt of a task stages in a separate transaction, so a failed attempt leaves no rows. The one
transaction that publishes decides which attempts count: it locks the row of `sinks` with the
query's progress, so a repeated batch, concurrent or after a crash, changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from activedb.config import mask_url
from activedb.errors import (
    CheckpointMismatch,
    ConfigurationError,
    DefinitionError,
    ServerUnreachable,
    StoreError,
    TableOwned,
)
from activedb.store.server import driver_cursor, engine_for, postgres_url, translate_errors
from activedb.store.session import Store, Wakeups, send_wakeup
from activedb.store.sql import guard_number
from activedb.store.system import ledger, owned_tables, sinks, staged_batches, staged_rows

__all__ = ["Sink", "StagedAttempt", "StagedBatch", "StagedJournal", "Staging", "staging"]


_STREAM = "stream"


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """Published micro-batch.

    Attributes
    ----------
    query_id, batch_id : str, int
    rows : int
    published_us : int
        Time of publication by the server's clock, in microseconds since 1970 UTC.
    known : mapping or None
        Record written when the previous batch was taken; see `StagedJournal.taken`.
    """

    query_id: str
    batch_id: int
    rows: int
    published_us: int
    known: Mapping[str, Any] | None


class StagedJournal:
    """Published batches of one stream that have not been taken."""

    def __init__(self, store: Store, stream: str):
        self._store = store
        self._stream = stream

    def wakeups(self) -> Wakeups:
        """Return the wake-ups for published batches; a wake-up may be missed.

        Raises
        ------
        ConfigurationError
            On ``memory://``, where no other process can publish any.
        """
        return self._store.wakeups()

    def streams(self) -> list[str]:
        """Return the streams for which any query has ever published a batch."""
        statement = select(sinks.c.name).where(sinks.c.kind == _STREAM).distinct()
        with translate_errors("read who publishes"), self._store.short() as connection:
            return sorted(connection.scalars(statement))

    def first(self) -> StagedBatch | None:
        """Return the first batch that has not been taken; None if there is none."""
        c = staged_batches.c
        of_query = and_(
            sinks.c.kind == _STREAM, sinks.c.name == c.stream, sinks.c.query_id == c.query_id
        )
        statement = (
            select(staged_batches, sinks.c.known)
            .join_from(staged_batches, sinks, of_query)
            .where(c.stream == self._stream)
            .order_by(c.batch_id)
            .limit(1)
        )
        with translate_errors("read published rows"), self._store.short() as connection:
            row = connection.execute(statement).first()
        if row is None:
            return None
        published_us = round(row.published_at.timestamp() * 1_000_000)
        return StagedBatch(row.query_id, row.batch_id, row.rows, published_us, row.known)

    def pieces(self, batch: StagedBatch) -> list[bytes]:
        """Return the rows of `batch`, in the order of Spark's partitions; O(rows)."""
        c = staged_rows.c
        statement = (
            select(c.data)
            .where(
                c.query_id == batch.query_id,
                c.batch_id == batch.batch_id,
                c.place.is_not(None),
            )
            .order_by(c.place, c.piece)
        )
        with translate_errors("read staged rows"), self._store.short() as connection:
            return [bytes(data) for data in connection.scalars(statement)]

    def taken(self, batch: StagedBatch, known: Mapping[str, Any]) -> None:
        """Delete a batch that has taken effect; do nothing if it was deleted before.

        Parameters
        ----------
        known : mapping
            Record from which the punctuation of the next batch is derived.
        """
        c, r = staged_batches.c, staged_rows.c
        mine = and_(
            sinks.c.kind == _STREAM,
            sinks.c.name == self._stream,
            sinks.c.query_id == batch.query_id,
        )
        with translate_errors("delete taken rows"), self._store.short() as connection:
            gone = connection.execute(
                delete(staged_batches).where(c.stream == self._stream, c.batch_id == batch.batch_id)
            )
            if gone.rowcount == 0:  # already deleted, and the recorded `known` may be newer
                return
            connection.execute(update(sinks).where(mine).values(known=dict(known)))
            connection.execute(
                delete(staged_rows).where(
                    r.query_id == batch.query_id,
                    r.batch_id == batch.batch_id,
                    r.place.is_not(None),
                )
            )


_COPY = (
    f"COPY {staged_rows.name} (query_id, batch_id, writer, piece, data) FROM STDIN (FORMAT BINARY)"
)
_TYPES = ("varchar", "int8", "varchar", "int4", "bytea")
_REFUSAL = (
    "Spark cannot write to",
    "; the option url is to be postgresql+psycopg://user:password@host:5432/database",
)
_SCHEMA = re.compile("[a-z_][a-z0-9_]{0,62}")  # like the setting db_schema

_PUT_IN_PLACE = text(
    """
    UPDATE activedb_staged_rows AS s SET place = n.place
    FROM unnest(CAST(:writers AS text[])) WITH ORDINALITY AS n(writer, place)
    WHERE s.query_id = :query_id AND s.batch_id = :batch_id AND s.writer = n.writer
    """
)


@dataclass(frozen=True, slots=True)
class StagedAttempt:
    """Pieces and rows staged by the attempt of a task that counts.

    Attributes
    ----------
    writer : str
        Name of the attempt, in hexadecimal digits.
    pieces, rows : int
    """

    writer: str
    pieces: int
    rows: int


@cache
def staging(url: str, schema: str | None) -> Staging:
    """Return the staging tables at a URL, with connections that this process keeps open."""
    return Staging(url, schema)


class Staging:
    """Staging tables of one schema.

    Parameters
    ----------
    url : str
        URL of the database. No error shows its password.
    schema : str or None
        Schema of activedb's tables; None: as the search path says.

    Raises
    ------
    InvalidURL, ServerUnreachable
    ConfigurationError
        If activedb's tables do not exist.
    """

    def __init__(self, url: str, schema: str | None):
        settings = {"default_transaction_isolation": "read committed", "timezone": "UTC"}
        if schema is not None:
            settings["search_path"] = _plain(schema)
        self._engine = engine_for(
            postgres_url(url, refusal=_REFUSAL),
            settings,
            application="activedb sink",
            pool_size=1,
            pool_pre_ping=True,
        )
        try:
            self._schema = self._look(url, schema)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def stage(self, query_id: str, batch_id: int, writer: str, pieces: Iterable[bytes]) -> int:
        """Stage the pieces of one attempt, all or none; return their number. One COPY.

        The pieces are invisible to readers until they are published.
        """
        count = 0
        with (
            self._transaction(f"stage rows of batch {batch_id}") as connection,
            driver_cursor(connection) as cursor,
            cursor.copy(_COPY) as copy,
        ):
            copy.set_types(_TYPES)
            for data in pieces:
                copy.write_row((query_id, batch_id, writer, count, data))
                count += 1
        return count

    def publish_to_stream(
        self, sink: Sink, batch_id: int, attempts: Sequence[StagedAttempt]
    ) -> bool:
        """Publish a micro-batch as a batch of a stream; return False if it was published before.

        One short transaction. Attempts are in the order of their partitions.

        Raises
        ------
        CheckpointMismatch
            If the batch does not follow the last one published, or another query feeds the stream.
        StoreError
            If staged pieces are missing.
        """
        with self._transaction(f"publish batch {batch_id} for {sink}") as connection:
            if not advance(connection, sink, batch_id):
                return False
            values = _counted(sink, batch_id, attempts)
            put = connection.execute(_PUT_IN_PLACE, values)
            _check_all_there(put.rowcount, sink, batch_id, attempts)
            connection.execute(
                insert(staged_batches).values(
                    stream=sink.name,
                    batch_id=batch_id,
                    query_id=sink.query_id,
                    rows=sum(attempt.rows for attempt in attempts),
                )
            )
            forget(connection, sink, batch_id)
            send_wakeup(connection, self._schema)
        return True

    def publish_to_table(
        self, sink: Sink, batch_id: int, attempts: Sequence[StagedAttempt], columns: Sequence[str]
    ) -> bool:
        """Insert the rows of a micro-batch into a table; return False if that was done before.

        One transaction. The staged pieces are JSON arrays of objects that have `columns`.

        Raises
        ------
        CheckpointMismatch
            If the batch does not follow the last one published.
        DefinitionError
            If there is no such table, or it lacks a column.
        TableOwned
            If an activedb process keeps the table in its memory.
        InvalidRow, ConstraintViolation
            If the server refuses a row; nothing is inserted then.
        """
        doing = f"insert batch {batch_id} into {sink}"
        with self._transaction(doing) as connection:
            if not advance(connection, sink, batch_id):
                return False
            check_table(connection, sink, columns)
            values = _counted(sink, batch_id, attempts)
            there = insert_staged(connection, sink, columns, values)
            _check_all_there(there, sink, batch_id, attempts)
            forget(connection, sink, batch_id)
        return True

    def discard(self, query_id: str, batch_id: int, writers: Sequence[str]) -> None:
        """Delete the pieces that attempts have staged for an abandoned batch."""
        c = staged_rows.c
        with self._transaction(f"discard batch {batch_id}") as connection:
            connection.execute(
                delete(staged_rows).where(
                    c.query_id == query_id,
                    c.batch_id == batch_id,
                    c.writer.in_(writers),
                    c.place.is_(None),
                )
            )

    # -- inside ------------------------------------------------------------------------------

    def _look(self, url: str, schema: str | None) -> str:
        """Check that activedb's tables exist, and return their schema."""
        try:
            with self._engine.begin() as connection:
                found = connection.scalar(select(func.to_regclass(staged_rows.name)))
                current = connection.scalar(select(func.current_schema())) or "public"
        except DBAPIError as error:
            reason = " ".join(str(error.orig).split())
            raise ServerUnreachable(
                f"no Postgres answers at {mask_url(url)}: {reason}; check the option url, or "
                "ACTIVEDB_URL where Spark runs"
            ) from error
        if found is None:
            raise ConfigurationError(
                f"activedb's tables are not in schema {schema or current} at {mask_url(url)}, or "
                "are older than this activedb: open the database once, or run activedb migrate; "
                "and check the option db_schema"
            )
        return str(current)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[Connection]:
        with translate_errors(doing), self._engine.begin() as connection:
            yield connection


def _counted(sink: Sink, batch_id: int, attempts: Sequence[StagedAttempt]) -> dict[str, Any]:
    return {
        "query_id": sink.query_id,
        "batch_id": batch_id,
        "writers": [attempt.writer for attempt in attempts],
    }


def _check_all_there(
    found: int, sink: Sink, batch_id: int, attempts: Sequence[StagedAttempt]
) -> None:
    staged = sum(attempt.pieces for attempt in attempts)
    if found != staged:
        raise StoreError(
            f"of batch {batch_id} for {sink} {found} pieces are there and {staged} were staged: "
            "the others have been deleted, perhaps by a run of the same query that is not over. "
            "Start the query again: Spark runs the batch again"
        )


def _plain(schema: str) -> str:
    """Return `schema`, checked: it goes into a connection's options and cannot be bound there."""
    if not _SCHEMA.fullmatch(schema):
        raise ConfigurationError(
            f"{schema!r} is not a name for a schema: db_schema takes lower-case letters, digits "
            "and _"
        )
    return schema


# -- insertion of rows staged as JSON into a plain table -------------------------------------------

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


# -- progress of each Spark query that writes here, and deletion of obsolete staged rows -------


@dataclass(frozen=True, slots=True)
class Sink:
    """Target of a Spark query: a stream or a table, by name."""

    kind: Literal["stream", "table"]
    name: str
    query_id: str

    @property
    def row(self) -> ColumnElement[bool]:
        """Condition that selects this sink's row of `sinks`."""
        c = sinks.c
        return and_(c.kind == self.kind, c.name == self.name, c.query_id == self.query_id)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def advance(connection: Connection, sink: Sink, batch_id: int) -> bool:
    """Count a batch as published, if it is the next one; return False if it was published before.

    No other process publishes for this sink until the end of the transaction.

    Raises
    ------
    CheckpointMismatch
        If the batch does not follow the last one, or another query feeds the stream.
    """
    known = select(sinks.c.batch_id).where(sink.row).with_for_update()
    last = connection.scalar(known)
    if last is None:
        # Otherwise two queries that are both new to a stream could both become its first.
        connection.exec_driver_sql(f"LOCK TABLE {sinks.name} IN SHARE ROW EXCLUSIVE MODE")
        last = connection.scalar(known)
    if last is None:
        _check_first(connection, sink, batch_id)
        values = {"kind": sink.kind, "name": sink.name, "query_id": sink.query_id}
        connection.execute(insert(sinks).values(batch_id=batch_id, **values))
        return True
    if batch_id <= last:
        forget(connection, sink, batch_id)
        return False
    if batch_id > last + 1:
        raise CheckpointMismatch(
            f"{sink}: Spark's checkpoint is at batch {batch_id}, but this database has stopped at "
            f"batch {last}. Use the database that belongs to the checkpoint, as it was last"
        )
    changed = {"batch_id": batch_id, "published_at": func.now()}
    connection.execute(update(sinks).where(sink.row).values(changed))
    return True


def forget(connection: Connection, sink: Sink, batch_id: int) -> None:
    """Delete unpublished rows of this batch and earlier ones: they will never be published."""
    c = staged_rows.c
    connection.execute(
        delete(staged_rows).where(
            c.query_id == sink.query_id, c.batch_id <= batch_id, c.place.is_(None)
        )
    )


def _check_first(connection: Connection, sink: Sink, batch_id: int) -> None:
    other = _other_query(connection, sink) if sink.kind == "stream" else None
    if other is not None:
        raise CheckpointMismatch(
            f"{sink} was fed by query {other} so far, and this is query {sink.query_id}: its "
            "checkpoint is new, or another one. Use the old checkpoint, or start over with an "
            "empty database"
        )
    if batch_id > 0:
        raise CheckpointMismatch(
            f"{sink}: Spark's checkpoint is at batch {batch_id}, but this database has seen none "
            "of its batches. Use the old database, or a new checkpoint to start over"
        )


def _other_query(connection: Connection, sink: Sink) -> str | None:
    """Return another query that has published for the stream, or fed it otherwise, or None."""
    published = select(sinks.c.query_id).where(
        sinks.c.kind == sink.kind, sinks.c.name == sink.name, sinks.c.query_id != sink.query_id
    )
    fed = select(ledger.c.query_id).where(
        ledger.c.stream == sink.name, ledger.c.query_id != sink.query_id
    )
    return connection.scalar(published.union_all(fed).limit(1))
