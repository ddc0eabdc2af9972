"""Batches published for a stream, as seen by the process that takes them; see `_staging`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, delete, select, update

from activedb.store.server import translate_errors
from activedb.store.session import Store, Wakeups
from activedb.store.system import sinks, staged_batches, staged_rows

__all__ = ["StagedBatch", "StagedJournal"]

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
        with translate_errors("read what is published"), self._store.short() as connection:
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
        with translate_errors("read what is staged"), self._store.short() as connection:
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
        with translate_errors("delete what is taken"), self._store.short() as connection:
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
