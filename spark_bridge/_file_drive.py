"""Driver of a query over files, one group at a time."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError, FeedFailed
from activedb.streams import Files
from spark_bridge._batch_size import BatchSize
from spark_bridge._checkpoint import is_committed, is_planned, names_of_files, next_batch_id
from spark_bridge._file_queue import FileQueue
from spark_bridge._idle import Idle, idle_waits_s
from spark_bridge._session import session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.streaming.query import StreamingQuery

    from activedb.streams import StreamDeclaration
    from spark_bridge._beginning import Beginning
    from spark_bridge._run import Run

_FOLLOW_S = 0.05  # interval between looks for new files
_FOLLOW_SHARE = 4  # but the longer a look takes, the less often
_FOLLOWING = {"processingTime": "50 milliseconds"}  # an idle query takes a twentieth of a core
_COMMIT_S = 0.01  # interval between checks whether a micro-batch is committed
_PLAN_S_MAX = 1.0  # time within which Spark plans a micro-batch for a new group, if it is going to
_FILES_MAX = 10_000


class FileDrive:
    """Driver that shows a query one group of files after the other.

    Parameters
    ----------
    stream : StreamDeclaration
    source : Files
        Source of the stream.
    input : Path
        A folder, or a single file.
    checkpoint : Path
    follow : bool
        Wait for new files.
    beginning : Beginning
        Start of the query.
    spark : Mapping[str, str]
        See `session`.
    stopping : threading.Event
        When set: end after the present group of files.

    Raises
    ------
    ConfigurationError
        If the input does not exist, or no file in it matches and new files are not awaited.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        source: Files,
        input: Path,
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
        self._files = FileQueue(source, input, checkpoint, beginning.files)
        self._size = BatchSize(source.per_batch, stream.latency_max_s, most=_FILES_MAX)
        self._idle = Idle(idle_waits_s(stream.silent_after_us))
        self._follow = follow
        self._spark = spark
        self._stop = stopping
        if not follow and not self._files.list_all():
            raise ConfigurationError(f"no file in {input} matches {source.glob or '*'!r}")

    def begin(self) -> bool:
        """Return whether there is work to do. REQUIRES: no query of this checkpoint runs."""
        self._files.open()
        return self._follow or self._files.is_pending() or bool(self._files.list_new())

    def produce(self, run: Run) -> None:
        """Run the query until all files have been processed, or it is stopped."""
        if not self._await_first_group():
            return
        run.source_at = self._files.position
        with session(self._spark) as spark:
            from spark_bridge._projection import events
            from spark_bridge._reading import FILE_ORDER, read_files

            is_ordered = self._source.per_batch > 1 or self._stream.latency_max is not None
            df, corrupt = read_files(
                spark, self._stream, self._source, self._files, is_ordered=is_ordered
            )
            order = FILE_ORDER if is_ordered else ()
            columns = events(df, self._stream, order=order, corrupt=corrupt)
            trigger = _FOLLOWING if self._follow else {"processingTime": "0 seconds"}
            try:
                with run.query(columns, trigger=trigger, order=order) as query:
                    self._drive(query)
            except FeedFailed as error:
                raise FeedFailed(self._files.with_real_names(str(error))) from error.__cause__

    def _await_first_group(self) -> bool:
        """Have a group pending, from an earlier run or new; return False if stopped before."""
        while not self._files.is_pending():
            for group in self._files.groups(self._files.list_new(), self._size):
                self._files.show(group)
                break
            else:
                if self._stop.wait(_FOLLOW_S):
                    return False
        return True

    def _drive(self, query: StreamingQuery) -> None:
        self._idle.note_rows()
        self._settle(query)  # the duration of the first batch is mostly Spark's start
        while not self._stop.is_set():
            looked_s = time.monotonic()
            new = self._files.list_new()
            looking_s = time.monotonic() - looked_s
            for group in self._files.groups(new, self._size):
                began_s = time.monotonic()
                self._process(query, group)
                self._size.note(len(group), time.monotonic() - began_s)
                self._idle.note_rows()
                if self._stop.is_set():
                    return
            if not self._follow:
                return
            if new:
                continue
            if self._idle.is_due():
                self._process(query, [])
            self._stop.wait(max(_FOLLOW_S, looking_s * _FOLLOW_SHARE))

    def _process(self, query: StreamingQuery, group: list[Path]) -> None:
        """Show a group of files, or one without rows, and wait until it is processed."""
        batch_id = next_batch_id(self._checkpoint)
        if group:
            self._files.show(group)
        else:
            self._files.show_nothing()
        if self._is_committed(query, batch_id):
            self._files.settle()
        else:
            self._settle(query)

    def _is_committed(self, query: StreamingQuery, batch_id: int) -> bool:
        """Wait until a micro-batch is committed; return False if it lacks a part of the group.

        A group appears as a whole, so normally there is only one micro-batch to wait for.
        """
        planned_by_s = time.monotonic() + _PLAN_S_MAX
        while not query.awaitTermination(_COMMIT_S):  # type: ignore[arg-type]  # takes fractions
            if is_committed(self._checkpoint, batch_id):
                return self._files.names() <= names_of_files(self._checkpoint, batch_id)
            if time.monotonic() > planned_by_s and not is_planned(self._checkpoint, batch_id):
                return False
        return False

    def _settle(self, query: StreamingQuery) -> None:
        """Wait until Spark has read everything that is shown, and settle the group."""
        # The first call may be answered by a listing of the folder from before the group was in it;
        # listings happen one after the other, so the second call is answered by a later one.
        query.processAllAvailable()
        query.processAllAvailable()
        if not query.isActive:
            raise FeedFailed(f"stream {self._stream.name!r}: the query was stopped from outside")
        self._files.settle()
