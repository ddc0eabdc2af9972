"""A bank as a program over shared tables, and what an uninterrupted run of it gives."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from sqlalchemy import CheckConstraint, Column, Float, Integer, String, Table, select

from activedb.scheduling import Program, ProgramRun, SerialOrder, SharedState, SharedTable
from tests.ledger import at, declare, event

if TYPE_CHECKING:
    from collections.abc import Iterable

    import activedb as adb
    from activedb import Occurrence, Stream
    from activedb.scheduling import Access, Outcome, View

WINDOW_S = 4.0
REFUSED = 1_013
"""A balance that the server refuses."""

Params = "Mapping[str, Any]"


@dataclass(frozen=True)
class Bank:
    """Accounts whose movements are read over a window, and a book of names."""

    program: Program
    accounts: SharedTable
    book: SharedTable

    def state(self, run: SharedState) -> dict[str, Any]:
        """The newest values, without keys that have none."""
        return {versions.table.name: versions.newest() for versions in run}


def bank(name: str = "bank") -> Bank:
    """Deposits, transfers, closings, averages over a window and entries under computed keys."""
    accounts = SharedTable("accounts", key=int, initial=0, history=WINDOW_S)
    book = SharedTable("book", key=str)
    program = Program(name, [accounts, book])

    @program.on("DEPOSIT")
    def deposit(e: Any, access: Access) -> None:
        access.write(accounts[e["k"]], operator.add, e["n"])

    @program.on("TRANSFER")
    def transfer(e: Any, access: Access) -> None:
        access.write(accounts[e["k"]], _minus, e["n"])
        access.write(accounts[e["to"]], operator.add, e["n"])

    @program.on("ENTER")
    def enter(e: Any, access: Access) -> None:
        """Write what an account has under a key that says whether that is much."""
        key = book.computed(lambda n: "rich" if n > 10 else "poor", reads=(accounts[e["k"]],))
        access.write(key, lambda n: {"account": e["k"], "has": n / 2}, reads=(accounts[e["k"]],))

    @program.on("RECENT")
    def recent(e: Any, access: Access) -> None:
        access.read(accounts[e["k"]].window(WINDOW_S), function=list)

    @program.transaction("CLOSE", writes=lambda e: [accounts[e["k"]]])
    def close(t: View, e: Any) -> int:
        from activedb.scheduling import REMOVED

        has: int = t.read(accounts[e["k"]])
        t.write(accounts[e["k"]], REMOVED)
        return has

    @program.post_process
    def tell(type_: str, params: Any, outcome: Outcome) -> Any:
        return None if type_ == "DEPOSIT" else [type_, params["k"], list(outcome.results)]

    return Bank(program, accounts, book)


def _minus(has: int, n: int) -> int | None:
    return has - n if has >= n else None


def tables(db: adb.Database) -> tuple[Table, Table]:
    """Return the tables of the accounts and of the book; create them if they are missing."""
    accounts = Table(
        "accounts",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("balance", Integer, CheckConstraint(f"balance <> {REFUSED}"), nullable=False),
    )
    book = Table(
        "book",
        db.metadata,
        Column("name", String(10), primary_key=True),
        Column("account", Integer, nullable=False),
        Column("has", Float, nullable=False),
    )
    db.create_all()
    return accounts, book


@dataclass(frozen=True)
class OpenBank:
    """The bank on a stream of a database."""

    db: adb.Database
    stream: Stream
    bank: Bank
    accounts: Table
    book: Table

    def rows(self) -> dict[str, Any]:
        """Return what the tables hold, as keys and values."""
        with self.db.transaction() as t:
            accounts = {r.id: r.balance for r in t.query(select(self.accounts))}
            book = {
                r.name: {"account": r.account, "has": r.has} for r in t.query(select(self.book))
            }
        return {"accounts": accounts, "book": book}

    def outputs(self) -> list[Any]:
        """Return what post-processing has made, in the serial order."""
        return [o.value for o in self.stream.outputs(self.bank.program) if o.value is not None]

    def reasons(self) -> list[tuple[str, str]]:
        """Return the types of the s-transactions that have aborted, and why."""
        return [
            (o.type, o.reason)
            for o in self.stream.outputs(self.bank.program)
            if o.reason is not None
        ]


SCHEDULERS = ("serial", "sei", "s2pl", "lwm", "tpg")
TYPES = ("DEPOSIT", "TRANSFER", "ENTER", "RECENT", "CLOSE")


def open_bank(db: adb.Database, scheduler: Any = None) -> OpenBank:
    """Declare the tables and the stream, and let the program run on it."""
    made = bank()
    accounts, book = tables(db)
    types: dict[str, Any] = dict.fromkeys(TYPES, ("k",))
    stream = declare(db, **types)
    stream.program(
        made.program,
        tables={made.accounts: accounts, made.book: book},
        scheduler=scheduler,
    )
    return OpenBank(db, stream, made, accounts, book)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(TYPES),
        st.integers(0, 12),
        st.integers(0, 2),
        st.integers(0, 2),
        st.integers(0, 20),
    ),
    max_size=20,
)


def events_of(drawn: Iterable[tuple[str, int, int, int, int]]) -> list[Occurrence]:
    """Events with ids in the order drawn, so that ties have one order however they are fed."""
    return [
        event(kind, second, f"{number:03}", k=k, to=to, n=n)
        for number, (kind, second, k, to, n) in enumerate(drawn)
    ]


@dataclass(frozen=True)
class Expected:
    """Results of the serial order."""

    rows: dict[str, Any]
    outputs: list[Any]
    aborted: int


def expected(events: Iterable[Occurrence]) -> Expected:
    """An uninterrupted run in the serial order."""
    made = bank()
    run = ProgramRun(made.program, SerialOrder())
    run.feed(events)
    results = run.finish()
    return Expected(
        made.state(run.state),
        results.outputs,
        sum(not t.outcome.committed for t in results.transactions if t.outcome is not None),
    )


__all__ = [
    "EVENTS",
    "REFUSED",
    "SCHEDULERS",
    "TYPES",
    "WINDOW_S",
    "Bank",
    "Expected",
    "OpenBank",
    "at",
    "bank",
    "event",
    "events_of",
    "expected",
    "open_bank",
    "tables",
]
