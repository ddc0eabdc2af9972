"""One run of one streaming query: every micro-batch becomes an atomic batch and is applied."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from activedb.errors import ActiveDBError, FeedFailed
from activedb.streams import AtomicBatch, Marks, Matched, newest_times
from spark_bridge._checkpoint import (
    next_batch_id,
    planned_ms,
    read_offsets,
    read_punctuation_us,
    read_query_id,
    remove_half_written,
)
from spark_bridge._failures import take_down
from spark_bridge._matching import MatchingOnExecutors, numbering_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from activedb.streams import StreamDeclaration
    from spark_bridge._checkpoint import Beginning
    from spark_bridge._metrics import FeedMetrics


class QueryRun:
    """Run of a query that turns Spark's micro-batches into atomic batches for the caller's thread.

    Parameters
    ----------
    stream : StreamDeclaration
    checkpoint : Path
        The query's checkpoint folder.
    beginning : Beginning
        Start of the query.
    metrics : FeedMetrics
        Filled while the query runs.
    by : FeedMarks or MatchingOnExecutors
        The source of the punctuations; or the matching on Spark's executors, where Spark's
        watermark is the punctuation.

    Attributes
    ----------
    left : Matched or None
        When a query has ended: the matches of the events that wait on executors.
    on_applied : callable
        Called with the rows of each applied batch, and the seconds since Spark planned it. Not
        called for the first batch of a query, which may have been planned by an earlier run.
    source_at : callable
        Returns the ``source`` of the `AtomicBatch.position` of a micro-batch, by Spark's number.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        checkpoint: Path,
        beginning: Beginning,
        metrics: FeedMetrics,
        by: FeedMarks | MatchingOnExecutors,
    ) -> None:
        self.left: Matched | None = None
        self._by = by
        self.on_applied: Callable[[int, float], None] = lambda rows, seconds: None
        self.source_at: Callable[[int], dict[str, Any]] = self._offsets
        self._stream = stream
        self._beginning = beginning
        self._checkpoint = checkpoint
        self._metrics = metrics
        self._exchange: Exchange[AtomicBatch] = Exchange()
        self._failure: Exception | None = None

    def go(
        self,
        produce: Callable[[], None],
        apply: Callable[[AtomicBatch], None],
        stop: Callable[[], None],
    ) -> None:
        """Run the handover: :meth:`Exchange.run`. ``produce`` runs the query in :meth:`query`."""
        self._exchange.run(produce, apply, stop)

    @contextmanager
    def query(
        self, events: DataFrame, *, trigger: Mapping[str, Any], order: Sequence[str] = ()
    ) -> Iterator[StreamingQuery]:
        """Run the query over event columns for the duration of the block.

        Parameters
        ----------
        events : DataFrame
            Result of :func:`events`.
        trigger : Mapping[str, Any]
            When Spark looks for data; the argument of ``DataStreamWriter.trigger``.
        order : Sequence[str]
            Columns to sort each micro-batch by and then to drop.

        Raises
        ------
        FeedFailed
            If the query fails for a reason other than a refused batch.
        """
        from spark_bridge._listener import listening, note_recent

        remove_half_written(self._checkpoint)
        self._metrics.begin(next_batch_id(self._checkpoint))
        try:
            with listening(events.sparkSession, self._metrics, self._query_id):
                if isinstance(self._by, MatchingOnExecutors):
                    spread = self._by.spread(events, order)
                    with numbering_rows(spread.sparkSession):
                        query = self._writer(spread, trigger, ()).start()
                else:
                    query = self._writer(events, trigger, order).start()
                try:
                    yield query
                finally:
                    with suppress(Exception):  # if the JVM has died there is nothing to stop
                        query.stop()
                    note_recent(self._metrics, query)
                if isinstance(self._by, MatchingOnExecutors) and not self._exchange.is_closed:
                    self.left = self._by.left(events.sparkSession)
        except ActiveDBError:
            raise
        except Exception as error:
            summary, failure = take_down(self._failure or error)
            raise FeedFailed(f"stream {self._stream.name!r}: {summary}") from failure

    def _writer(
        self, columns: DataFrame, trigger: Mapping[str, Any], order: Sequence[str]
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
                self._failure = error  # the query's own error has only its text
                raise

        writer = columns.writeStream.foreachBatch(receive)
        writer = writer.option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**trigger)

    def _query_id(self) -> str:
        return read_query_id(self._checkpoint)

    def _atomic_batch(self, batch: DataFrame, batch_id: int, order: Sequence[str]) -> AtomicBatch:
        # The state of a stream follows from all its rows, so the batch must be evaluated even if it
        # was applied before and this is a replay.
        table, matched = batch.toArrow(), None
        position = self._position(batch_id, table)
        self._metrics.reached(batch_id, position["punctuation_us"])
        if isinstance(self._by, MatchingOnExecutors):
            table, matched = self._by.taken_apart(table)
        if order:
            # A stable sort: rows of one block of one file stay in their order.
            table = table.sort_by([(name, "ascending") for name in order])
            table = table.drop_columns(list(order))
        return AtomicBatch(
            stream=self._stream.name,
            query_id=self._query_id(),
            batch_id=self._beginning.first_batch_id + batch_id,
            table=table,
            punctuation_us=position["punctuation_us"],
            matched=matched,
            position=position,
            continues=self._beginning.continues,
        )

    def _position(self, batch_id: int, table: Any) -> dict[str, Any]:
        """Return the `AtomicBatch.position` of a micro-batch."""
        source = self.source_at(batch_id)
        if isinstance(self._by, MatchingOnExecutors):
            punctuation_us = read_punctuation_us(self._checkpoint, batch_id)
            return {"source": source, "punctuation_us": punctuation_us, "elsewhere": True}
        known = self._by.take(batch_id, table, planned_ms(self._checkpoint, batch_id))
        return {
            "source": source,
            "punctuation_us": known.punctuation_us,
            "marks": known.record(),
        }

    def _offsets(self, batch_id: int) -> dict[str, Any]:
        return {"kind": "DataFrame", "offset": read_offsets(self._checkpoint, batch_id)}


