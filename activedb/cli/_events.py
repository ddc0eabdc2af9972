"""Rows of event files, and their conversion to events: columns of type and time, time formats."""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib
import io
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, tzinfo
from pathlib import Path
from typing import IO, Any, TypeAlias
from zoneinfo import ZoneInfo

from activedb.clock import moment_of
from activedb.errors import BadEvent, ConfigurationError, DefinitionError, FeedFailed
from activedb.events import Occurrence
from activedb.spelling import clipped, did_you_mean

__all__ = [
    "FORMATS",
    "NUMBER",
    "UNITS",
    "WHOLE",
    "Clock",
    "ColumnOptions",
    "EventConverter",
    "EventFile",
    "Row",
    "RowRefusal",
    "clock_of",
    "iso_clock",
    "zone_of",
]


FORMATS = ("csv", "json", "parquet")
_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
_FIELD_MAX = 1 << 27  # characters; csv's own bound is far below the size of JSON in a column
_ROWS_AT_ONCE = 10_000
_STDIN = Path("-")

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RowRefusal:
    """Reason why a row is not an event.

    Attributes
    ----------
    reason : str
        The same for all rows with the same fault.
    detail : str
        Detail about this row; may be empty.
    """

    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class EventFile:
    """A file whose rows are events.

    Attributes
    ----------
    path : Path
        ``-`` for standard input, which can be read only once.
    format : {"csv", "json", "parquet"}
    header : tuple of str
        Names of a CSV file's columns; empty: they are in its first line.
    delimiter, encoding : str
    """

    path: Path
    format: str
    header: tuple[str, ...] = ()
    delimiter: str = ","
    encoding: str = "utf-8"

    @classmethod
    def of(
        cls,
        path: Path,
        *,
        format: str | None = None,
        header: Sequence[str] = (),
        delimiter: str | None = None,
        encoding: str = "utf-8",
    ) -> EventFile:
        """Return the file; missing options are inferred from its name or first bytes.

        Raises
        ------
        ConfigurationError
            If there is no such file, or an option is meaningless.
        """
        suffix = next((s.lower() for s in reversed(path.suffixes) if s.lower() != ".gz"), "")
        if format is None:
            format = _SUFFIXES.get(suffix) or _begins_as(path)
        if format not in FORMATS:
            raise ConfigurationError(
                f"there is no format {format!r}: write --format {' or '.join(FORMATS)}"
            )
        if delimiter is None:
            delimiter = "\t" if suffix == ".tsv" else ","
        if len(delimiter) != 1 or delimiter in '\r\n"':
            raise ConfigurationError(f"a delimiter is one character, not {delimiter!r}")
        try:
            "".encode(encoding)  # refuses codecs of bytes
            # "idna", say, cannot keep what it does not decode.
            codecs.getincrementaldecoder(encoding)("surrogateescape").decode(b"a")
        except (LookupError, UnicodeError):
            raise ConfigurationError(
                f"there is no encoding {encoding!r}: write one such as utf-8 or latin-1"
            ) from None
        if len(set(header)) < len(header):
            raise ConfigurationError(f"two columns have one name in --columns {','.join(header)}")
        found = cls(path, format, tuple(header), delimiter, encoding)
        if found.is_rereadable:
            _opened(path).close()
        return found

    @property
    def title(self) -> str:
        """Name of the file for messages."""
        return "standard input" if self.path == _STDIN else str(self.path)

    @property
    def is_rereadable(self) -> bool:
        """True if it can be read again from its beginning."""
        return self.path != _STDIN and self.path.is_file()

    def rows(self) -> Iterator[tuple[int, Row | RowRefusal]]:
        """Yield the rows with their numbers: in a text file the last line of the row, from 1.

        Raises
        ------
        ConfigurationError
            If it cannot be opened, is not in its format, or has an invalid header.
        FeedFailed
            If reading stops half-way.
        """
        try:
            with _opened(self.path) as raw:
                if self.format == "parquet":
                    yield from _parquet(raw)
                    return
                # Undecodable bytes are kept, so that they cost one row and not the file.
                with io.TextIOWrapper(
                    raw, encoding=_without_bom(self.encoding), errors="surrogateescape", newline=""
                ) as text:
                    yield from self._csv(text) if self.format == "csv" else self._json(text)
        except (OSError, EOFError, zlib.error) as error:
            raise FeedFailed(f"{self.title} cannot be read to its end: {error}") from error
        except UnicodeError as error:  # a byte too few or too many, and all behind it is lost
            raise FeedFailed(
                f"{self.title} cannot be read to its end as {self.encoding}: {error}; "
                "check --encoding"
            ) from error

    def _csv(self, text: IO[str]) -> Iterator[tuple[int, Row | RowRefusal]]:
        csv.field_size_limit(_FIELD_MAX)
        reader = csv.reader(text, delimiter=self.delimiter, strict=True, skipinitialspace=True)
        header = self.header
        while True:
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if not header:
                    raise ConfigurationError(
                        f"{self.title}: the header is not CSV ({error}); check --format"
                    ) from error
                yield reader.line_num, RowRefusal("it is not valid CSV", str(error))
                continue
            if not fields:
                continue
            if not header:
                header = tuple(name.strip() for name in fields)
                _check_header(self.title, header)
                continue
            if len(fields) != len(header):
                detail = f"{len(fields)} fields for {len(header)} columns"
                yield reader.line_num, RowRefusal("it has too few or too many fields", detail)
            elif not _is_text("".join(fields)):
                yield reader.line_num, RowRefusal(f"it is not {self.encoding}")
            else:
                yield reader.line_num, dict(zip(header, fields, strict=True))

    def _json(self, text: IO[str]) -> Iterator[tuple[int, Row | RowRefusal]]:
        is_first = True
        for number, line in enumerate(text, 1):
            stripped = line.strip()
            if not stripped:
                continue
            if is_first and stripped.startswith("["):
                yield from _json_array(line + text.read())
                return
            is_first = False
            if not _is_text(stripped):
                yield number, RowRefusal(f"it is not {self.encoding}")
                continue
            try:
                row = json.loads(stripped, parse_float=_number)
            except (ValueError, RecursionError) as error:
                yield number, RowRefusal("it is not valid JSON", str(error))
                continue
            yield number, _object(row)


