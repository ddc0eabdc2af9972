"""Tables that one process keeps in its memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, String, Table, func, select, text

from activedb.errors import ConstraintViolation, TableOwned
from tests.databases import PATIENCE_S, in_thread, place, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import activedb as adb
    from tests.databases import Place

pytestmark = pytest.mark.timeout(60)


def declare(db: adb.Database) -> Table:
    table = Table(
        "stock",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("count", Integer, nullable=False),
        Column("name", String(10), unique=True),
    )
    db.create_all()
    return table


@pytest.fixture
def shared(postgres_url: str) -> Iterator[Place]:
    with place(postgres_url) as where:
        yield where


def test_owned_table_reads_and_writes_like_any_other(where: Place) -> None:
    db = where.open()
    stock = declare(db)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 5}))
    db.own(stock)
    with db.transaction() as t:
        assert t.get(stock, 1) == {"id": 1, "count": 5, "name": None}
        assert t.get(stock, 2) is None
        t.update(stock, 1, count=6)
        t.insert(stock, {"id": 2, "count": 1})
        with t.subtransaction() as s:
            s.delete(stock, 1)
            s.abort()
        assert t.query(select(func.sum(stock.c.count))) == [(7,)]
    with db.transaction() as t:
        assert t.get_many(stock, [1, 2, 3]) == {
            1: {"id": 1, "count": 6, "name": None},
            2: {"id": 2, "count": 1, "name": None},
            3: None,
        }
        t.delete(stock, 2)
    with db._store.short() as plain:
        assert plain.execute(select(stock)).all() == [(1, 6, None)]
    assert db.run(lambda t: t.get(stock, 2)) is None


def test_owned_rows_are_read_without_the_server(shared: Place) -> None:
    db = shared.open()
    stock = declare(db)
    db.run(lambda t: [t.insert(stock, {"id": n, "count": n}) for n in range(10)])
    db.own(stock)
    with db.transaction() as t:
        assert t.get_many(stock, range(20), for_update=True)[7] is not None
        assert t.hierarchy.session.backend is None  # no connection was needed
        t.update(stock, 7, count=0)
        assert t.hierarchy.session.backend is None
    with db._store.short() as plain:
        assert plain.scalar(select(stock.c.count).where(stock.c.id == 7)) == 0


def test_commit_that_fails_leaves_the_memory_as_it_was(where: Place) -> None:
    db = where.open()
    stock = declare(db)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 5, "name": "a"}))
    db.own(stock)
    with pytest.raises(ConstraintViolation), db.transaction() as t:
        t.update(stock, 1, count=9)
        t.insert(stock, {"id": 2, "count": 1, "name": "a"})
    assert db.run(lambda t: t.get(stock, 1)) == {"id": 1, "count": 5, "name": "a"}
    assert db.run(lambda t: t.get(stock, 2)) is None


def test_owned_table_counts_right_from_many_threads(where: Place) -> None:
    db = where.open(retries_max=50)
    stock = declare(db)
    db.own(stock)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 0}))

    def add(t: adb.Transaction) -> None:
        row = t.get(stock, 1, for_update=True)
        assert row is not None
        t.update(stock, 1, count=row["count"] + 1)

    threads = [in_thread(lambda: [db.run(add) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.result(PATIENCE_S)
    with db._store.short() as plain:
        assert plain.scalar(select(stock.c.count)) == 80


def test_block_in_a_callers_transaction_changes_the_memory_when_it_commits(where: Place) -> None:
    db = where.open()
    stock = declare(db)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 5}))
    db.own(stock)
    with db.connection() as connection:
        for count, end in ((6, connection.rollback), (7, connection.commit)):
            with db.transaction(connection=connection) as t:
                t.update(stock, 1, count=count)
            end()
    assert db.run(lambda t: t.get(stock, 1))["count"] == 7  # type: ignore[index]


def test_owning_waits_for_those_who_use_the_table_here(where: Place) -> None:
    db = where.open()
    stock = declare(db)
    with db.transaction() as t:
        t.insert(stock, {"id": 1, "count": 5})
        owning = in_thread(db.own, stock)
        until(lambda: db._forest.locks.counters.waits > 0)
        assert not owning.done()
    owning.result(PATIENCE_S)
    assert db.run(lambda t: t.get(stock, 1))["count"] == 5  # type: ignore[index]


def test_table_that_another_process_owns_is_refused(shared: Place) -> None:
    one, other = shared.open(), shared.open()
    mine, yours = declare(one), declare(other)
    one.own(mine)
    for use in (
        lambda t: t.get(yours, 1),
        lambda t: t.insert(yours, {"id": 1, "count": 1}),
        lambda t: t.query(select(yours)),
    ):
        with pytest.raises(TableOwned, match=f"process {os.getpid()} on"):
            other.run(use)
    with pytest.raises(TableOwned):
        other.own(yours)
    one.close()
    other.run(lambda t: t.insert(yours, {"id": 1, "count": 1}))
    other.own(yours)


def test_table_that_another_process_uses_cannot_be_owned(shared: Place) -> None:
    one, other = shared.open(), shared.open()
    mine, yours = declare(one), declare(other)
    other.run(lambda t: t.get(yours, 1))
    one.run(lambda t: t.get(mine, 1))
    with pytest.raises(TableOwned, match="stock"):
        one.own(mine)
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))  # it can be used as before
    with pytest.raises(TableOwned, match="stock"):
        other.own(yours)
    other.close()
    one.own(mine)


def test_owner_that_lost_its_lock_to_another_is_told_before_it_writes(shared: Place) -> None:
    one, other = shared.open(), shared.open()
    mine, yours = declare(one), declare(other)
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))
    one.own(mine)
    lost = one._store._ownership._connection  # type: ignore[attr-defined]
    pid = lost.connection.driver_connection.info.backend_pid
    with other._store.short() as plain:
        plain.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        until(lambda: not plain.scalar(text(f"SELECT count(*) FROM pg_locks WHERE pid = {pid}")))
    other.own(yours)
    other.run(lambda t: t.update(yours, 1, count=2))
    with pytest.raises(TableOwned, match="another owner or user since"):
        one.run(lambda t: t.update(mine, 1, count=100))
    assert other.run(lambda t: t.get(yours, 1))["count"] == 2  # type: ignore[index]
    other.close()
    one.own(mine)
    assert one.run(lambda t: t.get(mine, 1))["count"] == 2  # type: ignore[index]


def test_rows_are_read_anew_after_a_commit_of_unknown_outcome(shared: Place) -> None:
    db = shared.open()
    stock = declare(db)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 1}))
    db.own(stock)
    owned = db._store.owned(db._forest.tables.spec(stock))
    assert owned is not None
    with db._store.short() as plain:
        plain.execute(stock.update().values(count=2))
    owned.forget()
    assert db.run(lambda t: t.get(stock, 1))["count"] == 2  # type: ignore[index]


OWN_AND_WAIT = """
import sys
from sqlalchemy import Column, Integer, String, Table
import activedb as adb
db = adb.connect(sys.argv[1], db_schema=sys.argv[2])
stock = Table("stock", db.metadata, Column("id", Integer, primary_key=True),
              Column("count", Integer, nullable=False), Column("name", String(10), unique=True))
db.own(stock)
db.run(lambda t: t.insert(stock, {"id": 1, "count": 42}))
print("owned", flush=True)
sys.stdin.readline()
"""


@pytest.mark.crash
def test_table_of_a_killed_owner_can_be_owned_with_all_it_committed(shared: Place) -> None:
    db = shared.open()
    stock = declare(db)
    assert shared._schema is not None
    owner = subprocess.Popen(
        [sys.executable, "-c", OWN_AND_WAIT, shared._url, shared._schema],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        with pytest.raises(TableOwned, match=f"process {owner.pid} on"):
            db.own(stock)
        owner.send_signal(signal.SIGKILL)
        owner.wait(PATIENCE_S)
        until(lambda: _owned(db, stock))
    finally:
        owner.kill()
        owner.communicate()
    assert db.run(lambda t: t.get(stock, 1))["count"] == 42  # type: ignore[index]


def _owned(db: adb.Database, table: Table) -> bool:
    try:
        db.own(table)
    except TableOwned:
        return False
    return True