# -- handover of micro-batches from Spark's thread to the thread that applies them -------------


Batch = TypeVar("Batch")

_HEED_S_MAX = 0.5  # upper bound on the delay of an interrupt


class RefusedError(Exception):
    """Error for Spark, never for a user: the batch was not applied and is not processed."""


@dataclass(frozen=True)
class _Offer(Generic[Batch]):
    batch: Batch
    applied: SimpleQueue[bool] = field(default_factory=SimpleQueue)


@dataclass(frozen=True)
class _RunEnd:
    error: BaseException | None


class Exchange(Generic[Batch]):
    """Handover of batches in one run."""

    def __init__(self) -> None:
        self._arrivals: SimpleQueue[_Offer[Batch] | _RunEnd] = SimpleQueue()
        # The latch guards the three attributes below: a producer that comes after the close does
        # not begin, and its offer is refused; one that comes before is known to the thread that
        # closes. An interrupt can come between any two steps of the caller's thread, even while it
        # starts the producer or has just taken an offer from the queue, so nothing may depend on
        # how far it got.
        self._latch = threading.Lock()
        self._closed = False
        self._producing = False
        self._latest: _Offer[Batch] | None = None
        self._ended = threading.Event()

    def offer(self, batch: Batch) -> None:
        """Wait until the caller's thread has applied ``batch``. One offer at a time.

        Raises
        ------
        RefusedError
            If applying it failed, or the run has ended.
        """
        offer = _Offer(batch)
        with self._latch:
            if self._closed:
                raise RefusedError
            self._latest = offer
            self._arrivals.put(offer)
        if not offer.applied.get():
            raise RefusedError

    def run(
        self,
        produce: Callable[[], None],
        apply: Callable[[Batch], None],
        stop: Callable[[], None],
    ) -> None:
        """Apply the offered batches, on this thread, until ``produce`` ends on its own thread.

        An exception from ``apply``, ``produce`` or an interrupt propagates unchanged. ``stop`` must
        make ``produce`` return soon; this returns, or raises, only after it has ended.
        """
        producer = threading.Thread(
            target=self._produce, args=(produce,), name="activedb-feed", daemon=True
        )
        try:
            producer.start()
            while isinstance(arrival := self._next(), _Offer):
                apply(arrival.batch)
                arrival.applied.put(True)
            if arrival.error is not None:
                raise arrival.error
        finally:
            stop()
            self._close()
            if self._producing:
                self._ended.wait()

    @property
    def is_closed(self) -> bool:
        """True if no more batches are applied, because applying one, or the caller, has failed."""
        return self._closed

    def _next(self) -> _Offer[Batch] | _RunEnd:
        # A signal that arrives between the last check for signals and the wait does not end the
        # wait: without a bound, an interrupt of an idle feed would occasionally be lost.
        while True:
            with suppress(Empty):
                return self._arrivals.get(timeout=_HEED_S_MAX)

    def _produce(self, produce: Callable[[], None]) -> None:
        with self._latch:
            if self._closed:
                return
            self._producing = True
        error: BaseException | None = None
        try:
            produce()
        except BaseException as raised:
            error = raised
        self._arrivals.put(_RunEnd(error))
        self._ended.set()

    def _close(self) -> None:
        with self._latch:
            self._closed = True
            if self._latest is not None:
                self._latest.applied.put(False)  # only the first answer counts