def _json_array(text: str) -> Iterator[tuple[int, Row | RowRefusal]]:
    try:
        rows = json.loads(text, parse_float=_number)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"the input begins as a JSON array, but is not one ({error}); write one object a line"
        ) from error
    for number, row in enumerate(rows, 1):
        yield number, _object(row)


def _object(row: Any) -> Row | RowRefusal:
    if isinstance(row, dict):
        return row
    return RowRefusal("it is not a JSON object", f"it is {json.dumps(row)[:60]}")


def _parquet(raw: Any) -> Iterator[tuple[int, Row | RowRefusal]]:
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigurationError(
            "Parquet needs pyarrow: pip install pyarrow, or give CSV or JSON lines"
        ) from error
    source = raw if raw.seekable() else io.BytesIO(raw.read())
    number = 0
    try:
        for batch in parquet.ParquetFile(source).iter_batches(_ROWS_AT_ONCE):
            for row in _in_microseconds(pyarrow, batch).to_pylist():
                number += 1
                yield number, row
    except pyarrow.ArrowException as error:
        if number:
            raise FeedFailed(f"the Parquet file cannot be read to its end: {error}") from error
        raise ConfigurationError(f"this is not a Parquet file ({error}); check --format") from error


def _in_microseconds(pyarrow: Any, batch: Any) -> Any:
    """Return a batch whose timestamps have microseconds, as those of Python; finer ones are cut."""
    types = pyarrow.types
    for place, each in enumerate(batch.schema):
        if types.is_timestamp(each.type) and each.type.unit == "ns":
            kind = pyarrow.timestamp("us", each.type.tz)
            column = batch.column(place).cast(kind, safe=False)
            batch = batch.set_column(place, each.name, column)
    return batch


def _opened(path: Path) -> Any:
    """Return the bytes of a file, decompressed: a binary file object."""
    if path == _STDIN:
        # A copy, so that closing it leaves standard input open.
        source = io.BufferedReader(io.FileIO(sys.stdin.fileno(), closefd=False))
        zipped = source.peek(2)[:2] == _GZIP
        return gzip.GzipFile(fileobj=source) if zipped else source
    try:
        file = path.open("rb")
    except IsADirectoryError:
        raise ConfigurationError(f"the input {path} is a folder; give a file") from None
    except OSError as error:
        raise ConfigurationError(
            f"the input {path} cannot be read ({error.strerror}); check --input"
        ) from error
    if file.peek(2)[:2] != _GZIP:
        return file
    if not path.is_file():  # a pipe
        return gzip.GzipFile(fileobj=file)
    file.close()
    return gzip.open(path)  # closes the file that it has opened itself


