"""Data source ``activedb_socket``: lines of a TCP server.

After a restart Spark's own socket source silently loses as many lines as it had read before, and it
mixes the order of lines. This one numbers the lines of each run::

    {"run": "5f0c…", "line": 120, "end": false}

A range that another run has read cannot be read again: it is empty then, and the following lines
are complete.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from spark_bridge._batch_size import idle_of, read_limit

NAME = "activedb_socket"
_BATCH_LINES = 10_000
_BATCHES_AHEAD = 4  # batches of lines that wait here; beyond that the server waits
_RECONNECT_S = 1.0
pa: Any = pyarrow
_SCHEMA = pa.schema([("value", pa.string()), ("timestamp", pa.timestamp("us", tz="UTC"))])


class SocketSource(DataSource):
    """Lines of a TCP server: ``value``, and ``timestamp``, the time of reading.

    Options
    -------
    host, port : the server.
    reconnect : ``true``: when the server closes or refuses the connection, try again each
        second; else the end of the connection is the end of the stream.
    maxRowsPerBatch : 10000 by default.
    idle : see the replay source.
    limitFile : a file with a number that overrides ``maxRowsPerBatch``, read before each batch.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name under which the source is registered."""
        return NAME

    def schema(self) -> str:
        """Return the columns."""
        return "value STRING, timestamp TIMESTAMP"

    def streamReader(self, schema: StructType) -> SocketReader:  # noqa: N802 - Spark's name
        """Return the reader that plans and reads the batches."""
        return SocketReader(self.options)


class _SocketLines(InputPartition):
    """Some lines as an Arrow batch."""

    def __init__(self, batch: Any):
        super().__init__(None)
        self.batch = batch


class LineClient:
    """Client that reads lines from a server on a separate thread, a bounded number ahead.

    Parameters
    ----------
    host, port
        The server.
    ahead_max : int
        Upper bound on the lines that are kept; reading pauses until some have been forgotten.
    reconnect : bool
        Try again for ever.
    """

    def __init__(self, host: str, port: int, *, ahead_max: int, reconnect: bool) -> None:
        self._address = host, port
        self._ahead_max = ahead_max
        self._reconnect = reconnect
        self._changed = threading.Condition()  # guards all below
        self._lines: deque[tuple[bytes, int]] = deque()
        self._begin = 0
        self._ended = False
        self._failure: OSError | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="activedb-socket", daemon=True).start()

    def there(self, first: int) -> tuple[int, bool]:
        """Return the number after that of the last line read, and whether none will follow.

        Raises
        ------
        ConnectionError
            If the server cannot be reached, or the connection broke, and no line from number
            `first` on has been read.
        """
        with self._changed:
            there = self._begin + len(self._lines)
            if self._failure is None:
                return there, self._ended
            if there > first:
                return there, False
            host, port = self._address
            raise ConnectionError(f"no lines from {host}:{port}: {self._failure}")

    def lines(self, first: int, last: int) -> list[tuple[bytes, int]]:
        """Return the lines of these numbers, with the microsecond of their arrival."""
        with self._changed:
            return list(islice(self._lines, first - self._begin, last - self._begin))

    def forget(self, before: int) -> None:
        """Drop lines that have been processed, and read on."""
        with self._changed:
            while self._begin < before and self._lines:
                self._lines.popleft()
                self._begin += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop reading."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            try:
                with socket.create_connection(self._address) as connection:
                    self._take_all(connection)
                failure = None
            except OSError as error:
                failure = error
            if not self._reconnect:
                with self._changed:
                    self._ended, self._failure = True, failure
                return
            if self._stopped.wait(_RECONNECT_S):
                return

    def _take_all(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as lines:
            for line in lines:
                with self._changed:
                    self._changed.wait_for(
                        lambda: len(self._lines) < self._ahead_max or self._stopped.is_set()
                    )
                    if self._stopped.is_set():
                        return
                    self._lines.append((line.rstrip(b"\r\n"), time.time_ns() // 1000))


class SocketReader(DataSourceStreamReader):
    """Planner of batches of the lines that have arrived."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._most = int(options.get("maxRowsPerBatch", str(_BATCH_LINES)))
        self._limit_file = options.get("limitFile")
        self._options = dict(options)
        self._idle = idle_of(options)
        self._is_new = True
        self._run = uuid.uuid4().hex[:16]
        self._client: LineClient | None = None  # tasks have a reader, too, which does not connect

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before the first line of any run."""
        return {"run": "", "line": 0, "end": False}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of lines."""
        return ReadMaxRows(self._most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset of the lines read by now."""
        first = self._first(start)
        there, is_ended = self._connected().there(first)
        if self._is_new and start["line"] > 0:
            self._idle.note_rows()  # rows of the run before
        self._is_new = False
        given = limit.max_rows if isinstance(limit, ReadMaxRows) else _BATCH_LINES
        last = min(there, first + read_limit(self._limit_file, given))
        is_end = is_ended and last == there
        if last > first:
            self._idle.note_rows()
        elif not is_end:
            return start | {"idle": start.get("idle", 0) + 1} if self._idle.is_due() else start
        return {"run": self._run, "line": last, "end": is_end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the lines of a range of offsets; none if an earlier run has read them."""
        if end["run"] != self._run:
            return []
        lines = self._connected().lines(self._first(start), end["line"])
        columns = {
            "value": [line.decode("utf-8", errors="replace") for line, _ in lines],
            "timestamp": [us for _, us in lines],
        }
        if not lines:
            return []
        return [_SocketLines(pa.RecordBatch.from_pydict(columns, schema=_SCHEMA))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the lines of a partition."""
        assert isinstance(partition, _SocketLines)
        yield partition.batch

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the lines before `end`, which have been processed."""
        if end["run"] == self._run:
            self._connected().forget(end["line"])

    def stop(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.stop()

    def _first(self, start: dict[str, Any]) -> int:
        return int(start["line"]) if start["run"] == self._run else 0

    def _connected(self) -> LineClient:
        if self._client is None:
            options = self._options
            self._client = LineClient(
                options.get("host", "127.0.0.1"),
                int(options["port"]),
                ahead_max=_BATCHES_AHEAD * self._most,
                reconnect=options.get("reconnect", "").lower() == "true",
            )
        return self._client
