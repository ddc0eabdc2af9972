"""Sources of a stream's rows: one small declaration per kind of source.

A declaration is a value. It is checked on construction, does not depend on Spark and opens no
resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Literal, TypeAlias

from activedb.errors import DefinitionError
from activedb.streams._checks import require_count, require_options, require_seconds, require_text

__all__ = ["Files", "Kafka", "Rate", "Replay", "Socket", "Source", "Staged"]

FORMATS = ("csv", "json", "orc", "parquet", "text")
TEXT_FORMATS = ("csv", "json", "text")
TIME_UNITS = ("s", "ms", "us")
_PORT_MAX = 65_535


@dataclass(frozen=True)
class Files:
    """Files as the source of a stream, each read once, in the order of their names.

    Parameters
    ----------
    format : str
        ``"csv"``, ``"json"`` (one object per line), ``"orc"``, ``"parquet"`` or ``"text"``.
        Compressed files (``.gz``, ``.bz2``, ``.zst``) are recognised by their suffix.
    schema : str, optional
        Columns and their types, ``"id BIGINT, text STRING"``. By default they are inferred from the
        first files read, and fixed from then on.
    glob : str, optional
        Pattern of the files in the input folder, ``"*.csv.gz"`` or ``"**/*.json"``. Default: every
        file directly in the folder. Names that start with ``.`` or ``_`` are never read.
    options : Mapping[str, str]
        Options of Spark's reader for the format, ``{"header": "true"}``.
    per_batch : int
        Number of files per atomic batch; with the stream's `latency_max`, of the first batch.

    Raises
    ------
    DefinitionError
        If a value is invalid.
    """

    format: str
    schema: str | None = None
    glob: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    per_batch: int = 1

    def __post_init__(self) -> None:
        _require_one_of("files of format", self.format, FORMATS)
        _check_schema(self.schema)
        _check_glob(self.glob)
        require_count("per_batch", self.per_batch)
        object.__setattr__(self, "options", require_options(self.options))


@dataclass(frozen=True)
class Rate:
    """Rows that Spark generates by the clock, for experiments; columns ``timestamp``, ``value``.

    ``value`` counts from 0. Rows due while no feed was running arrive all at once in the next run.

    Parameters
    ----------
    rows_per_second : int

    Raises
    ------
    DefinitionError
        If it is not an integer, or less than 1.
    """

    rows_per_second: int = 1

    def __post_init__(self) -> None:
        require_count("rows_per_second", self.rows_per_second)


@dataclass(frozen=True)
class Socket:
    r"""Lines of text from a TCP server, in the order in which they arrive.

    A line is everything up to ``\n``, in UTF-8. A socket cannot be read again: lines that were read
    and are in no batch that has taken effect are lost with the process.

    Parameters
    ----------
    port : int
    host : str
        Name or address of the server; by default this computer.
    format : {"text", "csv", "json"}
        Format of a line. As text, the columns are ``value`` and ``timestamp``, the time at which
        the line was read.
    schema : str, optional
        For csv and json: the columns of a line, in addition to ``timestamp``.
    options : Mapping[str, str]
        Options of Spark's ``from_csv`` or ``from_json``.
    rows_per_batch : int
        Maximum number of rows per atomic batch; if the feed is slower, the server waits.

    Raises
    ------
    DefinitionError
        If a value is invalid.
    """

    port: int
    host: str = "127.0.0.1"
    format: Literal["text", "csv", "json"] = "text"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    rows_per_batch: int = 10_000

    def __post_init__(self) -> None:
        require_count("port", self.port)
        if self.port > _PORT_MAX:
            raise DefinitionError(f"port must be at most {_PORT_MAX}, not {self.port}")
        require_text("host", self.host)
        _check_text_format("lines", self.format, self.schema)
        require_count("rows_per_batch", self.rows_per_batch)
        object.__setattr__(self, "options", require_options(self.options))


@dataclass(frozen=True)
class Replay:
    """Recording of events in files of lines, replayed at the speed at which it was recorded.

    The files, in the order of their names, form one recording. It must not change once a replay has
    begun. A row is due when the time elapsed since the start of the replay (or since it was
    resumed, after a restart), multiplied by `speed_up`, reaches the difference between its time and
    that of the first row replayed. A row without a time, or with an earlier time than a row before
    it, is due with the row before it.

    Parameters
    ----------
    path : str or Path, optional
        File or folder. None: the input given to the feed of the stream.
    format : {"csv", "json", "text"}
        One row per line; ``.gz`` is recognised by its suffix.
    time : str, optional
        Column (of CSV, by name; of JSON, a field of the object) with the time that paces the
        replay. It may differ from the event time: events recorded on arrival are replayed in
        arrival order. None: as fast as possible.
    unit : {"s", "ms", "us"}, optional
        Unit of numeric times since 1970 UTC. None: the times are ISO 8601 texts, in UTC unless they
        state otherwise.
    speed_up : float
        Speed relative to the recording; 60 makes a minute a second.
    schema : str, optional
        Columns, as for `Files`. By default the columns of CSV are texts named by the first line (of
        each file, if the option ``header`` is ``"true"``), and those of JSON are inferred from the
        files.
    glob : str, optional
        As for `Files`.
    options : Mapping[str, str]
        Options of Spark's ``from_csv`` or ``from_json``, and ``header``.
    rows_per_batch : int
        Maximum number of rows per atomic batch; with the stream's `latency_max`, of the first one.

    Raises
    ------
    DefinitionError
        If a value is invalid.
    """

    path: str | Path | None = None
    format: Literal["csv", "json", "text"] = "csv"
    time: str | None = None
    unit: Literal["s", "ms", "us"] | None = None
    speed_up: float = 1.0
    schema: str | None = None
    glob: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    rows_per_batch: int = 10_000

    def __post_init__(self) -> None:
        if self.path is not None and not isinstance(self.path, Path):
            require_text("path", self.path)
        _require_one_of("a recording of format", self.format, TEXT_FORMATS)
        _check_schema(self.schema)
        _check_glob(self.glob)
        options = require_options(self.options)
        object.__setattr__(self, "options", options)
        if self.format == "csv" and self.schema is None and not self.has_header:
            raise DefinitionError(
                'a recording of format csv needs a schema, or options={"header": "true"} if the '
                "first line of each file names the columns"
            )
        if self.time is not None:
            require_text("time", self.time)
            if self.format == "text":
                raise DefinitionError("lines of text have no column for time; leave it out")
        if self.unit is not None:
            if self.time is None:
                raise DefinitionError("unit says what the numbers in time are: give time, too")
            _require_one_of("times in", self.unit, TIME_UNITS)
        require_seconds("speed_up", self.speed_up)
        require_count("rows_per_batch", self.rows_per_batch)

    @property
    def has_header(self) -> bool:
        """True if the first line of each file names the columns."""
        options = {name.lower(): value.lower() for name, value in self.options.items()}
        return self.format == "csv" and options.get("header") == "true"


@dataclass(frozen=True)
class Kafka:
    """Kafka topics; requires Spark's connector, see docs/sources.md.

    The columns are ``key`` and ``value`` (STRING), ``topic``, ``partition``, ``offset`` and
    ``timestamp``. Only events of one partition have a defined order.

    Parameters
    ----------
    servers : str
        ``"host:port"`` of one or more brokers, separated by commas.
    topic : str
        One topic, or several separated by commas.
    start : {"earliest", "latest"}
        Start of the first run; a later run resumes where the previous one ended.
    format : {"text", "csv", "json"}
        Format of a value.
    schema : str, optional
        For csv and json: the columns of a value, which replace ``value``.
    options : Mapping[str, str]
        Options of Spark's Kafka source, ``{"kafka.security.protocol": "SSL"}``; and of ``from_csv``
        or ``from_json``.
    rows_per_batch : int
        Maximum number of rows per atomic batch; with the stream's `latency_max`, of the first one.
    connector : str, optional
        Maven coordinates of Spark's connector (``spark.jars.packages``), fetched when Spark starts.
        None: Spark has it already.

    Raises
    ------
    DefinitionError
        If a value is invalid.
    """

    servers: str
    topic: str
    start: Literal["earliest", "latest"] = "earliest"
    format: Literal["text", "csv", "json"] = "text"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    rows_per_batch: int = 10_000
    connector: str | None = None

    def __post_init__(self) -> None:
        require_text("servers", self.servers)
        require_text("topic", self.topic)
        _require_one_of("topics from", self.start, ("earliest", "latest"))
        _check_text_format("values", self.format, self.schema)
        if self.connector is not None:
            _check_connector(self.connector)
        require_count("rows_per_batch", self.rows_per_batch)
        object.__setattr__(self, "options", require_options(self.options))


@dataclass(frozen=True)
class Staged:
    """Batches that a Spark query, on any host, publishes for the stream in this database.

    The query is ``spark_bridge.events(df, stream).writeStream.format("activedb")``; see
    docs/sink.md. The process that takes the batches needs no Spark.
    """


Source: TypeAlias = Files | Rate | Socket | Replay | Kafka | Staged


def _require_one_of(what: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise DefinitionError(f"{what} {value!r} cannot be read; give {', '.join(known)}")


def _check_text_format(what: str, format: str, schema: str | None) -> None:
    _require_one_of(f"{what} of format", format, TEXT_FORMATS)
    _check_schema(schema)
    if (schema is None) is not (format == "text"):
        raise DefinitionError(
            f"{what} of format {format!r} need a schema, as nothing is known of them beforehand"
            if schema is None
            else f'{what} of format "text" are one column: leave out schema, or give csv or json'
        )


def _check_connector(coordinates: object) -> None:
    require_text("connector", coordinates)
    assert isinstance(coordinates, str)
    if any(len(one.split(":")) != 3 or not all(one.split(":")) for one in coordinates.split(",")):
        raise DefinitionError(
            f"connector must be Maven coordinates, group:artifact:version, not {coordinates!r}"
        )


def _check_schema(schema: str | None) -> None:
    if schema is not None:
        require_text("schema", schema)


def _check_glob(glob: str | None) -> None:
    if glob is None:
        return
    require_text("glob", glob)
    if PurePath(glob).is_absolute() or ".." in PurePath(glob).parts:
        raise DefinitionError(f"glob {glob!r} leaves the input folder")
