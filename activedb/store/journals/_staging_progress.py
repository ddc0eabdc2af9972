"""Progress of each Spark query that writes here, and deletion of obsolete staged rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from activedb.errors import CheckpointMismatch
from activedb.store.system import ledger, sinks, staged_rows

__all__ = ["Sink", "advance", "forget"]


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
