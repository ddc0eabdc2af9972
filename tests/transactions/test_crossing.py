"""Deadlocks that go through local locks and the server's are found, in and between processes."""

from __future__ import annotations

import itertools
import math
import secrets
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    Table,
    create_engine,
    make_url,
    text,
    update,
)
from sqlalchemy.exc import OperationalError

import activedb as adb
from activedb.store.session._processes import Backend, backends, publish
from activedb.transactions import _crossing
from activedb.transactions._crossing import cycle_through
from tests.databases import PATIENCE_S, in_thread, until
from tests.histories.processes import Server

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tests.databases import Place


def accounts(db: adb.Database) -> Table:
    return Table(
        "accounts",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("balance", Integer, nullable=False),
    )


class Ring:
    """Transactions, each of which takes its own row and then, with all, the next one's.

    The victim tries again when all others have ended: the server lets it have its row again before
    those who wait for that have woken up, and then there is another deadlock, with other victims.
    """

    def __init__(self, databases: list[adb.Database], take: Any = None):
        self.tables = [accounts(db) for db in dict.fromkeys(databases)]
        self.databases = databases
        self.table_of = dict(zip(dict.fromkeys(databases), self.tables, strict=True))
        first = databases[0]
        first.create_all()

        def fill(t: adb.Transaction, n: int) -> None:
            t.insert(self.table_of[first], {"id": n, "balance": 0})

        for n in range(len(databases)):
            first.run(fill, n)
        self.all_have_one = threading.Barrier(len(databases))
        self.ended: list[int] = []

    def run(self, n: int) -> int:
        db = self.databases[n]
        table = self.table_of[db]
        tries = 0

        def both(t: adb.Transaction) -> None:
            nonlocal tries
            tries += 1
            if tries > 1:
                until(lambda: len(self.ended) == len(self.databases) - 1)
            for row in (n, (n + 1) % len(self.databases)):
                old = t.get(table, row, for_update=True)
                assert old is not None
                t.update(table, row, balance=old["balance"] + 1)
                if row == n and tries == 1:
                    self.all_have_one.wait(PATIENCE_S)

        db.run(both)
        self.ended.append(n)
        return tries

    def run_all(self) -> list[int]:
        runs = [in_thread(self.run, n) for n in range(len(self.databases))]
        tries = [run.result(PATIENCE_S) for run in runs]
        first = self.databases[0]
        rows = first.run(lambda t: t.get_many(self.table_of[first], range(len(tries))))
        assert [row["balance"] for row in rows.values() if row] == [2] * len(tries)
        return tries


def crossing(*databases: adb.Database) -> int:
    return sum(db.admin.counters().get("deadlocks_crossing", 0) for db in databases)


