"""A bank whose program runs in columns, fed with tables; and the same, event by event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pyarrow as pa
from sqlalchemy import CheckConstraint, Column, Double, Integer, Table, select

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.scheduling import Program, SharedTable
from activedb.store.system import dead_letters, late_events
from tests.ledger import EPOCH, at, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from activedb import Stream
    from activedb.scheduling import Access, Outcome
    from tests.databases import Opens

SIZE = 8
WINDOW_S = 4.0
REFUSED = 1_013.0
"""A balance that the server refuses."""
TYPES = ("DEPOSIT", "TRANSFER", "MEAN", "SHARE", "SPREAD")

Row = tuple[str | None, float | None, str | None, int | None, int | None, float | None]
"""Type, second, id, `k`, `to` and `n` of an event."""


@dataclass(frozen=True, eq=False)
class ColumnBank:
    """A program, and its shared tables."""

    program: Program
    accounts: SharedTable
    book: SharedTable


def bank(name: str, *, tells: bool) -> ColumnBank:
    """Deposits, transfers, means over a window, shares that may raise, and computed keys.

    One that tells has post-processing, and its functions stay in Python; else they are compiled.
    """
    plus = _plus_in_python if tells else _plus
    accounts = SharedTable("accounts", initial=0, size=SIZE, history=WINDOW_S)
    book = SharedTable("book", initial=0, size=SIZE)
    program = Program(name, [accounts, book])

    @program.on("DEPOSIT")
    def deposit(e: Any, access: Access) -> None:
        access.write(accounts[e["k"]], plus, e["n"])

    @program.on("TRANSFER")
    def transfer(e: Any, access: Access) -> None:
        access.write(accounts[e["k"]], _minus, e["n"])
        access.write(accounts[e["to"]], plus, e["n"])

    @program.on("MEAN")
    def mean(e: Any, access: Access) -> None:
        access.write(book[e["k"]], _mean, reads=(accounts[e["k"]].window(WINDOW_S),))

    @program.on("SHARE")
    def share(e: Any, access: Access) -> None:
        access.write(book[e["k"]], _share, e["n"], reads=(accounts[e["to"]],))

    @program.on("SPREAD")
    def spread(e: Any, access: Access) -> None:
        access.write(book.computed(_place, reads=(accounts[e["k"]],)), plus, 1)

    if tells:

        @program.post_process
        def tell(type_: str, params: Any, outcome: Outcome) -> Any:
            if type_ == "DEPOSIT" and params["n"] == 13:
                raise ZeroDivisionError("an unlucky number")
            return None if type_ == "DEPOSIT" else [type_, dict(params), list(outcome.results)]

    return ColumnBank(program, accounts, book)


def _plus(has: float, n: float) -> float:
    return has + n


def _plus_in_python(has: float, n: float) -> float:
    return has + n**1


def _minus(has: float, n: float) -> float | None:
    return has - n if has >= n else None


def _mean(values: Any) -> float | None:
    if len(values) == 0:
        return None
    return float(sum(values) / len(values))


def _share(has: float, n: float) -> float:
    return has / n


def _place(has: float) -> int:
    return 0 if has < 5 else 9 if has > 40 else 1


QUIET, TELLING = bank("quiet", tells=False), bank("telling", tells=True)
"""Made once: a program is compiled once per process."""


@dataclass(frozen=True)
class OpenBank:
    """A bank on a stream of a database."""

    db: adb.Database
    stream: Stream
    bank: ColumnBank
    tables: dict[SharedTable, Table]

    def apply(self, number: int, rows: Sequence[Row], second: float | None) -> None:
        """Hand over a batch of a query."""
        run = self.stream.run
        until_us = None if second is None else _us(second)
        run.apply(adb.AtomicBatch(self.stream.name, "query", number, table_of(rows), until_us))

    def everything(self) -> dict[str, Any]:
        """All that came of it, as the database has it, and what the run says."""
        run = self.stream.run
        with self.db.transaction() as t:
            rows = {
                shared.name: {r.id: r.balance for r in t.query(select(table))}
                for shared, table in self.tables.items()
            }
        return {
            **rows,
            "outputs": self.stream.outputs(self.bank.program),
            "letters": read(self.db, dead_letters),
            "late": read(self.db, late_events),
            "totals": run.totals(),
            "punctuation": run.punctuation_us,
            "waiting": run.waiting,
            "batches": run.batches,
        }


def open_bank(
    where: Opens,
    given: ColumnBank = QUIET,
    scheduler: str = "columns",
    **settings: Any,
) -> OpenBank:
    """Declare tables and stream, and let the program run on it; the clock stands still."""
    db = where.open(clock=SimulatedClock(at(3_600)), retry_pause_ms=0, **settings)
    tables = {
        shared: Table(
            shared.name,
            db.metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("balance", Double, CheckConstraint(f"balance <> {REFUSED}"), nullable=False),
        )
        for shared in given.program.tables
    }
    db.create_all()
    types = {**dict.fromkeys(TYPES, ()), "MEAN": ("k",), "OTHER": ()}
    stream = db.stream("input", type="kind", timestamp="at", types=types)
    stream.program(given.program, tables=tables, scheduler=scheduler)
    return OpenBank(db, stream, given, tables)


def table_of(rows: Sequence[Row]) -> Any:
    """Rows as a table of Arrow; text instead of a type is a row that could not be read."""
    columns: list[list[Any]] = [[row[place] for row in rows] for place in range(6)]
    kinds, seconds, ids, ks, tos, ns = columns
    return pa.table(
        {
            "event_type": pa.array(kinds, pa.string()),
            "event_time_us": pa.array([None if s is None else _us(s) for s in seconds], pa.int64()),
            "event_id": pa.array(ids, pa.string()),
            "raw": pa.array([None if k else "no event" for k in kinds], pa.string()),
            "p_k": pa.array(ks, pa.int64()),
            "p_to": pa.array(tos, pa.int32()),
            "p_n": pa.array(ns, pa.float64()),
            "p_note": pa.array([None if k is None else f"to {k}\0" for k in tos], pa.string()),
            "p_when": pa.array([None if k is None else at(k) for k in ks], pa.timestamp("us")),
        }
    )


def occurrence_of(row: Row) -> Any:
    """The same as an event, without what is NULL."""
    kind, second, id_, *values = row
    given = zip(("k", "to", "n"), values, strict=True)
    params = {name: value for name, value in given if value is not None}
    assert kind is not None
    assert second is not None
    return adb.occurrence(kind, timestamp=at(second), id=id_, **params)


def _us(second: float) -> int:
    return round((at(second) - EPOCH).total_seconds() * 1e6) + round(EPOCH.timestamp()) * 1_000_000


_MOSTLY_KEYS = st.one_of(st.integers(0, SIZE - 1), st.sampled_from([0, 1, 1, SIZE, -1, None]))
ROWS: st.SearchStrategy[Row] = st.tuples(
    st.sampled_from([*TYPES, *TYPES, *TYPES, "OTHER", "UNKNOWN", None]),
    st.one_of(st.integers(0, 12), st.sampled_from([None, 10_000])),
    st.sampled_from([None, None, "a", "b", "\0"]),
    _MOSTLY_KEYS,
    _MOSTLY_KEYS,
    st.sampled_from([0.0, 1.0, 2.5, 7.0, 13.0, 40.0, -3.0, None]),
)

__all__ = [
    "QUIET",
    "REFUSED",
    "ROWS",
    "SIZE",
    "TELLING",
    "TYPES",
    "ColumnBank",
    "OpenBank",
    "Row",
    "bank",
    "occurrence_of",
    "open_bank",
    "table_of",
]
