"""Data source ``activedb`` as a sink: a streaming DataFrame into a stream, or into a table.

```
   the user's process      Spark (JVM), driver              executors, and their Python processes
   df.writeStream ───────► micro-batch N ─────────────────► write: stages a partition by COPY
   .format("activedb")     its Python process: commit ◄──── what has been staged, few bytes
                                │ one short transaction, once per (query id, N)
                                ▼
                           activedb_staged_batches, or the table
```

Executors need this package, its libraries, and network access to the database. `activedb.store`
documents what is staged and when it takes effect; it is imported only where rows are written.
"""

from __future__ import annotations

import json
import math
import os
import uuid
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_bridge._worker_memory import keep_what_is_loaded

if TYPE_CHECKING:
    from activedb.store.journals import Sink, Staging


pa: Any = pyarrow

_PIECE_BYTES_MAX = 4 << 20  # of the rows in Arrow's memory; a statement's value may have 1 GB
_MICROSECOND = timedelta(microseconds=1)


def arrow_pieces(batch: Any) -> Iterator[bytes]:
    """Yield the rows as Arrow IPC streams, including their types."""
    for part in _parts(batch):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as stream:
            stream.write_batch(part)
        yield sink.getvalue().to_pybytes()


def json_pieces(batch: Any) -> Iterator[bytes]:
    """Yield the rows as JSON arrays of objects; Postgres reads all of its types from JSON.

    Non-finite numbers, decimals, times and bytes become texts, without loss.
    """
    for part in _parts(batch):
        columns = [_plain(column) for column in part.columns]
        names = part.schema.names
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        text = json.dumps(rows, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        yield text.encode("utf-8", "surrogatepass")


def _parts(batch: Any) -> Iterator[Any]:
    if batch.num_rows == 0:
        return
    parts = math.ceil(batch.nbytes / _PIECE_BYTES_MAX)
    size = math.ceil(batch.num_rows / max(1, parts))
    for place in range(0, batch.num_rows, size):
        yield batch.slice(place, size)


def _plain(column: Any) -> list[Any]:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind):
        values: list[Any] = column.to_pylist()
        return values
    return [_value(value) for value in column.to_pylist(maps_as_pydicts="strict")]


def _key(key: Any) -> str:
    """Return the key of a map as text, in the form that a value has."""
    return str(key).lower() if isinstance(key, bool) else str(_value(key))


def _value(value: Any) -> Any:
    """Return a value as JSON represents it and Postgres accepts it for a column of its type."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {_key(key): _value(part) for key, part in value.items()}
        case list():
            return [_value(part) for part in value]
        case bytes():
            return rf"\x{value.hex()}"
        case date() | datetime() | time():
            return value.isoformat()
        case timedelta():
            return f"{value // _MICROSECOND} microseconds"
        case Decimal():
            return str(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot be written to a table: cast it")


NAME = "activedb"
_QUERY, _BATCH = (
    "sql.streaming.queryId",
    "streaming.sql.batchId",
)  # properties of a Spark task
_EVENT = {
    "event_type": "string",
    "event_time_us": "bigint",
    "event_id": "string",
    "raw": "string",
}
_INTERVAL = {"event_low_us": "bigint", "event_high_us": "bigint"}
_PRODUCER = {"event_producer": "string"}
_PARAMETER = "p_"  # as in `activedb.streams`, which must not be imported here


class ActiveDBSink(DataSource):
    """Sink that writes each micro-batch once, completely or not at all.

    Options
    -------
    stream : the name of a stream: each micro-batch becomes an atomic batch of it, which a process
        with the rules takes (``stream.take_staged``). The columns are those of
        ``spark_bridge.events``.
    table : or the name of a table: rows are inserted, by the names of its columns.
    url : of the database, ``ACTIVEDB_URL`` of the driver by default.
    db_schema : the schema, ``ACTIVEDB_DB_SCHEMA`` by default, else the search path's.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name under which the sink is registered."""
        return NAME

    def streamWriter(self, schema: StructType, overwrite: bool) -> SinkWriter:  # noqa: N802 - Spark's name
        """Return the writer that stages and publishes; it is sent to the executors.

        Raises
        ------
        ConfigurationError
            If an option is missing.
        DefinitionError
            If the columns do not fit, or the output mode is not ``append``.
        """
        if overwrite:
            raise _misfit("activedb only appends rows: use outputMode append")
        target = _target(self.options)
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        names = [name for name, _ in columns]
        if len(set(names)) < len(names):
            raise _misfit(f"columns have the same name: {', '.join(sorted(names))}; rename them")
        if target.kind == "stream":
            _check_events(target.name, columns)
        return SinkWriter(target, names, *_place(self.options))