@pytest.fixture
def one_victim(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no process loses patience with the victim of another one."""
    monkeypatch.setattr(_crossing, "_YIELDS_MAX", math.inf)


@pytest.mark.usefixtures("one_victim")
def test_cycle_of_a_local_wait_and_two_at_the_server_is_broken(there: Place) -> None:
    one, other = (there.open() for _ in range(2))
    tries = Ring([one, one, other]).run_all()
    assert sum(tries) == 4
    assert crossing(one, other) == 1


@pytest.mark.usefixtures("one_victim")
def test_cycle_with_local_waits_in_two_processes_is_broken(there: Place) -> None:
    one, other = (there.open() for _ in range(2))
    tries = Ring([one, one, other, other]).run_all()
    assert sum(tries) == 5
    assert crossing(one, other) == 1


@pytest.fixture
def patient_url(database_url: str) -> str:
    """A server that looks for deadlocks after an hour."""
    name = make_url(database_url).database
    Server(database_url).run(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '1h'")
    return database_url


@pytest.mark.usefixtures("one_victim")
@pytest.mark.parametrize("count", [2, 3])
def test_cycle_at_the_server_alone_is_broken_before_the_server_looks(
    patient_url: str, count: int
) -> None:
    with ExitStack() as stack:
        databases = [stack.enter_context(adb.connect(patient_url)) for _ in range(count)]
        tries = Ring(databases).run_all()
        assert sum(tries) == count + 1
        assert crossing(*databases) == 1


def test_victim_of_a_cycle_with_a_plain_program_is_the_transaction(patient_url: str) -> None:
    with adb.connect(patient_url) as db:
        table = accounts(db)
        db.create_all()
        db.run(lambda t: [t.insert(table, {"id": n, "balance": 0}) for n in (1, 2)])
        has_one, may_go_on = threading.Event(), threading.Event()

        def both(t: adb.Transaction) -> None:
            t.get(table, 1, for_update=True)
            has_one.set()
            assert may_go_on.wait(PATIENCE_S)
            t.update(table, 2, balance=2)
            t.update(table, 1, balance=2)

        def plain(connection: Connection) -> None:
            connection.execute(update(table).where(table.c.id == 2).values(balance=1))
            run = in_thread(db.run, both)
            assert has_one.wait(PATIENCE_S)
            may_go_on.set()
            connection.execute(update(table).where(table.c.id == 1).values(balance=1))
            runs.append(run)

        runs: list[Future[None]] = []
        Server(patient_url).look(plain)
        runs[0].result(PATIENCE_S)
        rows = db.run(lambda t: t.get_many(table, [1, 2]))
        assert [row["balance"] for row in rows.values() if row] == [2, 2]
        # The next try may be faster than the program that waits for the row, and meet it again.
        assert crossing(db) >= 1


def test_cycle_of_local_waits_alone_is_left_to_the_lock_manager(there: Place) -> None:
    one = there.open()
    tries = Ring([one, one, one]).run_all()
    assert sum(tries) == 4
    assert crossing(one) == 0


def test_wait_through_a_transaction_that_is_not_at_the_server_is_seen(there: Place) -> None:
    db = there.open()
    table = accounts(db)
    kept = Table("kept", db.metadata, Column("id", Integer, primary_key=True))
    db.create_all()
    db.run(lambda t: [t.insert(table, {"id": n, "balance": 0}) for n in (1, 2)])
    db.run(lambda t: [t.insert(kept, {"id": n}) for n in (1, 2)])
    db.admin.own(kept)
    all_have_one = threading.Barrier(4)
    tries = itertools.count()

    def transaction(first: tuple[Table, int], then: tuple[Table, int]) -> None:
        is_first_try = True

        def both(t: adb.Transaction) -> None:
            nonlocal is_first_try
            next(tries)
            t.get(*first, for_update=True)
            if is_first_try:
                is_first_try = False
                all_have_one.wait(PATIENCE_S)
            t.get(*then, for_update=True)

        db.run(both)

    with db.connection() as plain:
        plain.execute(update(table).where(table.c.id == 2).values(balance=1))
        runs = [
            in_thread(transaction, (table, 1), (kept, 1)),
            in_thread(transaction, (kept, 1), (kept, 2)),  # needs no connection
            in_thread(transaction, (kept, 2), (table, 2)),
        ]
        all_have_one.wait(PATIENCE_S)
        plain.execute(update(table).where(table.c.id == 1).values(balance=1))
        plain.commit()
    for run in runs:
        run.result(PATIENCE_S)
    assert next(tries) >= 4
    assert crossing(db) >= 1


@pytest.mark.parametrize("is_youngest", [False, True])
def test_cycle_through_a_statement_of_the_callers_own_is_broken(
    there: Place, is_youngest: bool
) -> None:
    db = there.open()
    table = accounts(db)
    db.create_all()
    db.run(lambda t: [t.insert(table, {"id": n, "balance": 0}) for n in (1, 2, 3)])
    has_one, may_go_on = threading.Event(), threading.Event()

    def both(t: adb.Transaction) -> None:
        t.get(table, 2, for_update=True)
        has_one.set()
        may_go_on.wait(PATIENCE_S)
        t.get(table, 1, for_update=True)  # waits here for the caller

    def take_first(connection: Connection) -> None:
        with db.transaction(connection=connection) as t:
            t.get(table, 1, for_update=True)

    def write(connection: Connection, key: int) -> None:
        try:
            connection.execute(update(table).where(table.c.id == key).values(balance=1))
        finally:
            connection.rollback()

    with db.connection() as plain, db.connection() as callers:
        plain.execute(update(table).where(table.c.id == 3).values(balance=1))
        if not is_youngest:
            take_first(callers)
        run = in_thread(db.run, both)
        assert has_one.wait(PATIENCE_S)
        if is_youngest:
            take_first(callers)
        may_go_on.set()
        calling = in_thread(write, callers, 3)  # waits at the server for the plain one
        other = in_thread(write, plain, 2)  # which waits there for the transaction
        other.result(PATIENCE_S)
        if is_youngest:
            with pytest.raises(OperationalError, match="cancel"):
                calling.result(PATIENCE_S)
        else:
            calling.result(PATIENCE_S)
        run.result(PATIENCE_S)
    assert crossing(db) >= 1  # the server may let the next try have the row first again


def test_watcher_goes_on_after_an_unexpected_error(
    there: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = there.open()
    crossing = db._forest.crossing
    has_failed, goes_on = threading.Event(), threading.Event()

    def fail_once(ours: Any) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise OSError("on purpose")
        goes_on.set()

    monkeypatch.setattr(crossing, "_take_back", fail_once)
    with db.transaction():
        thread = crossing._thread
        assert thread is not None
        until(lambda: goes_on.is_set() or not thread.is_alive())
    assert goes_on.is_set()


def test_what_is_published_names_whole_processes_that_still_are_the_same(there: Place) -> None:
    db = there.open()
    with db.connection() as waiter, db.connection() as waited_for:
        number = db._store.backend_of(waited_for)
        assert number is not None
        waited_for.execute(text("SELECT 1"))
        publish(waiter, [number, *range(4_000_000, 4_000_010)])
        assert number in _published(db)
        assert len(_published(db)) > 1
        assert _published(db) <= {number, *range(4_000_000, 4_000_010)}
        waited_for.rollback()
        waited_for.execute(text("SELECT 1"))  # another transaction of the same process
        assert number not in _published(db)
        publish(waiter, [])
        assert not _published(db)


def test_waits_of_other_roles_are_seen_without_any_rights(there: Place) -> None:
    db = there.open()
    table = accounts(db)
    db.create_all()
    db.run(lambda t: t.insert(table, {"id": 1, "balance": 0}))
    role = f"role_{secrets.token_hex(4)}"
    with db.connection() as one, db.connection() as other:
        one.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'x'"))
        one.commit()
        try:
            one.execute(update(table).values(balance=1))
            waiting = in_thread(lambda: other.execute(update(table).values(balance=2)))
            numbers = db._store.backend_of(one), db._store.backend_of(other)
            until(lambda: (numbers[1], numbers[0]) in _waits(db._store.backends()))
            engine = create_engine(make_url(there._url).set(username=role, password="x"))
            with engine.connect() as ordinary:
                assert (numbers[1], numbers[0]) in _waits(backends(ordinary))
            engine.dispose()
            one.rollback()
            waiting.result(PATIENCE_S)
            other.rollback()
        finally:
            one.rollback()
            one.execute(text(f"DROP ROLE {role}"))
            one.commit()


def _waits(seen: list[Backend]) -> set[tuple[int, int]]:
    return {(backend.number, blocker) for backend in seen for blocker in backend.blockers}


def _published(db: adb.Database) -> set[int]:
    return {number for backend in db._store.backends() for number in backend.waits_for}


def test_wait_that_is_over_is_published_no_longer(there: Place) -> None:
    db = there.open()
    table = accounts(db)
    db.create_all()
    db.run(lambda t: [t.insert(table, {"id": n, "balance": 0}) for n in (1, 2, 3)])
    has_one, may_end = threading.Event(), threading.Event()

    def wait_at_the_server(t: adb.Transaction) -> None:
        t.get(table, 1, for_update=True)
        has_one.set()
        t.get(table, 2, for_update=True)

    def wait_here(t: adb.Transaction) -> None:
        t.get(table, 3, for_update=True)
        t.get(table, 1, for_update=True)
        may_end.wait(PATIENCE_S)

    with db.connection() as plain:
        plain.execute(update(table).where(table.c.id == 2).values(balance=1))
        first = in_thread(db.run, wait_at_the_server)
        assert has_one.wait(PATIENCE_S)
        second = in_thread(db.run, wait_here)
        until(lambda: _published(db))
        plain.rollback()
    first.result(PATIENCE_S)
    until(lambda: not _published(db))
    may_end.set()
    second.result(PATIENCE_S)


@pytest.mark.parametrize(
    ("waits", "cycle"),
    [
        ({}, []),
        ({1: [2], 2: [3]}, []),
        ({1: [1]}, [1]),
        ({1: [2], 2: [3], 3: [1]}, [1, 2, 3]),
        ({1: [4, 2], 4: [5], 2: [3], 3: [4, 1]}, [1, 2, 3]),
        ({1: [2], 2: [3], 3: [2]}, []),
    ],
)
def test_cycle_through_a_node(waits: dict[int, list[int]], cycle: list[int]) -> None:
    assert cycle_through(1, waits) == cycle
