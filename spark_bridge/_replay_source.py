"""Data source ``activedb_replay``: a recording, replayed at a chosen speed.

An offset is a number of lines, with the state needed to continue from there::

    {"recording": "9f…", "line": 5000, "reached_us": 1353585600000000, "end": false}

so a range of offsets is the same lines whenever it is read, and a replay continues after a restart
with the time that it had reached. Lines are read by the process that plans the batches, in one
pass, and travel to the tasks within their partitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_bridge._batch_size import idle_of, read_limit
from spark_bridge._recording import RecordedFiles, Replayer

NAME = "activedb_replay"
_PARTITION_LINES = 20_000
_BATCH_LINES = 10_000
pa: Any = pyarrow
_SCHEMA = pa.schema([("value", pa.string())])


class ReplaySource(DataSource):
    """Lines of a recording, in one column ``value``.

    Options
    -------
    path : a file or a folder.
    format : ``text`` (the default), ``csv`` or ``json``: how to find a line's time, and whether
        there are headers and empty lines.
    time : the column with the time; without it everything is due at once.
    unit : ``s``, ``ms``, ``us``: the times are numbers since 1970; without it, ISO 8601.
    speedUp : 1 by default.
    header, columns, sep, quote : for CSV; ``columns`` is a JSON list, if there is no header.
    glob : pattern of the files in the folder.
    maxRowsPerBatch : 10000 by default.
    idle : a JSON list of seconds, ``[0.5]`` by default: after each of these idle times, one batch
        without rows is run.
    limitFile : a file with a number that overrides ``maxRowsPerBatch``, read before each batch.
    startingOffset : an offset, as JSON, behind which a new query begins.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name under which the source is registered."""
        return NAME

    def schema(self) -> str:
        """Return the columns."""
        return "value STRING"

    def streamReader(self, schema: StructType) -> ReplayReader:  # noqa: N802 - Spark's name
        """Return the reader that plans and reads the batches."""
        return ReplayReader(self.options)


class _RecordedLines(InputPartition):
    """Some lines as an Arrow batch."""

    def __init__(self, batch: Any):
        super().__init__(None)
        self.batch = batch


class ReplayReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Planner of batches of the lines that are due.

    With the trigger ``availableNow`` all lines are due, as they exist already.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        path = options.get("path")
        if not path:
            raise ValueError("a replay needs a path: a file or a folder with the recording")
        self._recording = RecordedFiles(
            Path(path),
            options.get("format", "text"),
            glob=options.get("glob"),
            time=options.get("time"),
            unit=options.get("unit"),
            header=options.get("header", "").lower() == "true",
            columns=json.loads(options.get("columns", "[]")),
            separator=options.get("sep", ","),
            quote=options.get("quote", '"'),
        )
        speed_up = float(options.get("speedUp", "1"))
        if not speed_up > 0:
            raise ValueError(f"speedUp must be positive, not {speed_up}")
        self._most = int(options.get("maxRowsPerBatch", str(_BATCH_LINES)))
        self._limit_file = options.get("limitFile")
        self._start: dict[str, Any] | None = json.loads(options.get("startingOffset", "null"))
        self._speed_up: float | None = speed_up
        self._idle = idle_of(options)
        self._is_new = True

    # Tasks get a copy of the reader, which does not need these.

    @cached_property
    def _replayer(self) -> Replayer:
        return Replayer(self._recording, self._speed_up)

    @cached_property
    def _fingerprint(self) -> str:
        return self._recording.fingerprint()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset of the first line, or the end of an earlier query."""
        if self._start is not None:
            return self._start | {"end": False}  # the end flag does not hold for this query
        return {"recording": self._fingerprint, "line": 0, "end": False}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of lines."""
        return ReadMaxRows(self._most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Make all lines due from now on."""
        self._speed_up = None
        self.__dict__.pop("_replayer", None)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the offset of the lines due by now."""
        self._check(start)
        if start["end"]:
            return start
        if self._is_new and start["line"] > 0:
            self._idle.note_rows()  # rows of the run before
        self._is_new = False
        given = limit.max_rows if isinstance(limit, ReadMaxRows) else _BATCH_LINES
        last, reached_us, is_end = self._replayer.due(
            start["line"], start.get("reached_us"), read_limit(self._limit_file, given)
        )
        if last > start["line"]:
            self._idle.note_rows()
        elif not is_end:
            return start | {"idle": start.get("idle", 0) + 1} if self._idle.is_due() else start
        offset = {"recording": self._fingerprint, "line": last, "end": is_end}
        return offset if reached_us is None else offset | {"reached_us": reached_us}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the lines of a range of offsets."""
        self._check(start)
        self._check(end)
        lines = self._replayer.lines(start["line"], end["line"])
        if len(lines) < end["line"] - start["line"]:
            raise ValueError(f"the recording {self._recording.path} has become shorter")
        return [
            _RecordedLines(pa.RecordBatch.from_pydict({"value": part}, schema=_SCHEMA))
            for place in range(0, len(lines), _PARTITION_LINES)
            if (part := lines[place : place + _PARTITION_LINES])
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return the lines of a partition."""
        assert isinstance(partition, _RecordedLines)
        yield partition.batch

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the lines before `end`, which are not requested again while this query runs."""
        self._replayer.forget(end["line"])

    def _check(self, offset: dict[str, Any]) -> None:
        if offset["recording"] != self._fingerprint:
            raise ValueError(
                f"the recording {self._recording.path} has changed since its replay began (names "
                "and sizes of its files are not the same): restore it, or start again with another "
                "checkpoint"
            )
