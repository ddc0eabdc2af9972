"""Declaration of a stream: its source, and how a row of the source becomes an event.

A declaration is a value. It is checked on construction, does not depend on Spark and opens no
resources. Its SQL expressions are interpreted by the feed of the stream.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Required, TypeAlias, TypedDict

from activedb.clock import timedelta_us
from activedb.errors import DefinitionError
from activedb.functions import checked_function

if TYPE_CHECKING:
    from activedb.errors import ProducerSilent

__all__ = [
    "Files",
    "Kafka",
    "Rate",
    "Replay",
    "Socket",
    "Source",
    "Staged",
    "require_count",
    "require_mapping",
    "require_options",
    "require_seconds",
    "require_text",
    "required_us",
]


def require_text(what: str, value: object) -> None:
    """Check that a value is a non-blank text."""
    if not isinstance(value, str) or not value.strip():
        raise DefinitionError(f"{what} must be a text that is not empty, not {value!r}")


def require_count(what: str, value: object, least: int = 1) -> None:
    """Check that a value is an integer and at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DefinitionError(f"{what} must be a whole number, not {value!r}")
    if value < least:
        raise DefinitionError(f"{what} must be at least {least}, not {value}")


def require_seconds(what: str, value: object) -> None:
    """Check that a value is a positive number of seconds, or a positive timedelta."""
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise DefinitionError(f"{what} must be seconds or a timedelta, not {value!r}")
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if not 0 < seconds <= timedelta.max.total_seconds():
        raise DefinitionError(f"{what} must be positive and finite, not {value!r}")


def required_us(what: str, value: float | timedelta) -> int:
    """Check seconds as `require_seconds` does; return them in microseconds."""
    require_seconds(what, value)
    us = timedelta_us(value) if isinstance(value, timedelta) else round(value * 1_000_000)
    if us < 1:
        raise DefinitionError(f"{what} must be at least a microsecond, not {value!r}")
    return us


def require_mapping(what: str, value: object, example: str) -> None:
    """Check that a value is a mapping; `example` shows one."""
    if not isinstance(value, Mapping):
        raise DefinitionError(f"{what} must be a mapping such as {example}, not {value!r}")


def require_options(options: Mapping[str, str]) -> Mapping[str, str]:
    """Check that names and values are texts; return a read-only copy."""
    require_mapping("options", options, '{"header": "true"}')
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise DefinitionError(f"option {name!r} must be text, not {value!r}")
    return MappingProxyType(dict(options))


# -- sources of a stream's rows: one small declaration per kind of source --------------------------


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
                raise DefinitionError("unit is the unit of the numbers in time: give time, too")
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


# -- declaration of a stream: how a row of its source becomes an event -----------------------------


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


class StreamOptions(TypedDict, total=False):
    """Options of a stream, as `Database.stream` takes them: the fields of `StreamDeclaration`."""

    source: Source | None
    type: str
    timestamp: str
    id: str | None
    params: Mapping[str, str] | None
    types: Required[Mapping[str, Sequence[str]]]
    accuracy: str | timedelta | tuple[str, str] | None
    delay: timedelta
    latency_max: float | timedelta | None
    producer: str | None
    expected_producers: tuple[str, ...]
    membership: Literal["atomic", "weak"] | None
    silent_after: float | timedelta | None
    on_silent: Callable[[ProducerSilent], object] | None
    waiting_max: int
    columns: bool


