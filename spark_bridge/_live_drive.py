"""Driver of a query over a live source: replay, socket, clock or Kafka."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from activedb.errors import ConfigurationError, FeedFailed
from activedb.streams import Kafka, Rate, Replay, Socket
from spark_bridge._batch_size import BatchSize, write_limit
from spark_bridge._checkpoint import has_ended, next_batch_id, read_offsets
from spark_bridge._failures import is_late_python
from spark_bridge._recording import RecordedFiles
from spark_bridge._session import PACKAGES, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from activedb.streams import StreamDeclaration
    from spark_bridge._checkpoint import Beginning
    from spark_bridge._run import QueryRun

_LOG = logging.getLogger(__name__)

LiveSource: TypeAlias = Replay | Socket | Rate | Kafka

_TRIGGER = {"processingTime": "100 milliseconds"}  # a look for rows costs some CPU time
_AT_ONCE = {"processingTime": "0 seconds"}
_LOOK_S = 0.1  # interval at which to check whether the source has ended
_STARTS_MAX = 30  # in a row, when the source's Python process does not connect in time
_RESTART = 2.0  # Spark reads the limit when a query begins: restart beyond this ratio


class LiveDrive:
    """Driver that runs a query until its source has ended, or it is stopped.

    Parameters
    ----------
    stream : StreamDeclaration
    source : Replay, Socket, Rate or Kafka
        Source of the stream.
    input : Path or None
        A replay's recording, in place of its own path.
    checkpoint : Path
    follow : bool
        Continue until it is stopped; a replay still ends with its recording.
    beginning : Beginning
        Start of the query.
    spark : Mapping[str, str]
        See `session`.
    stopping : threading.Event
        When set: end soon.

    Raises
    ------
    ConfigurationError
        If the source takes no such input, or never ends and is not to be followed.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        source: LiveSource,
        input: Path | None,
        checkpoint: Path,
        *,
        follow: bool,
        beginning: Beginning,
        spark: Mapping[str, str],
        stopping: threading.Event,
    ) -> None:
        self._stream = stream
        self._source = source
        self._checkpoint = checkpoint
        self._follow = follow
        self._beginning = beginning
        self._spark = spark
        self._stop = stopping
        self._recording = self._find_recording(input)
        if isinstance(source, Rate) and not follow:
            raise ConfigurationError(
                f"stream {stream.name!r}: rows made by the clock never end; follow them (--follow)"
            )
        first = 1 if isinstance(source, Rate) else source.rows_per_batch
        self._size = BatchSize(first, stream.latency_max_s)
        self._limit = checkpoint / "source" / "limit"

    def begin(self) -> bool:
        """Return whether there is work to do. REQUIRES: no query of this checkpoint runs."""
        return not isinstance(self._source, Replay) or not has_ended(self._checkpoint)

    def produce(self, run: QueryRun) -> None:
        """Run the query; restart it if its source's Python process did not connect in time.

        Spark allows ten seconds, which is too short on a busy machine.
        """
        run.on_applied, run.source_at = self._note, self._position
        with session(self._settings()) as spark:
            starts = 0
            while True:
                starts += 1
                try:
                    if self._query(run, spark):
                        return
                    starts = 0
                except FeedFailed as error:
                    if not is_late_python(error) or starts == _STARTS_MAX or self._stop.is_set():
                        raise
                    _LOG.warning("%s; the query begins again", error)

    def _query(self, run: QueryRun, spark: SparkSession) -> bool:
        """Run the query; return False if it should begin again with a new limit."""
        from spark_bridge._projection import events

        self._limit.unlink(missing_ok=True)  # of an earlier run
        rows_max = self._size.size
        first = next_batch_id(self._checkpoint)
        df, corrupt = self._read(spark, rows_max)
        columns = events(df, self._stream, corrupt=corrupt)
        with run.query(columns, trigger=self._trigger()) as query:
            return self._has_run(query, first, rows_max)

    def _has_run(self, query: StreamingQuery, first: int, rows_max: int) -> bool:
        """Wait until the run has ended; return False to begin the query again with a new limit.

        Parameters
        ----------
        query : StreamingQuery
        first : int
            The micro-batch that it began with: earlier ones may be the last of an earlier run.
        rows_max : int
            The limit that it began with.
        """
        while not query.awaitTermination(_LOOK_S):
            if self._stop.is_set():
                return True
            if isinstance(self._source, Replay | Socket) and has_ended(self._checkpoint, first):
                return True
            ratio = self._size.size / rows_max
            if isinstance(self._source, Kafka) and not 1 / _RESTART < ratio < _RESTART:
                return False
        ends_itself = isinstance(self._source, Kafka) and not self._follow
        if not ends_itself and not self._stop.is_set():
            raise FeedFailed(f"stream {self._stream.name!r}: the query was stopped from outside")
        return True

    def _position(self, batch_id: int) -> dict[str, Any]:
        """Return the source's offset behind a micro-batch."""
        offset = read_offsets(self._checkpoint, batch_id)[0]
        return {"kind": type(self._source).__name__, "offset": offset}

    def _note(self, rows: int, seconds: float) -> None:
        """Fit the size of the next batch to one that has been processed."""
        self._size.note(rows, seconds)
        if self._stream.latency_max is not None and isinstance(self._source, Replay | Socket):
            write_limit(self._limit, self._size.size)

    def _read(self, spark: SparkSession, rows_max: int) -> tuple[DataFrame, str | None]:
        from spark_bridge import _reading

        stream, source, start = self._stream, self._source, self._beginning.offset
        match source:
            case Replay():
                assert self._recording is not None
                schema = self._checkpoint / "source" / "schema.json"
                return _reading.read_replay(
                    spark, stream, source, self._recording, schema, self._limit, start
                )
            case Socket():
                return _reading.read_socket(
                    spark, stream, source, self._limit, reconnect=self._follow
                )
            case Rate():
                return _reading.read_rate(spark, source), None
            case Kafka():
                return _reading.read_kafka(spark, stream, source, rows_max, start)

    def _trigger(self) -> Mapping[str, Any]:
        if isinstance(self._source, Kafka) and not self._follow:
            return {"availableNow": True}
        if isinstance(self._source, Replay) and self._source.time is None:
            return _AT_ONCE
        return _TRIGGER

    def _settings(self) -> Mapping[str, str]:
        if isinstance(self._source, Kafka) and self._source.connector is not None:
            given = self._spark.get(PACKAGES, "").split(",")
            packages = dict.fromkeys(filter(None, (*given, self._source.connector)))
            return {**self._spark, PACKAGES: ",".join(packages)}
        return self._spark

    def _find_recording(self, input: Path | None) -> Path | None:
        if not isinstance(self._source, Replay):
            if input is not None:
                raise ConfigurationError(
                    f"stream {self._stream.name!r} is fed by {type(self._source).__name__}, which "
                    f"reads no files: leave out the input {input}"
                )
            return None
        path = self._source.path if input is None else input
        if path is None:
            raise ConfigurationError(
                f"stream {self._stream.name!r}: no recording to replay; give Replay(path), or an "
                "input (--input)"
            )
        path = Path(path).resolve()
        if not path.exists():
            raise ConfigurationError(f"the recording {path} does not exist")
        glob = self._source.glob
        if not RecordedFiles(path, glob=glob).files():
            raise ConfigurationError(f"no recording: no file in {path} matches {glob or '*'!r}")
        return path
