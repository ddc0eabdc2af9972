"""Feeds of atomic batches, from a declared stream or from any streaming DataFrame."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError, DefinitionError
from activedb.streams import Files, Staged
from spark_bridge._checkpoint import (
    Beginning,
    beginning_of,
    check_whole,
    is_planned,
    next_batch_id,
    read_query_id,
)
from spark_bridge._file_drive import FileDrive
from spark_bridge._live_drive import LiveDrive
from spark_bridge._matching import MatchingOnExecutors
from spark_bridge._matching_plan import check_switch
from spark_bridge._metrics import FeedMetrics
from spark_bridge._run import QueryRun
from spark_bridge._session import check_tools, session
from spark_bridge._tasks import SparkTasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from activedb.streams import AtomicBatch, Matchable, Matched, Positions, StreamDeclaration

_FUTURE_MAX_S = 60.0  # as in the settings of a database
_FOLLOWING = {"processingTime": "200 milliseconds"}  # an idle query takes next to no CPU time
_STOP_S_MAX = 1  # time in which an idle query notices that its run has ended


class SparkFeed:
    """Feed of a declared stream from its source.

    Files are read once each, in the order of their names. The declarations `Replay`, `Kafka`,
    `Socket` and `Rate` document the other sources, and which of their rows remain after a restart.

    Parameters
    ----------
    stream : StreamDeclaration
        The declaration; its source says where the rows come from.
    input : Path or None
        For files and replays: a folder, or a single file. A replay may have its own path;
        other sources take none.
    checkpoint : Path
        A folder for this stream alone. It records what has been read: a second run with the same
        checkpoint continues where the first ended. Created when missing.
    follow : bool
        Wait for new rows instead of returning when all present ones are processed. A socket is
        followed beyond the end of a connection, Kafka beyond its present end.
    future_max_s : float
        How far ahead of the clock an event's time may move the punctuation: the database's setting
        of this name.
    spark : Mapping[str, str], optional
        Settings of Spark, if it has to be started: the database's ``settings.of_spark``.
    matchable : Callable[[], Matchable], optional
        Work for Spark's executors to match: ``stream_run.matchable``. It is called as each
        :meth:`run` begins. None: nothing; matching is done where the batches are applied.
    resume : Positions, optional
        ``stream_run.positions()``: if the checkpoint is empty, because the old one is lost,
        continue behind the last batch that the database has. For files, recordings and Kafka. None:
        begin again.

    Attributes
    ----------
    left : Matched or None
        Matches of the events that still wait on executors when :meth:`run` has returned, for
        ``stream_run.finish``; None if there are none.
    matched_here : Mapping[str, str]
        Rules that executors do not match although they match others, with the reasons; known as
        :meth:`run` begins.
    metrics : FeedMetrics
        Throughput and progress of the feed.
    tasks : SparkTasks
        Runs tasks in the feed's Spark while it runs, for ``stream_run.run_in_tasks``.

    Raises
    ------
    ConfigurationError
        If pyspark is missing, the input does not exist, no file in it matches, or the source takes
        none; or if the source never ends and is not followed.
    JavaNotFound
        If there is no Java 17 or newer.
    DefinitionError
        If the stream has no source.
    CheckpointMismatch
        If the checkpoint belongs to another stream.
    FeedFailed
        If the checkpoint is damaged.
    """

    check_tools = staticmethod(check_tools)

    def __init__(
        self,
        stream: StreamDeclaration,
        input: Path | None,
        checkpoint: Path,
        *,
        follow: bool = False,
        future_max_s: float = _FUTURE_MAX_S,
        spark: Mapping[str, str] | None = None,
        matchable: Callable[[], Matchable] | None = None,
        resume: Positions | None = None,
    ) -> None:
        source = stream.source
        if source is None:
            raise DefinitionError(
                f"stream {stream.name!r} has no source; declare one, as source=Files(...), or feed "
                "it from a DataFrame with spark_bridge.feed()"
            )
        if isinstance(source, Staged):
            raise DefinitionError(
                f"stream {stream.name!r} is fed by a query that is published in the database: take "
                "its batches with stream.take_staged(), or activedb run"
            )
        check_tools()
        self.metrics = FeedMetrics()
        self.tasks = SparkTasks()
        self.left: Matched | None = None
        self._spark = spark or {}
        self._matchable = matchable
        self._matching: MatchingOnExecutors | None = None
        self._here: Mapping[str, str] = {}
        self._stream = stream
        self._checkpoint = checkpoint.resolve()
        self._future_max_s = future_max_s
        check_whole(self._checkpoint)
        self._beginning = beginning_of(self._checkpoint, stream, resume)
        self._stop = threading.Event()
        self._drive: FileDrive | LiveDrive
        if isinstance(source, Files):
            if input is None:
                raise ConfigurationError(
                    f"stream {stream.name!r} reads files: give the input, a file or a folder "
                    "(--input)"
                )
            self._drive = FileDrive(
                stream,
                source,
                input,
                self._checkpoint,
                follow=follow,
                beginning=self._beginning,
                spark=spark or {},
                stopping=self._stop,
            )
        else:
            self._drive = LiveDrive(
                stream,
                source,
                input,
                self._checkpoint,
                follow=follow,
                beginning=self._beginning,
                spark=spark or {},
                stopping=self._stop,
            )

    @property
    def matched_here(self) -> Mapping[str, str]:
        """Rules that executors do not match, with the reasons; empty if executors match none."""
        return self._here if self._matching is None else self._matching.here

    @property
    def query_id(self) -> str | None:
        """Spark's id of the query of this checkpoint; None before its first run."""
        try:
            return read_query_id(self._checkpoint)
        except FileNotFoundError:
            return None

    @property
    def next_batch_id(self) -> int:
        """The micro-batch that the next run begins with; 0 before the first run.

        For a feed that resumes another one, the batch after the last one of that feed.
        """
        return self._beginning.first_batch_id + next_batch_id(self._checkpoint)

    @property
    def continues(self) -> str | None:
        """The query that this one resumes; None if it began at the beginning."""
        return self._beginning.continues

    def stop(self) -> None:
        """Make :meth:`run` return soon, after the current files. Safe on any thread."""
        self._stop.set()

    def run(self, apply: Callable[[AtomicBatch], None]) -> None:
        """Call ``apply``, on this thread, with one atomic batch after the other.

        Returns when all is processed or, when following, after :meth:`stop`. An exception of
        ``apply``, and an interrupt, propagate unchanged; the batch then does not count as processed
        and comes again, the same, in the next run.

        Raises
        ------
        ConfigurationError
            If Spark already runs without what the source needs, or if the checkpoint was started
            with the other setting of ``scale_out``.
        DefinitionError
            If an expression, the schema or an option cannot be understood.
        FeedFailed
            If Spark or the source fails, or a file cannot be read.
        """
        self._stop.clear()
        self.left = None
        matching = self._matching = self._matching_now()
        check_whole(self._checkpoint)
        check_switch(
            self._checkpoint,
            self._stream.name,
            is_elsewhere=matching is not None,
            has_begun=next_batch_id(self._checkpoint) > 0 or is_planned(self._checkpoint, 0),
        )
        self._beginning.write(self._checkpoint)
        if not self._drive.begin():
            if matching is not None and next_batch_id(self._checkpoint) > 0:
                with session(self._spark) as spark:
                    self.left = matching.left(spark)
            return
        run = _run_of(
            self._stream,
            self._checkpoint,
            self._beginning,
            self.metrics,
            self._future_max_s,
            matching,
        )
        run.go(lambda: self._drive.produce(run), apply, self._stop.set)
        self.left = run.left

    def _matching_now(self) -> MatchingOnExecutors | None:
        """Return the matching for executors, by the present rules and progress; None: none."""
        matchable = None if self._matchable is None else self._matchable()
        self._here = {} if matchable is None else matchable.here
        if matchable is None or not matchable.rules:
            return None
        if self._beginning.continues is not None:
            raise ConfigurationError(
                f"stream {self._stream.name!r} was resumed without its first checkpoint, so the "
                "earlier state of its patterns is only in this process: set scale_out to false"
            )
        return MatchingOnExecutors(self._stream, matchable, self._checkpoint, self._future_max_s)