# -- punctuations of a feed, computed from its rows by `activedb.streams.Marks` --------------------
# Spark's own watermark would not do: there is one for all producers, so the fastest producer would
# make the events of the others late; and a batch's watermark does not count the rows of the batch,
# so that each event would wait for the batch after its own.
#
# The marks after each micro-batch are in ``<checkpoint>/marks/<batch id>``. They follow from the
# rows of the batches and from the times at which Spark planned them, which Spark keeps, so a batch
# that is run again has the same punctuation.

_NAME = "marks"  # the folder
_US_MAX = 2.0**62  # a time beyond all others, in the type of the column


class FeedMarks:
    """Marks of a stream, kept beside Spark's checkpoint.

    Parameters
    ----------
    stream : StreamDeclaration
    checkpoint : Path
        The query's checkpoint folder.
    future_max_s : float
        A time further ahead than this of the planning of its batch is ignored.
    before : mapping, optional
        The marks before the query's first batch, in the form of `Marks.record`.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        checkpoint: Path,
        future_max_s: float,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self._before = before
        self._stream = stream
        self._folder = checkpoint / _NAME
        self._future_max_s = future_max_s

    def take(self, batch_id: int, table: Any, planned_ms: int) -> Marks:
        """Record a micro-batch; O(rows), in columns.

        Parameters
        ----------
        batch_id : int
        table : pyarrow.Table
            Its event columns.
        planned_ms : int
            Time at which Spark planned it.

        Returns
        -------
        Marks
            The marks behind it.

        Raises
        ------
        FeedFailed
            If the marks of the batches before are lost or damaged.
        """
        latest_us = int(min(planned_ms * 1000 + self._future_max_s * 1e6, _US_MAX))
        newest = newest_times(self._stream, table, latest_us)
        known = self._read(batch_id).after(self._stream, newest, planned_ms * 1000)
        self._write(batch_id, known)
        return known

    def _read(self, batch_id: int) -> Marks:
        """Return the marks before a batch."""
        if batch_id == 0:
            return Marks.restore(self._stream, self._before)
        try:
            text = (self._folder / str(batch_id - 1)).read_text(encoding="utf-8")
            return Marks.restore(self._stream, {**json.loads(text)})
        except (FileNotFoundError, ValueError, TypeError):
            raise FeedFailed(
                f"stream {self._stream.name!r}: what was known before batch {batch_id} of when its "
                f"events are complete is lost or damaged in {self._folder}: restore the checkpoint "
                "or, with an empty one, continue after the last batch of the database (activedb "
                "run --resume)"
            ) from None

    def _write(self, batch_id: int, known: Marks) -> None:
        self._folder.mkdir(exist_ok=True)
        new = self._folder / f"{batch_id}.new"
        new.write_text(json.dumps(known.record()), encoding="utf-8")
        new.replace(self._folder / str(batch_id))
        with suppress(FileNotFoundError):  # keep the one before: this batch may come again
            (self._folder / str(batch_id - 2)).unlink()
