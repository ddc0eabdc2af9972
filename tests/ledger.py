"""Tables, readers and stream events that the tests of the engine use."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, Column, Integer, String, Table, UniqueConstraint, select

import activedb as adb
from activedb.store.system import dead_letters, late_events, pending_firings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from activedb import Occurrence, Stream, Transaction

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Ledger:
    """A database with accounts, and a log in which rules write that they ran."""

    db: adb.Database
    accounts: Table
    log: Table
    facts: Table

    def write(self, t: Transaction, text: str) -> None:
        """Append a line to the log, as part of `t`."""
        t.insert(self.log, {"text": text})

    def lines(self) -> list[str]:
        """Committed lines, in the order of their numbers."""
        with self.db.transaction() as t:
            return [r.text for r in t.query(select(self.log).order_by(self.log.c.id))]

    def balances(self) -> dict[int, int]:
        """Committed balances."""
        with self.db.transaction() as t:
            return {r.id: r.balance for r in t.query(select(self.accounts))}

    def known(self) -> dict[str, int]:
        """Committed facts."""
        with self.db.transaction() as t:
            return {r.name: r.value for r in t.query(select(self.facts))}

    def letters(self) -> list[Mapping[str, Any]]:
        """Dead letters, by source and identity."""
        return read(self.db, dead_letters)

    def late(self) -> list[Mapping[str, Any]]:
        """Late events, in order of arrival."""
        return read(self.db, late_events)

    def pending(self) -> list[Mapping[str, Any]]:
        """Recorded firings of detached rules."""
        return read(self.db, pending_firings)


def read(db: adb.Database, table: Table) -> list[Mapping[str, Any]]:
    """Rows of one of activedb's own tables."""
    with db._store.short() as connection:
        rows = connection.execute(select(table).order_by(*table.primary_key.columns))
        return [dict(row) for row in rows.mappings()]


def open_ledger(db: adb.Database, balances: dict[int, int] | None = None) -> Ledger:
    """Declare the tables, create them where they are missing, and fill in `balances`."""
    accounts = Table(
        "accounts",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("balance", Integer),
    )
    log = Table(
        "log",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("text", String(5_000), nullable=False),
    )
    facts = Table(
        "facts",
        db.metadata,
        Column("name", String(50), primary_key=True),
        Column("value", Integer, nullable=False),
        Column("detail", JSON),
        UniqueConstraint("value", name="facts_value_once"),
    )
    db.create_all()
    with db.transaction() as t:
        for key, balance in (balances or {}).items():
            t.insert(accounts, {"id": key, "balance": balance})
    return Ledger(db, accounts, log, facts)


def event(kind: str, second: float, id: str | None = None, **params: Any) -> Occurrence:
    """A stream event so many seconds after the start."""
    return adb.occurrence(kind, timestamp=at(second), id=id, **params)


def at(second: float) -> datetime:
    """Time so many seconds after the start."""
    return EPOCH + timedelta(seconds=second)


def declare(db: adb.Database, name: str = "input", **types: tuple[str, ...]) -> Stream:
    """A stream with event types A, B, C and those given."""
    return db.stream(
        name,
        type="kind",
        timestamp="at",
        types={"A": (), "B": (), "C": (), **types},
        delay=timedelta(days=1),
    )


class EventValues:
    """A column of an event table."""

    def __init__(self, values: Iterable[Any]):
        self._values = list(values)

    def to_pylist(self) -> list[Any]:
        """Values of the column."""
        return self._values


class Rows:
    """An event table made of events, as a feed would hand it over."""

    def __init__(self, events: Iterable[Occurrence], params: tuple[str, ...] = ("n",)):
        self._events = list(events)
        heads: dict[str, list[Any]] = {
            "event_type": [e.name for e in self._events],
            "event_time_us": [e.us for e in self._events],
            "event_id": [e.id for e in self._events],
            "raw": [None for _ in self._events],
        }
        heads |= {f"p_{name}": [e.params.get(name) for e in self._events] for name in params}
        self._columns = heads

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._events)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self._columns)

    def column(self, name: str) -> EventValues:
        """One column."""
        return EventValues(self._columns[name])
