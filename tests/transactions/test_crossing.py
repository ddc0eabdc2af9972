"""Deadlocks that go through local locks and the server's are found, in and between processes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table

from activedb.transactions._crossing import cycle_through
from tests.databases import in_thread, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    import activedb as adb
    from tests.databases import Place

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def shared(postgres_url: str) -> Iterator[Place]:
    with place(postgres_url) as where:
        yield where


def accounts(db: adb.Database) -> Table:
    return Table(
        "accounts",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("balance", Integer, nullable=False),
    )


class Ring:
    """Transactions, each of which takes its own row and then, with all, the next one's."""

    def __init__(self, databases: list[adb.Database], take: Any = None):
        self.tables = [accounts(db) for db in dict.fromkeys(databases)]
        self.databases = databases
        self.table_of = dict(zip(dict.fromkeys(databases), self.tables, strict=True))
        first = databases[0]
        first.create_all()
        for n in range(len(databases)):
            table = self.table_of[first]
            first.run(lambda t, n=n, table=table: t.insert(table, {"id": n, "balance": 0}))
        self.all_have_one = threading.Barrier(len(databases))

    def run(self, n: int) -> int:
        db = self.databases[n]
        table = self.table_of[db]
        tries = 0

        def both(t: adb.Transaction) -> None:
            nonlocal tries
            tries += 1
            for row in (n, (n + 1) % len(self.databases)):
                old = t.get(table, row, for_update=True)
                assert old is not None
                t.update(table, row, balance=old["balance"] + 1)
                if row == n and tries == 1:
                    self.all_have_one.wait(10)

        db.run(both)
        return tries

    def run_all(self) -> list[int]:
        runs = [in_thread(self.run, n) for n in range(len(self.databases))]
        tries = [run.result(40) for run in runs]
        first = self.databases[0]
        rows = first.run(lambda t: t.get_many(self.table_of[first], range(len(tries))))
        assert [row["balance"] for row in rows.values() if row] == [2] * len(tries)
        return tries


def crossing(*databases: adb.Database) -> int:
    return sum(db.counters().get("deadlocks_crossing", 0) for db in databases)


def test_cycle_of_a_local_wait_and_two_at_the_server_is_broken(shared: Place) -> None:
    one, other = (shared.open(lock_timeout_ms=30_000) for _ in range(2))
    tries = Ring([one, one, other]).run_all()
    assert sum(tries) == 4
    assert crossing(one, other) == 1


def test_cycle_with_local_waits_in_two_processes_is_broken(shared: Place) -> None:
    one, other = (shared.open(lock_timeout_ms=30_000) for _ in range(2))
    tries = Ring([one, one, other, other]).run_all()
    assert sum(tries) == 5
    assert crossing(one, other) == 1


def test_cycle_at_the_server_alone_is_left_to_the_server(shared: Place) -> None:
    one, other = (shared.open(lock_timeout_ms=30_000) for _ in range(2))
    tries = Ring([one, other]).run_all()
    assert sum(tries) == 3
    assert crossing(one, other) == 0


def test_cycle_of_local_waits_alone_is_left_to_the_lock_manager(shared: Place) -> None:
    one = shared.open(lock_timeout_ms=30_000)
    tries = Ring([one, one, one]).run_all()
    assert sum(tries) == 4
    assert crossing(one) == 0


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
