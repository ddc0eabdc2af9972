"""Recording of events as files of lines, with the times at which lines are due again.

Plain Python, without Spark: it runs in the process that plans the micro-batches of a replay.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_US_MAX = 2**63


@dataclass(frozen=True)
class RecordedFiles:
    """Files of lines, one after the other in the order of their names.

    Parameters
    ----------
    path : Path
        A file or a folder.
    format : str
        ``"csv"``, ``"json"`` or ``"text"``. Empty lines of CSV and JSON are skipped.
    glob : str, optional
        Pattern of the files in the folder.
    time : str, optional
        The column that has a line's time.
    unit : str, optional
        Unit of the numbers in that column: ``"s"``, ``"ms"``, ``"us"``. None: times are ISO 8601.
    header : bool
        Whether the first line of each file names the columns.
    columns : sequence of str
        The columns of CSV, if there is no header.
    separator, quote : str
        Separator and quote of CSV.
    """

    path: Path
    format: str = "text"
    glob: str | None = None
    time: str | None = None
    unit: str | None = None
    header: bool = False
    columns: Sequence[str] = ()
    separator: str = ","
    quote: str = '"'

    def files(self) -> list[Path]:
        """Return the files in the order of their names, without hidden ones."""
        if not self.path.is_dir():
            return [self.path] if self.path.exists() else []
        found = []
        for file in self.path.glob(self.glob or "*"):
            name = file.relative_to(self.path)
            if file.is_file() and not any(part[0] in "._" for part in name.parts):
                found.append((name.as_posix(), file))
        return [file for _, file in sorted(found)]

    def fingerprint(self) -> str:
        """Return a digest of the names and sizes of the files, which identifies this recording."""
        known = hashlib.sha256()
        for file in self.files():
            name = file.name if file == self.path else file.relative_to(self.path).as_posix()
            known.update(f"{name}\0{file.stat().st_size}\0".encode())
        return known.hexdigest()[:16]

    def header_of(self, file: Path) -> list[str]:
        """Return the names in the first line of a CSV file."""
        with _opened(file) as lines:
            return self._cells(lines.readline().rstrip("\r\n").removeprefix("\ufeff"))

    def lines(self) -> Iterator[tuple[str, int | None]]:
        """Yield each line, and its time in microseconds since 1970 UTC, None if it has none.

        Raises
        ------
        ValueError
            If a CSV file has no such column.
        """
        for file in self.files():
            time_us = self._clock_of(file)
            with _opened(file) as lines:
                for line in islice(lines, 1 if self.header else 0, None):
                    text = line.rstrip("\r\n")
                    if text or self.format == "text":
                        yield text, time_us(text)

    def _clock_of(self, file: Path) -> Callable[[str], int | None]:
        """Return a function that finds the time of a line."""
        name = self.time
        if name is None:
            return lambda line: None
        if self.format == "json":
            return lambda line: _as_us(_field(line, name), self.unit)
        columns = self.header_of(file) if self.header else list(self.columns)
        if name not in columns:
            raise ValueError(f"{file} has no column {name!r}; it has {', '.join(columns)}")
        place = columns.index(name)

        def of_cell(line: str) -> int | None:
            cells = self._cells(line)
            return _as_us(cells[place], self.unit) if place < len(cells) else None

        return of_cell

    def _cells(self, line: str) -> list[str]:
        try:
            return next(csv.reader([line], delimiter=self.separator, quotechar=self.quote), [])
        except csv.Error:
            return []


class Replayer:
    """Lines of a recording by number, as they become due.

    Lines are read once, in their order, and kept until they are forgotten: a replay is O(lines),
    whatever its batches. Going back, after a restart, reads the recording from its start.

    Parameters
    ----------
    recording : RecordedFiles
    speed_up : float or None
        Factor by which the replay is faster than the recording; None: everything is due at once.
    clock : callable
        Returns seconds of a clock that never goes back.
    """

    def __init__(
        self,
        recording: RecordedFiles,
        speed_up: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._recording = recording
        self._speed_up = speed_up
        self._clock = clock
        self._paced_from: tuple[float, int] | None = None  # a reading, and the time due then
        self._rewind()

    def due(self, first: int, reached_us: int | None, most: int) -> tuple[int, int | None, bool]:
        """Return the lines that are due, as the number after the last one.

        Parameters
        ----------
        first : int
            The first line that has not been requested yet.
        reached_us : int or None
            The latest time among the lines before it.
        most : int
            Upper bound on the number of lines.

        Returns
        -------
        last : int
            The number after that of the last line due.
        reached_us : int or None
            The latest time among the lines before `last`.
        is_end : bool
            Whether there are no lines from there on.
        """
        self._go_to(first)
        last = first
        while last - first < most and self._has(last):
            time_us = self._lines[last - self._begin][1]
            if time_us is not None and (reached_us is None or time_us > reached_us):
                if not self._is_due(time_us, reached_us):
                    break
                reached_us = time_us
            last += 1
        return last, reached_us, not self._has(last)

    def lines(self, first: int, last: int) -> list[str]:
        """Return the lines from `first` to before `last`; fewer if the recording has fewer."""
        self._go_to(first)
        self._has(last - 1)
        return [line for line, _ in islice(self._lines, first - self._begin, last - self._begin)]

    def forget(self, before: int) -> None:
        """Drop lines that will not be requested again."""
        while self._begin < before and self._lines:
            self._lines.popleft()
            self._begin += 1

    def _is_due(self, time_us: int, reached_us: int | None) -> bool:
        if self._speed_up is None:
            return True
        now_s = self._clock()
        if self._paced_from is None:
            self._paced_from = now_s, time_us if reached_us is None else reached_us
        began_s, from_us = self._paced_from
        return (now_s - began_s) * 1e6 * self._speed_up >= time_us - from_us

    def _has(self, number: int) -> bool:
        """Return whether there is a line of this number; reads up to it."""
        while self._begin + len(self._lines) <= number:
            line = next(self._source, None)
            if line is None:
                return False
            self._lines.append(line)
        return True

    def _go_to(self, number: int) -> None:
        if number < self._begin:
            self._rewind()
        if self._has(number - 1):
            self.forget(number)

    def _rewind(self) -> None:
        self._source = self._recording.lines()
        self._lines: deque[tuple[str, int | None]] = deque()
        self._begin = 0


def _opened(file: Path) -> IO[str]:
    if file.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8", errors="replace", newline="\n")
    return file.open(encoding="utf-8", errors="replace", newline="\n")


def _field(line: str, name: str) -> object:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value.get(name) if isinstance(value, dict) else None


def _as_us(value: object, unit: str | None) -> int | None:
    """Return a time in microseconds, None if it cannot be understood."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    us: Decimal | int
    try:
        if unit is not None:
            us = Decimal(str(value).strip()) * _UNIT_US[unit]
        else:
            moment = datetime.fromisoformat(str(value).strip())
            us = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // _US
        return int(us) if -_US_MAX <= us < _US_MAX else None
    except (ValueError, ArithmeticError):
        return None