@dataclass(frozen=True, kw_only=True)
class StreamDeclaration:
    """Event stream, with the expressions that turn an input row into an event.

    Expressions are Spark SQL over the input columns. An expression that fails on a row (an
    overflow, a text that is not a number) yields NULL for that row.

    Parameters
    ----------
    name : str
        A letter or ``_``, then letters, digits and ``_``; at most 63 characters.
    source : Files, Rate, Socket, Replay, Kafka or Staged, optional
        Source of the rows. None for a stream fed from a DataFrame or from Python.
    type : str
        Expression for the event type, ``"'TWEET'"`` or ``"upper(kind)"``; not needed for a stream
        that is only fed from Python.
    timestamp : str
        Expression of type TIMESTAMP for the event time; NULL means it cannot be parsed. Not needed
        for a stream that is only fed from Python.
    id : str, optional
        Expression for the event's id, which orders events of equal time.
    params : Mapping[str, str], optional
        Parameter name to expression. Default: every input column under its own name.
    types : Mapping[str, tuple[str, ...]]
        Declared event types and, for each, the parameters that must be present (not NULL). A row of
        any other type, or without such a parameter, goes to the dead letters.
    accuracy : timedelta, str or tuple of (str, str), optional
        Error bound of the timestamp; the event time is then an interval. A timedelta, or an
        expression of type INTERVAL DAY TO SECOND: the error before and after the timestamp. Two
        expressions of type TIMESTAMP: the earliest and the latest possible time. NULL means that
        the accuracy is unknown, and the row is not a valid event. None: timestamps are exact.
    delay : timedelta
        Maximum lag of an event behind the newest one in event time; older events are late. Spark
        counts whole milliseconds, so a finer delay is rounded up.
    latency_max : float or timedelta, optional
        Target latency of a row in seconds, from when it can be read until its batch has been
        processed. The batch size is adapted to it at run time. None: the source determines the
        size.
    producer : str, optional
        Expression for the row's producer. The punctuation is then the newest time of the producer
        that is furthest behind, less `delay`, instead of the newest time overall. A row for which
        it is NULL is an event that does not advance the punctuation.
    expected_producers : tuple of str
        Producers that the stream waits for from the beginning. Others become known with their first
        row; their rows may be late.
    membership : {"atomic", "weak"}, optional
        Events are stamped by several producers, and each is processed once it is stable, i.e. once
        no future event of any producer can precede or overlap it. Atomic: a producer must be
        registered before it may send. Weak: a producer is discovered by its first event, which may
        be too late. None: the stream has no producers, and a punctuation marks completeness.
    silent_after : float or timedelta, optional
        Maximum silence of a producer in seconds; None: unbounded. With `producer`, the punctuation
        afterwards advances without the silent producer until its next row.
    on_silent : callable, optional
        Called with the `ProducerSilent` of each silent producer, once until it is heard again;
        None: the feed raises it. Only with `membership`.
    waiting_max : int
        Maximum number of events that wait to become stable; a feed that exceeds it is refused.
    columns : bool
        Whether events stay in columns from the source to the detectors of rules, which allows
        hundreds of thousands of events per second: only events that complete a pattern become
        objects. Rules on the stream are then single events, and patterns that can be detected in
        columns (docs/rules.md).

    Raises
    ------
    DefinitionError
        If a value is invalid or names a parameter that is not declared.
    """

    name: str = field(kw_only=False)
    source: Source | None = None
    type: str = ""
    timestamp: str = ""
    id: str | None = None
    params: Mapping[str, str] | None = None
    types: Mapping[str, tuple[str, ...]]
    accuracy: str | timedelta | tuple[str, str] | None = None
    delay: timedelta = timedelta(0)
    latency_max: float | timedelta | None = None
    producer: str | None = None
    expected_producers: tuple[str, ...] = ()
    membership: Literal["atomic", "weak"] | None = None
    silent_after: float | timedelta | None = None
    on_silent: Callable[[ProducerSilent], object] | None = None
    waiting_max: int = 100_000
    columns: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise DefinitionError(
                f"{self.name!r} is not a name for a stream: use a letter or _, then letters, "
                "digits and _, at most 63 characters"
            )
        try:
            self._check_membership()
            self._check_expressions()
            self._check_types()
            if not isinstance(self.delay, timedelta):
                raise DefinitionError(f"delay must be a timedelta, not {self.delay!r}")
            if self.delay < timedelta(0):
                raise DefinitionError(f"delay must not be negative, not {self.delay}")
            self._check_accuracy()
            self._check_columns()
            if self.latency_max is not None:
                require_seconds("latency_max", self.latency_max)
        except DefinitionError as error:
            raise DefinitionError(f"stream {self.name!r}: {error}") from None
        if self.params is not None:
            object.__setattr__(self, "params", MappingProxyType(dict(self.params)))
        types = {name: tuple(required) for name, required in self.types.items()}
        object.__setattr__(self, "types", MappingProxyType(types))

    @property
    def silent_after_us(self) -> int | None:
        """`silent_after` in microseconds."""
        return None if self.silent_after is None else required_us("silent_after", self.silent_after)

    @property
    def latency_max_s(self) -> float | None:
        """`latency_max` in seconds."""
        if isinstance(self.latency_max, timedelta):
            return self.latency_max.total_seconds()
        return self.latency_max

    def require_expressions(self) -> None:
        """Check that rows can become events.

        Raises
        ------
        DefinitionError
            If ``type`` or ``timestamp`` is missing, which only events from Python do without.
        """
        for name in ("type", "timestamp"):
            if not getattr(self, name):
                raise DefinitionError(
                    f"{name} is missing, the SQL expression by which a row becomes an event, such "
                    'as type="kind", timestamp="CAST(at AS TIMESTAMP)"'
                )
            require_text(name, getattr(self, name))

    def _check_columns(self) -> None:
        if not isinstance(self.columns, bool):
            raise DefinitionError(f"columns is True or False, not {self.columns!r}")
        if not self.columns:
            return
        if self.membership is not None:
            raise DefinitionError(
                "the events of producers come one by one, not in columns: leave out columns=True"
            )
        if self.accuracy is not None:
            raise DefinitionError(
                "in columns timestamps are exact: leave out accuracy, or columns=True"
            )

    def _check_accuracy(self) -> None:
        accuracy = self.accuracy
        if accuracy is None:
            return
        if isinstance(accuracy, timedelta):
            if accuracy < timedelta(0):
                raise DefinitionError(f"accuracy must not be negative, not {accuracy}")
        elif isinstance(accuracy, tuple):
            if len(accuracy) != 2:
                raise DefinitionError(
                    "accuracy is two expressions, for the earliest and the latest moment, not "
                    f"{len(accuracy)}"
                )
            require_text("the earliest moment in accuracy", accuracy[0])
            require_text("the latest moment in accuracy", accuracy[1])
        else:
            require_text("accuracy", accuracy)

    def _check_membership(self) -> None:
        if self.membership is None:
            self._check_producers()
            return
        if self.producer is not None or self.expected_producers:
            raise DefinitionError(
                "producer and expected_producers are for rows of Spark, membership is for events "
                "from Python: leave out one of them"
            )
        if self.membership not in ("atomic", "weak"):
            raise DefinitionError(f'membership is "atomic" or "weak", not {self.membership!r}')
        if self.source is not None or self.delay or self.accuracy is not None:
            raise DefinitionError(
                "what producers send comes stamped from Python: leave out source, delay and "
                "accuracy"
            )
        if self.silent_after is not None:
            required_us("silent_after", self.silent_after)
        if self.on_silent is not None and not callable(self.on_silent):
            raise DefinitionError(f"on_silent must be a function, not {self.on_silent!r}")
        if self.on_silent is not None:
            checked_function(self.on_silent, f"on_silent= of stream {self.name}")
        require_count("waiting_max", self.waiting_max)

    def _check_producers(self) -> None:
        if self.on_silent is not None or (self.silent_after is not None and self.producer is None):
            raise DefinitionError(
                'only a stream of producers knows who is silent: give membership="atomic" '
                'or "weak", too'
            )
        if self.silent_after is not None:
            required_us("silent_after", self.silent_after)
        if self.producer is not None:
            require_text("producer", self.producer)
        elif self.expected_producers:
            raise DefinitionError(
                "producers of rows are known by an expression: give producer, too"
            )
        if not isinstance(self.expected_producers, tuple):
            raise DefinitionError(
                f"expected_producers must be a tuple of names, not {self.expected_producers!r}"
            )
        for name in self.expected_producers:
            require_text("a producer's name", name)

    def _check_expressions(self) -> None:
        if self.membership is None and (self.source or self.type or self.timestamp):
            self.require_expressions()
        if self.id is not None:
            require_text("id", self.id)
        if self.params is None:
            return
        require_mapping("params", self.params, '{"text": "upper(body)"}, of SQL expressions')
        for name, expression in self.params.items():
            require_text("a parameter's name", name)
            require_text(f"parameter {name!r}", expression)
        # SQL column names are case-insensitive.
        for folded, count in Counter(name.casefold() for name in self.params).items():
            if count > 1:
                raise DefinitionError(f"parameter {folded!r} is declared {count} times")

    def _check_types(self) -> None:
        if not self.types:
            raise DefinitionError(
                'types is empty: declare the event types, {"TWEET": ("text",)}, with the '
                "parameters that must be present"
            )
        require_mapping(
            "types", self.types, '{"TWEET": ("text",)}, of the parameters that must be present'
        )
        for name, required in self.types.items():
            require_text("an event type", name)
            if not isinstance(required, tuple):
                raise DefinitionError(
                    f"event type {name!r}: its parameters must be a tuple of names, "
                    f"not {required!r}"
                )
            for parameter in required:
                require_text(f"a parameter of event type {name!r}", parameter)
            unknown = [] if self.params is None else [p for p in required if p not in self.params]
            if unknown:
                raise DefinitionError(
                    f"event type {name!r} needs {', '.join(map(repr, unknown))}, "
                    "which params does not declare"
                )