def _begins_as(path: Path) -> str:
    if path == _STDIN or path.is_fifo():  # the bytes that were examined could not be read again
        raise ConfigurationError(
            f"{'standard input' if path == _STDIN else path} has no name to tell its format: write "
            f"--format {' or '.join(FORMATS)}"
        )
    with _opened(path) as raw:
        try:
            start = raw.read(64).lstrip()
        except (OSError, EOFError, zlib.error):
            start = b""
    if start.startswith(_PARQUET):
        return "parquet"
    return "json" if start[:1] in (b"{", b"[") else "csv"


def _check_header(title: str, header: tuple[str, ...]) -> None:
    if not _is_text("".join(header)):
        raise ConfigurationError(f"{title}: the header is not text; check --format and --encoding")
    for name in header:
        if header.count(name) > 1:
            raise ConfigurationError(
                f"{title}: two columns are called {name!r}; a file without a header needs "
                "--columns with the names of its columns"
            )


def _without_bom(encoding: str) -> str:
    return "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding


def _is_text(text: str) -> bool:
    """Return whether a text has no bytes that the encoding cannot decode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:  # surrogates stand for these bytes
        return False
    return True


# -- formats of times in a file of events ----------------------------------------------------------


UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
WHOLE = re.compile(r"-?\d+")

Moment: TypeAlias = int | float | datetime
Clock: TypeAlias = Callable[[Any], Moment]
"""Converts a value of the time column to a time; raises ValueError or TypeError if it is none."""

_DATES_FROM_S = 10**8  # smaller times are counted from some other beginning, not from 1970


def zone_of(name: str) -> tzinfo:
    """Return the time zone of this name.

    Raises
    ------
    ConfigurationError
        If there is no such time zone.
    """
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"there is no time zone {name!r}; write a name such as Europe/Berlin"
        ) from error


def clock_of(
    first: Any, *, form: str | None, unit: str | None, zone: tzinfo, is_text: bool
) -> tuple[Clock, str]:
    """Return a reader of times, with the name of their format.

    Parameters
    ----------
    first : object
        The first time, from which the format is inferred if it is not given.
    form, unit : str or None
        Format for `datetime.strptime`; unit of numbers, one of `UNITS`.
    zone : tzinfo
        Time zone of times without one.
    is_text : bool
        Whether numbers come as texts.

    Raises
    ------
    ConfigurationError
        If there is no such unit, or both are given.
    """
    where = f" in {zone}" if zone is not UTC else ", UTC if they have no zone"
    if form is not None and unit is not None:
        raise ConfigurationError("--time-format is for texts and --unit for numbers: give one")
    if form is not None:
        return _formatted(form, zone), f"written {form}{where}"
    if isinstance(first, datetime | date):
        return _of_date(zone), f"dates{where}"
    is_number = isinstance(first, int | float) and not isinstance(first, bool)
    if is_text and isinstance(first, str):
        is_number = NUMBER.fullmatch(first.strip()) is not None
    if unit is not None or is_number:
        unit = unit or _unit(float(first))
        if unit not in UNITS:
            raise ConfigurationError(f"there is no unit {unit!r}: write one of {', '.join(UNITS)}")
        named = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
        return _numbered(UNITS[unit]), f"{named[unit]} since 1970"
    return iso_clock(zone), f"ISO 8601{where}"


def _unit(first: float) -> str:
    """Return the unit of a number of this size, if it is a time in this century."""
    size = abs(first)
    return "s" if size < 1e11 else "ms" if size < 1e14 else "us" if size < 1e17 else "ns"


def _formatted(form: str, zone: tzinfo) -> Clock:
    def read(value: Any) -> datetime:
        return _aware(datetime.strptime(str(value).strip(), form), zone)

    return read


def iso_clock(zone: tzinfo) -> Clock:
    """Return a reader of ISO 8601; times without a zone are in the given one."""

    def read(value: Any) -> datetime:
        if not isinstance(value, str):
            raise TypeError(value)
        return _aware(datetime.fromisoformat(value.strip()), zone)

    return read


def _of_date(zone: tzinfo) -> Clock:
    def read(value: Any) -> datetime:
        if hasattr(value, "to_pydatetime"):  # the pandas type, with nanoseconds
            value = value.to_pydatetime(warn=False)
        if isinstance(value, datetime):
            return _aware(value, zone)
        if isinstance(value, date):
            return _aware(datetime(value.year, value.month, value.day), zone)
        raise TypeError(value)

    return read


def _numbered(per_second: int) -> Clock:
    def read(value: Any) -> Moment:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError(value)
        number: int | float
        if isinstance(value, str):
            number = int(value) if WHOLE.fullmatch(value.strip()) else float(value)
        else:
            number = value
        if per_second == 1 and abs(number) < _DATES_FROM_S:
            return number
        if isinstance(number, int):
            return moment_of(number * 1_000_000 // per_second)
        return moment_of(round(number / per_second * 1_000_000))

    return read


def _aware(moment: datetime, zone: tzinfo) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


# -- conversion of rows to events: the columns of type and time, and the format of the time --------


_TYPES = ("type", "event_type", "eventtype", "event", "event_name", "kind", "activity")
_TIMES = ("timestamp", "event_time", "eventtime", "time", "ts", "datetime", "date_time", "date")
_IDS = ("id", "event_id", "eventid", "uuid")


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """Options about the columns; None and empty: to be guessed.

    Attributes
    ----------
    type, timestamp, id : str or None
        Names of columns; `type` may also be a type for all rows, in single quotes.
    time_format : str or None
        Format for `datetime.strptime`.
    unit : str or None
        Unit of numbers: one of `UNITS`.
    zone : tzinfo
        Time zone of times without one.
    text : frozenset of str
        Columns whose values are text, whatever they look like.
    nulls : frozenset of str
        Texts that mean no value.
    """

    type: str | None = None
    timestamp: str | None = None
    id: str | None = None
    time_format: str | None = None
    unit: str | None = None
    zone: tzinfo = UTC
    text: frozenset[str] = frozenset()
    nulls: frozenset[str] = frozenset(("",))


@dataclass(slots=True)
class EventConverter:
    """Converter of rows to events.

    Attributes
    ----------
    type : str or None
        The column with the type; None if all rows have the type `constant`.
    constant : str
    timestamp : str
    id : str or None
    clock : callable
        Converts a value of that column to seconds or a datetime; raises ValueError if it is none.
    written : str
        Description of the format of times, for users.
    zone : tzinfo
        Time zone of times without one.
    notes : list of str
        Notes on the guesses that were made.
    is_dated : bool
        Whether the times of the events so far are dates, rather than counted from some beginning.
    """

    type: str | None
    constant: str
    timestamp: str
    id: str | None
    clock: Clock
    written: str
    has_texts: bool
    text: frozenset[str]
    nulls: frozenset[str]
    zone: tzinfo
    notes: list[str] = field(default_factory=list)
    is_dated: bool = False

    @classmethod
    def of(
        cls, rows: Sequence[Row], said: ColumnOptions, types: Sequence[str], *, has_texts: bool
    ) -> EventConverter:
        """Determine the columns of rows such as these.

        Parameters
        ----------
        rows : sequence of mapping
            The first rows, at least one.
        said : ColumnOptions
        types : sequence of str
            The types that the patterns name: if no column has the type and there is only one type,
            it is that of all rows.
        has_texts : bool
            Whether all values are texts, as in CSV: then texts of numbers become numbers.

        Raises
        ------
        ConfigurationError, DefinitionError
            If type or time of the rows cannot be determined.
        """
        notes: list[str] = []
        names = list(dict.fromkeys(name for row in rows for name in row))
        timestamp = said.timestamp
        if timestamp is None:
            timestamp = _guess_time(names)
            notes.append(f"time: column {timestamp}")
        _check_column(timestamp, names, "--timestamp")
        type_, constant = said.type, ""
        if type_ is not None and re.fullmatch("'.+'", type_):
            constant, type_ = type_[1:-1], None
        elif type_ is None:
            type_ = _guess(names, _TYPES)
            if type_ is not None:
                notes.append(f"type: column {type_}")
            elif len(types) == 1:
                constant = types[0]
                notes.append(f"type: all rows are {constant}, as no column has the type")
            else:
                raise ConfigurationError(
                    f"no column of the input says the type of its events ({', '.join(names)}): "
                    "name it with --type, or write --type \"'BAR'\" if all rows are of one type"
                )
        if type_ is not None:
            _check_column(type_, names, "--type")
        id_ = said.id
        if id_ is None:
            id_ = _guess([name for name in names if name not in (type_, timestamp)], _IDS)
            if id_ is not None:
                notes.append(f"id: column {id_}")
        else:
            _check_column(id_, names, "--id")
        for name in said.text:
            _check_column(name, names, "--text")
        first = next((row[timestamp] for row in rows if row.get(timestamp) not in (None, "")), None)
        clock, written = clock_of(
            first, form=said.time_format, unit=said.unit, zone=said.zone, is_text=has_texts
        )
        notes.append(f"times are {written}")
        return cls(
            type_,
            constant,
            timestamp,
            id_,
            clock,
            written,
            has_texts,
            said.text,
            said.nulls,
            said.zone,
            notes,
        )

    def moment_us(self, text: str, option: str) -> int:
        """Return a time given by an option, in the format of the rows' times.

        Raises
        ------
        ConfigurationError
            If it is not a time.
        """
        for clock in (self.clock, iso_clock(self.zone)):
            try:
                return Occurrence("-", clock(text)).us
            except (BadEvent, OverflowError, TypeError, ValueError):
                continue
        raise ConfigurationError(f"{option} {text!r} is not a time; the input's are {self.written}")

    def time_us(self, row: Row) -> int | None:
        """Return the time of a row in microseconds; None if it has none."""
        try:
            return Occurrence("-", self.clock(row[self.timestamp])).us
        except (BadEvent, KeyError, OverflowError, TypeError, ValueError):
            return None

    def occurrence(self, row: Row) -> Occurrence | RowRefusal:
        """Return the event of a row, or the reason why it is none."""
        name: Any = self.constant
        if self.type is not None:
            name = row.get(self.type)
            if not isinstance(name, str) or name in self.nulls:
                return RowRefusal(f"it has no type in column {self.type}", _shown(name))
        value = row.get(self.timestamp)
        if value is None or value == "":
            return RowRefusal(f"it has no time in column {self.timestamp}")
        try:
            moment = self.clock(value)
        except (OverflowError, TypeError, ValueError):
            return RowRefusal(
                f"column {self.timestamp} is not a time: {self.written}", _shown(value)
            )
        self.is_dated = isinstance(moment, datetime)
        id_ = None if self.id is None else row.get(self.id)
        if id_ is not None:
            id_ = str(id_)
        params = {
            key: self._value(key, each) if self.has_texts else each
            for key, each in row.items()
            if key not in (self.type, self.timestamp)
        }
        try:
            return Occurrence(name, moment, params, id=id_)
        except BadEvent as error:
            return RowRefusal("it is not a valid event", str(error))

    def _value(self, column: str, text: str) -> Any:
        if text in self.nulls:
            return None
        if column in self.text:
            return text
        if NUMBER.fullmatch(text) is None:
            return {"true": True, "false": False}.get(text, text)
        if WHOLE.fullmatch(text) is not None:
            return int(text) if len(text) < 20 else text
        return _number(text)


def _number(text: str) -> float | str:
    """Return the value of a number; the text itself if no float is as large."""
    value = float(text)
    return value if math.isfinite(value) else text


def _guess(names: Iterable[str], known: Sequence[str]) -> str | None:
    """Return the first of the known names that a column has."""
    by_name = {name.lower().replace(" ", "_"): name for name in reversed(list(names))}
    return next((by_name[name] for name in known if name in by_name), None)


def _guess_time(names: Sequence[str]) -> str:
    found = _guess(names, _TIMES)
    if found is None:
        like = [name for name in names if re.search(r"time|_(ts|at)$", name, re.IGNORECASE)]
        found = like[0] if len(like) == 1 else None
    if found is None:
        raise ConfigurationError(
            f"no column of the input is clearly the time ({', '.join(names)}): name it with "
            "--timestamp, and a CSV file without a header needs --columns"
        )
    return found


def _check_column(name: str, names: Sequence[str], option: str) -> None:
    if name not in names:
        raise DefinitionError(
            f"the input has no column {name!r}, which {option} names; {did_you_mean(name, names)}"
        )


def _shown(value: Any) -> str:
    return clipped(repr(value), 60)
