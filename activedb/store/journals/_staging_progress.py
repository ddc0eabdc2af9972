"""How far each query of Spark is that writes here, and what of it counts no more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, update

from activedb.errors import CheckpointMismatch
from activedb.store.system import ledger, sinks, staged_rows

__all__ = ["Sink", "advance", "forget"]


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a query of Spark writes: the stream or table of a name."""

    kind: Literal["stream", "table"]
    name: str
    query_id: str

    @property
    def row(self) -> ColumnElement[bool]:
        """Which row of `sinks` is about it."""
        c = sinks.c
        return and_(c.kind == self.kind, c.name == self.name, c.query_id == self.query_id)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def advance(connection: Connection, sink: Sink, batch_id: int) -> bool:
    """Count a batch as published, if it is the next; False: it was published before.

    Until the end of the transaction nobody else publishes for this sink.

    Raises
    ------
    CheckpointMismatch
        If it does not follow the last one, or another query feeds the stream.
    """
    known = select(sinks.c.batch_id).where(sink.row).with_for_update()
    last = connection.scalar(known)
    if last is None:
        # So that two queries which both are new to a stream do not both become its first.
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
    """Delete what of this batch and those before counts no more: nobody will publish it."""
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
    """The query that has published for the stream, or has fed it in another way; None: none."""
    published = select(sinks.c.query_id).where(
        sinks.c.kind == sink.kind, sinks.c.name == sink.name, sinks.c.query_id != sink.query_id
    )
    fed = select(ledger.c.query_id).where(
        ledger.c.stream == sink.name, ledger.c.query_id != sink.query_id
    )
    return connection.scalar(published.union_all(fed).limit(1))
