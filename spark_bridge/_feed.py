"""From a declared stream, or from any streaming DataFrame, to atomic batches."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError, DefinitionError, FeedFailed
from spark_bridge._checkpoint import next_batch_id, read_query_id
from spark_bridge._file_queue import FileQueue
from spark_bridge._java import check_tools
from spark_bridge._run import Run
from spark_bridge._session import session

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from activedb.streams import AtomicBatch, Stream

_FUTURE_MAX_S = 60.0  # as in the settings of a database
_FOLLOW_S = 0.5  # how often to look for new files
_FOLLOWING = {"processingTime": "200 milliseconds"}  # an idle query takes next to no CPU time
_STOP_S_MAX = 1  # how soon an idle query notices that its run has ended


class SparkFeed:
    """Feeds a declared stream from files, each file once, in the order of their names.

    Parameters
    ----------
    stream : Stream
        The declaration; its source says how to read the files.
    input : Path
        A folder, or a single file.
    checkpoint : Path
        A folder of this stream's own. It remembers what has been read: a second run with the same
        one goes on where the first ended. Created when missing.
    follow : bool
        Wait for new files instead of returning when all there are have been processed.
    future_max_s : float
        How far ahead of the clock an event's time may move the watermark: the database's setting of
        this name.

    Raises
    ------
    ConfigurationError
        If pyspark is missing, the input does not exist, or no file in it matches.
    JavaNotFound
        If there is no Java 17 or newer.
    DefinitionError
        If the stream has no files as its source.
    """

    def __init__(
        self,
        stream: Stream,
        input: Path,
        checkpoint: Path,
        *,
        follow: bool = False,
        future_max_s: float = _FUTURE_MAX_S,
    ) -> None:
        if stream.source is None:
            raise DefinitionError(
                f"stream {stream.name!r} has no source; declare source=Files(...), or feed it "
                "from a DataFrame with spark_bridge.feed()"
            )
        check_tools()
        self._stream = stream
        self._source = stream.source
        self._checkpoint = checkpoint.resolve()
        self._files = FileQueue(self._source, input, self._checkpoint)
        self._follow = follow
        self._future_max_s = future_max_s
        self._stop = threading.Event()
        if not follow and not self._files.list_all():
            pattern = self._source.glob or "*"
            raise ConfigurationError(f"no file in {input} matches {pattern!r}")

    @property
    def query_id(self) -> str | None:
        """What Spark calls the query of this checkpoint; None before its first run."""
        try:
            return read_query_id(self._checkpoint)
        except FileNotFoundError:
            return None

    @property
    def next_batch_id(self) -> int:
        """The micro-batch that the next run begins with; 0 before the first run."""
        return next_batch_id(self._checkpoint)

    def stop(self) -> None:
        """Make :meth:`run` return after the files at hand. Callable from any thread."""
        self._stop.set()

    def run(self, apply: Callable[[AtomicBatch], None]) -> None:
        """Call ``apply``, on this thread, with one atomic batch after the other.

        Returns when all files are processed or, when following, after :meth:`stop`. What
        ``apply`` raises, and an interrupt, leave unchanged; the batch then does not count as
        processed and comes again, the same, in the next run.

        Raises
        ------
        DefinitionError
            If an expression, the schema or an option cannot be understood.
        FeedFailed
            If Spark fails, or a file cannot be read.
        """
        self._stop.clear()
        self._files.open()
        if not self._follow and not self._files.is_pending() and not self._files.list_new():
            return
        run = Run(self._stream.name, self._checkpoint)
        run.go(lambda: self._produce(run), apply, self._stop.set)

    def _produce(self, run: Run) -> None:
        if not self._await_first_group():
            return
        with session() as spark:
            from spark_bridge._projection import project
            from spark_bridge._reading import FILE_ORDER, read_files

            df, corrupt = read_files(spark, self._stream, self._source, self._files)
            order = FILE_ORDER if self._source.per_batch > 1 else ()
            projected = project(
                df, self._stream, future_max_s=self._future_max_s, order=order, corrupt=corrupt
            )
            trigger = _FOLLOWING if self._follow else {"processingTime": "0 seconds"}
            try:
                with run.query(projected, trigger=trigger, order=order) as query:
                    self._drive(query)
            except FeedFailed as error:
                raise FeedFailed(self._files.with_real_names(str(error))) from error.__cause__

    def _await_first_group(self) -> bool:
        """Have a group pending, from an earlier run or new; False when stopped before."""
        while not self._files.is_pending():
            for group in self._files.groups(self._files.list_new()):
                self._files.show(group)
                break
            else:
                if self._stop.wait(_FOLLOW_S):
                    return False
        return True

    def _drive(self, query: StreamingQuery) -> None:
        self._settle(query)
        while not self._stop.is_set():
            for group in self._files.groups(self._files.list_new()):
                self._files.show(group)
                self._settle(query)
                if self._stop.is_set():
                    return
            if not self._follow:
                return
            self._stop.wait(_FOLLOW_S)

    def _settle(self, query: StreamingQuery) -> None:
        """Wait until what is pending is processed and committed."""
        # The first call may be answered by a look at the folder from before the group was in it;
        # such looks come one after the other, so the second call is answered by a later one.
        query.processAllAvailable()
        query.processAllAvailable()
        if not query.isActive:
            raise FeedFailed(f"stream {self._stream.name!r}: the query was stopped from outside")
        self._files.settle()


def feed(
    df: DataFrame,
    stream: Stream,
    apply: Callable[[AtomicBatch], None],
    checkpoint: Path,
    *,
    follow: bool = False,
    future_max_s: float = _FUTURE_MAX_S,
) -> None:
    """Feed a stream from any streaming DataFrame, in that DataFrame's own Spark session.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The input; for its columns the stream's expressions are written.
    stream : Stream
        The declaration; its source is not looked at.
    apply : Callable[[AtomicBatch], None]
        Called on this thread with one atomic batch after the other; see :meth:`SparkFeed.run`.
    checkpoint : Path
        A local folder of this query's own.
    follow : bool
        Go on until the query is stopped instead of returning when the data that is there now has
        been processed.
    future_max_s : float
        As for :class:`SparkFeed`.

    Raises
    ------
    DefinitionError
        If ``df`` is not streaming or an expression cannot be understood.
    FeedFailed
        If Spark or its source fails.
    """
    if not df.isStreaming:
        raise DefinitionError(
            f"stream {stream.name!r}: the DataFrame is not streaming; make it with spark.readStream"
        )
    from spark_bridge._projection import project

    stopping = threading.Event()
    checkpoint = checkpoint.resolve()
    projected = project(df, stream, future_max_s=future_max_s)
    run = Run(stream.name, checkpoint)

    def produce() -> None:
        trigger = _FOLLOWING if follow else {"availableNow": True}
        with run.query(projected, trigger=trigger) as query:
            while not query.awaitTermination(_STOP_S_MAX) and not stopping.is_set():
                pass

    run.go(produce, apply, stopping.set)
