"""Conversion of rows to events: the columns of type and time, and the format of the time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any

from activedb.cli._event_files import Refusal, Row
from activedb.cli._event_times import NUMBER, WHOLE, Clock, clock_of, iso_clock
from activedb.errors import BadEvent, ConfigurationError, DefinitionError
from activedb.events import Occurrence
from activedb.spelling import did_you_mean

__all__ = ["Columns", "Reading"]

_TYPES = ("type", "event_type", "eventtype", "event", "event_name", "kind", "activity")
_TIMES = ("timestamp", "event_time", "eventtime", "time", "ts", "datetime", "date_time", "date")
_IDS = ("id", "event_id", "eventid", "uuid")


@dataclass(frozen=True, slots=True)
class Reading:
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
class Columns:
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
        cls, rows: Sequence[Row], said: Reading, types: Sequence[str], *, has_texts: bool
    ) -> Columns:
        """Determine the columns of rows such as these.

        Parameters
        ----------
        rows : sequence of mapping
            The first rows, at least one.
        said : Reading
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
        raise ConfigurationError(f"{option} {text!r} is no time; the input's are {self.written}")

    def time_us(self, row: Row) -> int | None:
        """Return the time of a row in microseconds; None if it has none."""
        try:
            return Occurrence("-", self.clock(row[self.timestamp])).us
        except (BadEvent, KeyError, OverflowError, TypeError, ValueError):
            return None

    def occurrence(self, row: Row) -> Occurrence | Refusal:
        """Return the event of a row, or the reason why it is none."""
        name: Any = self.constant
        if self.type is not None:
            name = row.get(self.type)
            if not isinstance(name, str) or name in self.nulls:
                return Refusal(f"it has no type in column {self.type}", _shown(name))
        value = row.get(self.timestamp)
        if value is None or value == "":
            return Refusal(f"it has no time in column {self.timestamp}")
        try:
            moment = self.clock(value)
        except (OverflowError, TypeError, ValueError):
            return Refusal(f"column {self.timestamp} is not a time: {self.written}", _shown(value))
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
            return Refusal("it is not a valid event", str(error))

    def _value(self, column: str, text: str) -> Any:
        if text in self.nulls:
            return None
        if column in self.text:
            return text
        if NUMBER.fullmatch(text) is None:
            return {"true": True, "false": False}.get(text, text)
        if WHOLE.fullmatch(text) is not None:
            return int(text) if len(text) < 20 else text
        return float(text)


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
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
