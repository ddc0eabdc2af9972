"""The real streams twice: as occurrences, and as tables of an SQLite database.

In both an event has its number ``n``, its place in the order of time. A match is compared as what
its parts are: a tuple of ``(part, n)``, of a Kleene part ``(part, (n, …))``, in the order of names.
"""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from activedb.events import Detector, Occurrence
from activedb.language import parse_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from activedb.events import Expression

E = TypeVar("E", bound="Expression")
Match = tuple[tuple[str, int | tuple[int, ...]], ...]

_NEW_YORK = timezone(timedelta(hours=-5))  # in winter
_TRIM_EVERY = 200  # moments
_SNOWFLAKE_MS = 1288834974657


@dataclass(frozen=True)
class Stream:
    """A real stream.

    Attributes
    ----------
    events : tuple of Occurrence
        In time order; each has the parameter ``n``.
    sql : sqlite3.Connection
        With the table ``e``: n, type, us, and the parameters.
    """

    events: tuple[Occurrence, ...]
    sql: sqlite3.Connection

    @property
    def end_us(self) -> int:
        """The time of the last event."""
        return self.events[-1].us

    def found(self, expression: Expression, **options: Any) -> list[Occurrence]:
        """Return what a detector finds that learns the time of each event before it is fed."""
        detector = Detector(expression, **options)
        matches: list[Occurrence] = []
        for turn, (us, together) in enumerate(groupby(self.events, key=lambda o: o.us)):
            matches += detector.advance(us)
            if turn % _TRIM_EVERY == 0 and detector.horizon_us is not None:
                detector.trim(us - detector.horizon_us)
            for o in together:
                matches += detector.feed(o)
        return matches + detector.advance(self.end_us + 1)

    def matches(self, expression: Expression, **options: Any) -> set[Match]:
        """The same as sets of parts; each match is made once."""
        found = [parts_of(o) for o in self.found(expression, **options)]
        assert len(set(found)) == len(found)
        return set(found)

    def times(self, expression: Expression) -> dict[Match, int]:
        """Return when each match occurs, in microseconds."""
        return {parts_of(o): o.us for o in self.found(expression)}

    def rows(self, query: str, **values: Any) -> list[dict[str, Any]]:
        """Return the rows of a query."""
        cursor = self.sql.execute(query, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def asked(self, query: str, **values: Any) -> set[Match]:
        """Return the matches of a query: a column for each part, a JSON array for a Kleene part."""
        found = [
            tuple(
                sorted(
                    (name, tuple(sorted(json.loads(n))) if isinstance(n, str) else n)
                    for name, n in row.items()
                    if n is not None
                )
            )
            for row in self.rows(query, **values)
        ]
        assert len(set(found)) == len(found)
        return set(found)


def parts_of(match: Occurrence) -> Match:
    """The numbers of what a match is made of; clock events and ticks by their time."""
    if not match.parts:
        return ((match.name, _number(match)),)
    return tuple(
        sorted(
            (name, tuple(map(_number, part)) if isinstance(part, tuple) else _number(part))
            for name, part in match.parts.items()
        )
    )


def _number(o: Occurrence) -> int:
    n = o.params.get("n", o.us)
    assert isinstance(n, int)
    return n


def nasdaq(folder: Path) -> Stream:
    """One-minute bars: UP, DOWN or FLAT by their close against their open."""
    with (folder / "nasdaq" / "NASDAQ_MEDIUM.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.reader(file) if row]
    return _stream(
        {
            "type": "UP" if close > opened else "DOWN" if close < opened else "FLAT",
            "at": datetime.strptime(minute, "%Y%m%d%H%M").replace(tzinfo=_NEW_YORK),
            "ticker": ticker,
            "open": opened,
            "close": close,
            "volume": int(volume),
        }
        for ticker, minute, opened, close, volume in (
            (row[0], row[1], float(row[2]), float(row[5]), row[6]) for row in rows
        )
    )


def weather(folder: Path) -> Stream:
    """Hourly observations: RAIN if there was some, else DRY."""
    with gzip.open(
        folder / "weather" / "nyc_2013_hourly.csv.gz", "rt", encoding="utf-8", newline=""
    ) as file:
        rows = list(csv.DictReader(file))

    def number(text: str) -> float | None:
        return None if text == "NA" else float(text)

    return _stream(
        {
            "type": "RAIN" if float(row["precip"]) > 0 else "DRY",
            "at": datetime.fromisoformat(row["time_hour"]),
            "origin": row["origin"],
            "temp": number(row["temp"]),
            "gust": number(row["wind_gust"]),
            "rain": float(row["precip"]),
        }
        for row in rows
    )


def tweets(folder: Path, crisis: str) -> Stream:
    """Tweets of a crisis: TOPIC if they are on topic, else OTHER."""
    name = folder / "crisislex" / f"{crisis}.csv.gz"
    with gzip.open(name, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, skipinitialspace=True))[1:]

    def made() -> Iterator[dict[str, Any]]:
        for quoted, text, label in rows:
            id_ = int(quoted.strip("'"))
            ms = (id_ >> 22) + _SNOWFLAKE_MS
            yield {
                "type": "TOPIC" if label == "on-topic" else "OTHER",
                "at": datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms),
                "length": len(text),
                "shouts": text.count("!"),
            }

    return _stream(made())


def _stream(rows: Iterable[dict[str, Any]]) -> Stream:
    ordered = sorted(rows, key=lambda row: row["at"])  # what is at one time stays as it is
    events = []
    for n, row in enumerate(ordered):
        params = {name: value for name, value in row.items() if name not in ("type", "at")}
        events.append(Occurrence(row["type"], row["at"], params | {"n": n}))
    names = [name for name in events[0].params if name != "n"]
    connection = sqlite3.connect(":memory:")
    connection.execute(f"CREATE TABLE e (n INTEGER PRIMARY KEY, type, us, {', '.join(names)})")
    marks = ", ".join("?" * (len(names) + 3))
    connection.executemany(
        f"INSERT INTO e (n, type, us, {', '.join(names)}) VALUES ({marks})",
        [(o.params["n"], o.name, o.us, *(o.params[name] for name in names)) for o in events],
    )
    connection.execute("CREATE INDEX by_time ON e (us)")
    if "ticker" in names or "origin" in names:
        key = "ticker" if "ticker" in names else "origin"
        connection.execute(f"CREATE INDEX by_key ON e ({key}, us)")
    connection.execute("ANALYZE")
    return Stream(tuple(events), connection)


def both(expression: E, text: str) -> E:
    """The expression; its text in the rule language must give the same."""
    assert parse_pattern(text) == expression
    return expression