@dataclass(frozen=True, slots=True)
class _Target:
    kind: Literal["stream", "table"]
    name: str


@dataclass(frozen=True)
class StagedPartition(WriterCommitMessage):
    """Result of one attempt of a task; Spark passes it on if that attempt counts."""

    query_id: str
    writer: str
    pieces: int
    rows: int


class SinkWriter(DataSourceStreamArrowWriter):
    """Writer that stages partitions on executors, and publishes batches on the driver.

    Parameters
    ----------
    target : _Target
    columns : sequence of str
        Names of the DataFrame's columns.
    url : str
        Secret: it travels to the executors within this object, and is not logged or shown.
    schema : str or None
    """

    def __init__(self, target: _Target, columns: Sequence[str], url: str, schema: str | None):
        self._target = target
        self._columns = columns
        self._url = url
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> StagedPartition:
        """Stage the rows of a partition, in a separate transaction."""
        task = TaskContext.get()
        query_id = None if task is None else task.getLocalProperty(_QUERY)
        batch_id = None if task is None else task.getLocalProperty(_BATCH)
        if query_id is None or batch_id is None:
            raise RuntimeError("Spark does not say to which query and micro-batch this belongs")
        writer, rows = uuid.uuid4().hex, 0
        pieces_of = arrow_pieces if self._target.kind == "stream" else json_pieces

        def pieces() -> Iterator[bytes]:
            nonlocal rows
            for batch in iterator:
                rows += batch.num_rows
                yield from pieces_of(batch)

        count = self._staging().stage(query_id, int(batch_id), writer, pieces())
        return StagedPartition(query_id, writer, count, rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish a micro-batch; does nothing if it was published before."""
        from activedb.store.journals import StagedAttempt

        found = _staged(messages)
        attempts = [StagedAttempt(each.writer, each.pieces, each.rows) for each in found]
        sink, staging = self._sink(found[0].query_id), self._staging()
        if self._target.kind == "stream":
            staging.publish_to_stream(sink, batchId, attempts)
        else:
            staging.publish_to_table(sink, batchId, attempts, self._columns)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Delete the staged rows; any that are missed are deleted when the batch is published."""
        found = _staged(messages)
        if found:
            writers = [each.writer for each in found]
            self._staging().discard(found[0].query_id, batchId, writers)

    def _staging(self) -> Staging:
        from activedb.store.journals import staging

        keep_what_is_loaded()
        return staging(self._url, self._schema)

    def _sink(self, query_id: str) -> Sink:
        from activedb.store.journals import Sink

        return Sink(self._target.kind, self._target.name, query_id)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedPartition]:
    """Return the messages of the tasks that have ended; for a committed batch, of all tasks."""
    return [message for message in messages if isinstance(message, StagedPartition)]


def _target(options: MutableMapping[str, str]) -> _Target:
    stream, table = options.get("stream"), options.get("table")
    if stream and not table:
        return _Target("stream", stream)
    if table and not stream:
        return _Target("table", table)
    raise _misconfigured('give one of the options stream and table: option("stream", "clicks")')


def _place(options: MutableMapping[str, str]) -> tuple[str, str | None]:
    url = options.get("url") or os.environ.get("ACTIVEDB_URL")
    if not url:
        raise _misconfigured(
            "the option url is missing: give postgresql+psycopg://user:password@host:5432/database,"
            " or set ACTIVEDB_URL where Spark's driver runs"
        )
    return url, options.get("db_schema") or os.environ.get("ACTIVEDB_DB_SCHEMA") or None


def _check_events(stream: str, columns: Sequence[tuple[str, str]]) -> None:
    given = {name: kind for name, kind in columns if not name.startswith(_PARAMETER)}
    known = _EVENT | _INTERVAL | _PRODUCER
    expected = _EVENT | {name: known[name] for name in given if name in known}
    if given.keys() & _INTERVAL.keys():
        expected |= _INTERVAL
    if given != expected:
        raise _misfit(
            f"stream {stream!r} takes the columns {_shown(expected)}, and p_… for parameters, not "
            f"{_shown(dict(columns))}: make them with spark_bridge.events(df, stream)"
        )


def _shown(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind.upper()}" for name, kind in columns.items())


def _misfit(problem: str) -> Exception:
    from activedb.errors import DefinitionError

    return DefinitionError(problem)


def _misconfigured(problem: str) -> Exception:
    from activedb.errors import ConfigurationError

    return ConfigurationError(problem)
