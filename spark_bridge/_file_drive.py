"""Drives a query over files, group by group."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from activedb.errors import ConfigurationError, FeedFailed
from activedb.streams import Files
from spark_bridge._batch_size import BatchSize
from spark_bridge._file_queue import FileQueue
from spark_bridge._idle import Idle, idle_waits_s
from spark_bridge._session import session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from activedb.streams import Stream
    from spark_bridge._run import Run

_FOLLOW_S = 0.5  # how often to look for new files
_FOLLOWING = {"processingTime": "200 milliseconds"}  # an idle query takes next to no CPU time
_FILES_MAX = 10_000


class FileDrive:
    """Shows a query one group of files after the other.

    Parameters
    ----------
    stream : Stream
    source : Files
        The stream's.
    input : Path
        A folder, or a single file.
    checkpoint : Path
    follow : bool
        Wait for new files.
    future_max_s : float
        See `project`.
    stopping : threading.Event
        Set: end after the files at hand.

    Raises
    ------
    ConfigurationError
        If the input does not exist, or no file in it matches and none is waited for.
    """

    def __init__(
        self,
        stream: Stream,
        source: Files,
        input: Path,
        checkpoint: Path,
        *,
        follow: bool,
        future_max_s: float,
        stopping: threading.Event,
    ) -> None:
        self._stream = stream
        self._source = source
        self._files = FileQueue(source, input, checkpoint)
        self._size = BatchSize(source.per_batch, stream.latency_max_s, most=_FILES_MAX)
        self._idle = Idle(idle_waits_s(stream.silent_after_us))
        self._follow = follow
        self._future_max_s = future_max_s
        self._stop = stopping
        if not follow and not self._files.list_all():
            raise ConfigurationError(f"no file in {input} matches {source.glob or '*'!r}")

    def begin(self) -> bool:
        """Whether there is anything to do. REQUIRES: no query of this checkpoint is running."""
        self._files.open()
        return self._follow or self._files.is_pending() or bool(self._files.list_new())

    def produce(self, run: Run) -> None:
        """Run the query until all files have been processed, or it is stopped."""
        if not self._await_first_group():
            return
        with session() as spark:
            from spark_bridge._projection import project
            from spark_bridge._reading import FILE_ORDER, read_files

            is_ordered = self._source.per_batch > 1 or self._stream.latency_max is not None
            df, corrupt = read_files(
                spark, self._stream, self._source, self._files, is_ordered=is_ordered
            )
            order = FILE_ORDER if is_ordered else ()
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
            for group in self._files.groups(self._files.list_new(), self._size):
                self._files.show(group)
                break
            else:
                if self._stop.wait(_FOLLOW_S):
                    return False
        return True

    def _drive(self, query: StreamingQuery) -> None:
        self._idle.note_rows()
        self._settle(query)  # how long the first takes says more of Spark's start than of the batch
        while not self._stop.is_set():
            for group in self._files.groups(self._files.list_new(), self._size):
                began_s = time.monotonic()
                self._files.show(group)
                self._settle(query)
                self._size.note(len(group), time.monotonic() - began_s)
                self._idle.note_rows()
                if self._stop.is_set():
                    return
            if not self._follow:
                return
            if self._idle.is_due():
                self._files.show_nothing()
                self._settle(query)
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