def feed(
    df: DataFrame,
    stream: StreamDeclaration,
    apply: Callable[[AtomicBatch], None],
    checkpoint: Path,
    *,
    follow: bool = False,
    future_max_s: float = _FUTURE_MAX_S,
    metrics: FeedMetrics | None = None,
) -> None:
    """Feed a stream from any streaming DataFrame, in that DataFrame's own Spark session.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        The input; the stream's expressions refer to its columns.
    stream : StreamDeclaration
        The declaration; its source and its `latency_max` are ignored.
    apply : Callable[[AtomicBatch], None]
        Called on this thread with one atomic batch after the other; see :meth:`SparkFeed.run`.
    checkpoint : Path
        A local folder for this query alone.
    follow : bool
        Continue until the query is stopped instead of returning when the present data has been
        processed.
    future_max_s : float
        See :class:`SparkFeed`.
    metrics : FeedMetrics, optional
        Filled while the feed runs.

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
    from spark_bridge._projection import events

    stopping = threading.Event()
    checkpoint = checkpoint.resolve()
    check_whole(checkpoint)
    beginning = beginning_of(checkpoint, stream, None)
    beginning.write(checkpoint)
    run = _run_of(stream, checkpoint, beginning, metrics or FeedMetrics(), future_max_s)
    columns = events(df, stream)

    def produce() -> None:
        trigger = _FOLLOWING if follow else {"availableNow": True}
        with run.query(columns, trigger=trigger) as query:
            while not query.awaitTermination(_STOP_S_MAX) and not stopping.is_set():
                pass

    run.go(produce, apply, stopping.set)


def _run_of(
    stream: StreamDeclaration,
    checkpoint: Path,
    beginning: Beginning,
    metrics: FeedMetrics,
    future_max_s: float,
    matching: MatchingOnExecutors | None = None,
) -> QueryRun:
    if matching is not None:
        return QueryRun(stream, checkpoint, beginning, metrics, matching)
    from spark_bridge._run import FeedMarks

    marks = FeedMarks(stream, checkpoint, future_max_s, beginning.marks)
    return QueryRun(stream, checkpoint, beginning, metrics, marks)
