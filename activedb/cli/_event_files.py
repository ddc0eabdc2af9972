"""Rows of event files: CSV, JSON lines, Parquet, plain or gzipped, or standard input."""

from __future__ import annotations

import csv
import gzip
import importlib
import io
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

from activedb.errors import ConfigurationError, FeedFailed

__all__ = ["FORMATS", "EventFile", "Refusal", "Row"]

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
class Refusal:
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
            "".encode(encoding)
        except LookupError:
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

    def rows(self) -> Iterator[tuple[int, Row | Refusal]]:
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
                    yield from self._csv(text) if self.format == "csv" else _json(text)
        except (OSError, EOFError, zlib.error) as error:
            raise FeedFailed(f"{self.title} cannot be read to its end: {error}") from error

    def _csv(self, text: IO[str]) -> Iterator[tuple[int, Row | Refusal]]:
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
                        f"{self.title}: the header is no CSV ({error}); check --format"
                    ) from error
                yield reader.line_num, Refusal("it is not valid CSV", str(error))
                continue
            if not fields:
                continue
            if not header:
                header = tuple(name.strip() for name in fields)
                _check_header(self.title, header)
                continue
            if len(fields) != len(header):
                detail = f"{len(fields)} fields for {len(header)} columns"
                yield reader.line_num, Refusal("it has too few or too many fields", detail)
            elif not _is_text("".join(fields)):
                yield reader.line_num, Refusal(f"it is not {self.encoding}")
            else:
                yield reader.line_num, dict(zip(header, fields, strict=True))


def _json(text: IO[str]) -> Iterator[tuple[int, Row | Refusal]]:
    for number, line in enumerate(text, 1):
        stripped = line.strip()
        if not stripped:
            continue
        if number == 1 and stripped.startswith("["):
            yield from _json_array(line + text.read())
            return
        if not _is_text(stripped):
            yield number, Refusal("it is not UTF-8")
            continue
        try:
            row = json.loads(stripped)
        except (ValueError, RecursionError) as error:
            yield number, Refusal("it is not valid JSON", str(error))
            continue
        yield number, _object(row)


def _json_array(text: str) -> Iterator[tuple[int, Row | Refusal]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"the input begins as one JSON array, but is none ({error}); write one object a line"
        ) from error
    for number, row in enumerate(rows, 1):
        yield number, _object(row)


def _object(row: Any) -> Row | Refusal:
    if isinstance(row, dict):
        return row
    return Refusal("it is not a JSON object", f"it is {json.dumps(row)[:60]}")


def _parquet(raw: Any) -> Iterator[tuple[int, Row | Refusal]]:
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
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except pyarrow.ArrowException as error:
        if number:
            raise FeedFailed(f"the Parquet file cannot be read to its end: {error}") from error
        raise ConfigurationError(f"this is no Parquet file ({error}); check --format") from error


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
        raise ConfigurationError(f"{title}: the header is no text; check --format and --encoding")
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
