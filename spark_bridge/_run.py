"""One run of one streaming query: every micro-batch becomes an atomic batch and is applied."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from activedb.errors import ActiveDBError, FeedFailed
from activedb.streams import AtomicBatch
from spark_bridge._checkpoint import (
    next_batch_id,
    planned_ms,
    read_punctuation_us,
    read_query_id,
)
from spark_bridge._exchange import Exchange, RefusedError
from spark_bridge._failures import take_down

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from spark_bridge._metrics import FeedMetrics
    from spark_bridge._producer_marks import ProducerMarks


class Run:
    """Takes micro-batches from Spark and gives atomic batches to the caller's thread.

    Parameters
    ----------
    stream : str
        The stream's name.
    checkpoint : Path
        The query's checkpoint folder.
    metrics : FeedMetrics
        Is filled while it runs.
    marks : ProducerMarks, optional
        What makes the punctuations of a stream of several producers; None: Spark's watermark.

    Attributes
    ----------
    on_applied : callable
        Is told the rows of each batch that has been applied, and the seconds since Spark planned
        it. Not of the first one of a query: it may have been planned by an earlier run.
    """

    def __init__(
        self,
        stream: str,
        checkpoint: Path,
        metrics: FeedMetrics,
        marks: ProducerMarks | None = None,
    ) -> None:
        self.on_applied: Callable[[int, float], None] = lambda rows, seconds: None
        self._stream = stream
        self._checkpoint = checkpoint
        self._metrics = metrics
        self._marks = marks
        self._exchange: Exchange[AtomicBatch] = Exchange()
        self._failure: Exception | None = None

    def go(
        self,
        produce: Callable[[], None],
        apply: Callable[[AtomicBatch], None],
        stop: Callable[[], None],
    ) -> None:
        """See :meth:`Exchange.run`; ``produce`` runs the query inside :meth:`query`."""
        self._exchange.run(produce, apply, stop)

    @contextmanager
    def query(
        self, projected: DataFrame, *, trigger: Mapping[str, Any], order: Sequence[str] = ()
    ) -> Iterator[StreamingQuery]:
        """Run the query over event columns for the duration of the block.

        Parameters
        ----------
        projected : DataFrame
            What :func:`project` returned.
        trigger : Mapping[str, Any]
            When Spark looks for data; the argument of ``DataStreamWriter.trigger``.
        order : Sequence[str]
            Columns to sort each micro-batch by and then to drop.

        Raises
        ------
        FeedFailed
            If the query fails for a reason of its own.
        """
        from spark_bridge._listener import listening, note_recent

        self._metrics.begin(next_batch_id(self._checkpoint))
        try:
            with listening(projected.sparkSession, self._metrics, self._query_id):
                query = self._writer(projected, trigger, order).start()
                try:
                    yield query
                finally:
                    with suppress(Exception):  # where the JVM has died there is nothing to stop
                        query.stop()
                    note_recent(self._metrics, query)
        except ActiveDBError:
            raise
        except Exception as error:
            summary, failure = take_down(self._failure or error)
            raise FeedFailed(f"stream {self._stream!r}: {summary}") from failure

    def _writer(
        self, projected: DataFrame, trigger: Mapping[str, Any], order: Sequence[str]
    ) -> DataStreamWriter:
        first = next_batch_id(self._checkpoint)

        def receive(batch: DataFrame, batch_id: int) -> None:
            try:
                atomic = self._atomic_batch(batch, batch_id, order)
                self._exchange.offer(atomic)
                if batch_id > first:
                    seconds = time.time() - planned_ms(self._checkpoint, batch_id) / 1000
                    self.on_applied(atomic.table.num_rows, max(0.0, seconds))
            except RefusedError:
                raise
            except Exception as error:
                self._failure = error  # what reaches the query's own error is its text
                raise

        writer = projected.writeStream.foreachBatch(receive)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**trigger)

    def _query_id(self) -> str:
        return read_query_id(self._checkpoint)

    def _atomic_batch(self, batch: DataFrame, batch_id: int, order: Sequence[str]) -> AtomicBatch:
        from spark_bridge._projection import WATERMARK

        # Spark moves its watermark by the rows that pass through it, so the batch must be
        # evaluated even if it was applied before and this is a replay.
        table = batch.drop(WATERMARK).toArrow()
        if order:
            # A stable sort: rows of one block of one file stay in their order.
            table = table.sort_by([(name, "ascending") for name in order])
            table = table.drop_columns(list(order))
        return AtomicBatch(
            stream=self._stream,
            query_id=self._query_id(),
            batch_id=batch_id,
            table=table,
            punctuation_us=self._punctuation_us(batch_id, table),
        )

    def _punctuation_us(self, batch_id: int, table: Any) -> int | None:
        if self._marks is None:
            return read_punctuation_us(self._checkpoint, batch_id)
        return self._marks.take(batch_id, table, planned_ms(self._checkpoint, batch_id))
