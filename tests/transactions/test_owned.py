"""Tables that one process keeps in its memory."""

from __future__ import annotations

import enum
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    JSON,
    Column,
    Computed,
    Enum,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    make_url,
    select,
    text,
)
from sqlalchemy.orm import DeclarativeBase, sessionmaker

import activedb as adb
from activedb.errors import (
    ConnectionLost,
    ConstraintViolation,
    DefinitionError,
    TableOwned,
    TransactionTimeout,
)
from tests.databases import PATIENCE_S, in_thread, until
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from activedb.store.session._ownership import OwnedTable
    from tests.databases import Place


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


def test_owned_table_reads_and_writes_like_any_other(where: Place) -> None:
    db = where.open()
    stock = declare(db)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 5}))
    db.admin.own(stock)
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


def test_owned_rows_are_read_without_the_server(there: Place) -> None:
    db = there.open()
    stock = declare(db)
    db.run(lambda t: [t.insert(stock, {"id": n, "count": n}) for n in range(10)])
    db.admin.own(stock)
    with db.transaction() as t:
        assert t.get_many(stock, range(20), for_update=True)[7] is not None
        assert node_of(t).hierarchy.session.backend is None  # no connection was needed
        t.update(stock, 7, count=0)
        assert node_of(t).hierarchy.session.backend is None
    with db._store.short() as plain:
        assert plain.scalar(select(stock.c.count).where(stock.c.id == 7)) == 0


def test_commit_that_fails_leaves_the_memory_as_it_was(where: Place) -> None:
    db = where.open()
    stock = declare(db)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 5, "name": "a"}))
    db.admin.own(stock)
    with pytest.raises(ConstraintViolation), db.transaction() as t:
        t.update(stock, 1, count=9)
        t.insert(stock, {"id": 2, "count": 1, "name": "a"})
    assert db.run(lambda t: t.get(stock, 1)) == {"id": 1, "count": 5, "name": "a"}
    assert db.run(lambda t: t.get(stock, 2)) is None


def test_owned_table_counts_right_from_many_threads(where: Place) -> None:
    db = where.open(retries_max=50)
    stock = declare(db)
    db.admin.own(stock)
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
    db.admin.own(stock)
    with db.connection() as connection:
        for count, end in ((6, connection.rollback), (7, connection.commit)):
            with db.transaction(connection=connection) as t:
                t.update(stock, 1, count=count)
            end()
    assert db.run(lambda t: t.get(stock, 1))["count"] == 7  # type: ignore[index]


def test_blocks_of_one_caller_see_each_other_in_an_owned_table(where: Place) -> None:
    db = where.open()
    stock = declare(db)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 5}))
    db.admin.own(stock)
    with db.connection() as connection:
        for _ in range(2):
            with db.transaction(connection=connection) as t:
                row = t.get(stock, 1, for_update=True)
                assert row is not None
                t.update(stock, 1, count=row["count"] + 1)
        nested = connection.begin_nested()
        with db.transaction(connection=connection) as t:
            t.update(stock, 1, count=100)
            t.insert(stock, {"id": 2, "count": 100})
        nested.rollback()
        connection.commit()
    assert db.run(lambda t: t.get(stock, 1))["count"] == 7  # type: ignore[index]
    assert db.run(lambda t: t.get(stock, 2)) is None


def test_flushes_of_a_watched_session_reach_the_memory(where: Place) -> None:
    db = where.open()
    stock = declare(db)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 5}))
    db.admin.own(stock)

    class Base(DeclarativeBase):
        metadata = db.metadata

    class Stock(Base):
        __table__ = stock

    make = sessionmaker()
    db.watch(make)
    for count, end in ((6, "commit"), (7, "rollback"), (8, "commit")):
        with db.connection() as connection, make(bind=connection) as session:
            item: Any = session.get(Stock, 1)
            assert item is not None
            item.count = count
            session.flush()
            getattr(session, end)()
        expected = 6 if count == 7 else count
        assert db.run(lambda t: t.get(stock, 1))["count"] == expected  # type: ignore[index]


class Colour(enum.Enum):
    RED = 1


def test_rows_that_the_server_changes_as_it_stores_them_are_read_back(where: Place) -> None:
    db = where.open()
    table = Table(
        "odd",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("colour", Enum(Colour)),
        Column("pair", JSON),
        Column("twice", Integer, Computed("id * 2", persisted=True)),
    )
    db.create_all()
    db.admin.own(table)
    db.run(lambda t: t.insert(table, {"id": 4, "colour": "RED", "pair": (1, 2)}))
    row = db.run(lambda t: t.get(table, 4))
    assert row == {"id": 4, "colour": Colour.RED, "pair": [1, 2], "twice": 8}
    db.run(lambda t: t.delete(table, 4))
    assert db.run(lambda t: t.get(table, 4)) is None


def test_table_whose_rows_the_server_deletes_by_itself_cannot_be_owned(there: Place) -> None:
    db = there.open()
    declare(db)
    lines = Table(
        "lines",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("stock", ForeignKey("stock.id", ondelete="CASCADE")),
    )
    db.create_all()
    with pytest.raises(DefinitionError, match="foreign keys with an action"):
        db.admin.own(lines)
    db.run(lambda t: t.insert(lines, {"id": 1}))  # it can be used


def test_owned_table_may_be_declared_with_and_without_its_schema(there: Place) -> None:
    db = there.open()
    stock = declare(db)
    assert there._schema is not None
    again = stock.to_metadata(MetaData(), schema=there._schema)
    db.run(lambda t: t.insert(again, {"id": 1, "count": 1}))
    db.admin.own(stock)
    db.run(lambda t: t.update(again, 1, count=2))
    assert db.run(lambda t: (t.get(stock, 1), t.get(again, 1), t.query(select(again.c.count)))) == (
        {"id": 1, "count": 2, "name": None},
        {"id": 1, "count": 2, "name": None},
        [(2,)],
    )


@pytest.mark.parametrize("first", ["owned", "used"])
def test_owned_table_found_in_two_ways_is_refused(database_url: str, first: str) -> None:
    plain = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with plain.connect() as connection:
        for schema in ("one", "two"):
            connection.execute(text(f"CREATE SCHEMA {schema}"))
    plain.dispose()
    path = make_url(database_url).update_query_dict({"options": "-csearch_path=one,two"})
    with adb.connect(path.render_as_string(hide_password=False)) as db:
        again = Table("stock", db.metadata, Column("id", Integer, primary_key=True), schema="two")
        db.create_all()
        # Found by the search path.
        stock = Table("stock", MetaData(), Column("id", Integer, primary_key=True))
        uses: list[Callable[[], object]] = [
            lambda: db.admin.own(stock),
            lambda: db.run(lambda t: t.get(again, 1)),
        ]
        if first == "used":
            uses.reverse()
        uses[0]()
        with pytest.raises(DefinitionError, match="declared twice"):
            uses[1]()


def test_owning_waits_for_those_who_use_the_table_here(where: Place) -> None:
    db = where.open()
    stock = declare(db)
    with db.transaction() as t:
        t.insert(stock, {"id": 1, "count": 5})
        owning = in_thread(db.admin.own, stock)
        until(lambda: db._forest.locks.counters.waits > 0)
        assert not owning.done()
    owning.result(PATIENCE_S)
    assert db.run(lambda t: t.get(stock, 1))["count"] == 5  # type: ignore[index]


def test_table_that_another_process_owns_is_refused(there: Place) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    one.admin.own(mine)
    for use in (
        lambda t: t.get(yours, 1),
        lambda t: t.insert(yours, {"id": 1, "count": 1}),
        lambda t: t.query(select(yours)),
    ):
        with pytest.raises(TableOwned, match=f"process {os.getpid()} on"):
            other.run(use)
    with pytest.raises(TableOwned):
        other.admin.own(yours)
    one.close()
    other.run(lambda t: t.insert(yours, {"id": 1, "count": 1}))
    other.admin.own(yours)


def test_table_that_another_process_uses_cannot_be_owned(there: Place) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    other.run(lambda t: t.get(yours, 1))
    one.run(lambda t: t.get(mine, 1))
    with pytest.raises(TableOwned, match="stock"):
        one.admin.own(mine)
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))  # it can be used as before
    with pytest.raises(TableOwned, match="stock"):
        other.admin.own(yours)
    other.close()
    one.admin.own(mine)


def test_owner_that_lost_its_lock_to_another_is_told_before_it_writes(there: Place) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))
    one.admin.own(mine)
    lost: Any = one._store.ownership._connection  # type: ignore[union-attr]
    pid = lost.connection.driver_connection.info.backend_pid
    with other._store.short() as plain:
        plain.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        until(lambda: not plain.scalar(text(f"SELECT count(*) FROM pg_locks WHERE pid = {pid}")))
    other.admin.own(yours)
    other.run(lambda t: t.update(yours, 1, count=2))
    with pytest.raises(TableOwned, match="another owner or user since"):
        one.run(lambda t: t.update(mine, 1, count=100))
    assert other.run(lambda t: t.get(yours, 1))["count"] == 2  # type: ignore[index]
    other.close()
    one.admin.own(mine)
    assert one.run(lambda t: t.get(mine, 1))["count"] == 2  # type: ignore[index]


def lose_the_locks(of: adb.Database, seen_by: adb.Database) -> None:
    """End the connection with the advisory locks of a database object, which hears nothing."""
    lost: Any = of._store.ownership._connection  # type: ignore[union-attr]
    pid = lost.connection.driver_connection.info.backend_pid
    with seen_by._store.short() as plain:
        plain.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        until(lambda: not plain.scalar(text(f"SELECT count(*) FROM pg_locks WHERE pid = {pid}")))


def test_owner_that_lost_its_lock_to_a_mere_user_is_told_before_it_writes(there: Place) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))
    one.admin.own(mine)
    lose_the_locks(one, other)
    other.run(lambda t: t.update(yours, 1, count=100))

    def add(t: adb.Transaction) -> None:
        row = t.get(mine, 1, for_update=True)
        assert row is not None
        t.update(mine, 1, count=row["count"] + 1)

    with pytest.raises(TableOwned, match="another owner or user since"):
        one.run(add)
    one.run(add)  # a user like the other one now
    assert other.run(lambda t: t.get(yours, 1))["count"] == 101  # type: ignore[index]


@pytest.mark.parametrize("when", ["between", "within"])
def test_user_that_lost_its_lock_to_an_owner_is_told_before_it_writes(
    there: Place, when: str
) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))

    def lose() -> None:
        lose_the_locks(one, other)
        other.admin.own(yours)

    def add(t: adb.Transaction) -> None:
        row = t.get(mine, 1, for_update=True)
        assert row is not None
        if when == "within":
            in_thread(lose).result(PATIENCE_S)
        t.update(mine, 1, count=row["count"] + 1)

    if when == "between":
        lose()
    with pytest.raises(TableOwned, match="kept by one process alone"):
        one.run(add)
    found = other.run(lambda t: t.get(yours, 1))
    assert found is not None
    assert found["count"] == 1
    other.close()
    when = "before"
    one.run(add)


def test_user_that_lost_its_lock_takes_it_again(there: Place) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))
    lose_the_locks(one, other)
    found = one.run(lambda t: t.get(mine, 1))
    assert found is not None
    assert found["count"] == 1
    with pytest.raises(TableOwned):
        other.admin.own(yours)


def test_owner_that_lost_its_lock_and_was_told_stays_out(there: Place) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))
    one.admin.own(mine)
    lose_the_locks(one, other)
    other.admin.own(yours)
    for message in ("another owner or user since", "kept by one process alone"):
        with pytest.raises(TableOwned, match=message):
            one.run(lambda t: t.update(mine, 1, count=100))
    found = other.run(lambda t: t.get(yours, 1))
    assert found is not None
    assert found["count"] == 1


def test_callers_commit_is_refused_when_the_table_is_not_ours_any_more(there: Place) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))
    one.admin.own(mine)
    lose_the_locks(one, other)
    other.run(lambda t: t.get(yours, 1))
    with one.connection() as connection:
        with one.transaction(connection=connection) as t:
            t.get(mine, 1, for_update=True)
        connection.execute(mine.update().values(count=100))
        with pytest.raises(TableOwned):
            connection.commit()
        connection.rollback()
    found = other.run(lambda t: t.get(yours, 1))
    assert found is not None
    assert found["count"] == 1


def test_new_user_waits_for_the_commit_of_an_owner_that_lost_its_lock(there: Place) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    log, theirs = (
        Table("log", db.metadata, Column("id", Integer, primary_key=True)) for db in (one, other)
    )
    one.create_all()
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))
    one.admin.own(mine)
    lose_the_locks(one, other)
    using: list[Any] = []

    def meanwhile(point: str) -> None:
        if point == "before commit":  # the table has been found to be ours
            using.append(in_thread(lambda: other.run(lambda t: t.update(yours, 1, count=2))))
            with one._store.short() as plain:
                waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
                until(lambda: plain.scalar(waiting))

    def copy(t: adb.Transaction) -> None:  # reads the owned table, and writes another
        row = t.get(mine, 1)
        assert row is not None
        t.insert(log, {"id": row["count"]})

    one._store.trigger = meanwhile
    one.run(copy)
    using[0].result(PATIENCE_S)
    assert other.run(lambda t: t.get(theirs, 1)) == {"id": 1}


def test_owner_keeps_its_table_when_another_connection_is_lost(there: Place) -> None:
    one, other = there.open(), there.open()
    mine, yours = declare(one), declare(other)
    log = Table("log", one.metadata, Column("id", Integer, primary_key=True))
    one.create_all()
    one.run(lambda t: t.insert(mine, {"id": 1, "count": 1}))
    one.admin.own(mine)
    with pytest.raises(ConnectionLost), one.transaction() as t:
        t.insert(log, {"id": 1})
        with other._store.short() as plain:
            pid = node_of(t).hierarchy.session.backend
            plain.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            until(
                lambda: not plain.scalar(text(f"SELECT count(*) FROM pg_locks WHERE pid = {pid}"))
            )
        t.query(select(log))
    with pytest.raises(TableOwned):
        other.admin.own(yours)
    one.run(lambda t: t.update(mine, 1, count=2))


@contextmanager
def loading(db: adb.Database, owned: OwnedTable) -> Iterator[None]:
    """Another thread has read the rows, and waits with them for the whole block."""
    has_read, may_go_on = threading.Event(), threading.Event()

    def pause(connection: Any, *rest: Any) -> None:
        has_read.set()
        assert may_go_on.wait(2 * PATIENCE_S)

    with db._store.short() as connection:
        event.listen(connection, "after_cursor_execute", pause)
        other = in_thread(owned.load, connection)
        assert has_read.wait(PATIENCE_S)
        try:
            yield
        finally:
            may_go_on.set()
            other.result(PATIENCE_S)


def owned_stock(db: adb.Database) -> OwnedTable:
    stock = declare(db)
    db.run(lambda t: [t.insert(stock, {"id": n, "count": 0}) for n in (1, 2)])
    db.admin.own(stock)
    owned = db._store.ownership.owned(db._forest.tables.spec(stock))
    assert owned is not None
    return owned


def test_rows_committed_while_a_table_is_loaded_are_not_lost(there: Place) -> None:
    db = there.open()
    owned = owned_stock(db)
    newer = {"id": 1, "count": 9, "name": None}
    owned.forget()
    with loading(db, owned):  # a commit does not wait for it: the server may have fallen silent
        in_thread(owned.put, (1,), newer).result(PATIENCE_S)
    assert owned.is_loaded
    assert owned.rows([(1,), (2,)]) == {(1,): newer, (2,): {"id": 2, "count": 0, "name": None}}


@pytest.mark.parametrize("first", ["all", "one"])
@pytest.mark.parametrize("then", ["all", "one"])
def test_rows_in_doubt_while_a_table_is_loaded_are_read_again(
    there: Place, first: str, then: str
) -> None:
    db = there.open()
    owned = owned_stock(db)

    def doubt(which: str) -> None:
        if which == "all":
            owned.forget()
        else:
            owned.doubt({(1,)})

    doubt(first)
    with loading(db, owned):
        in_thread(doubt, then).result(PATIENCE_S)
    assert not owned.is_loaded
    with db._store.short() as connection:
        connection.execute(owned.spec.table.update().values(count=5))
        owned.load(connection)
    assert owned.is_loaded
    assert owned.rows([(1,)])[(1,)]["count"] == 5


@pytest.mark.long
def test_time_limit_ends_a_wait_for_another_thread_that_loads_a_table(there: Place) -> None:
    db = there.open()
    owned = owned_stock(db)
    owned.forget()
    with loading(db, owned):
        read = db.with_timeout(0.05).run
        ended = in_thread(read, lambda t: t.get(owned.spec.table, 1)).exception(PATIENCE_S)
    assert type(ended) is TransactionTimeout, ended


def test_rows_are_read_anew_after_a_commit_of_unknown_outcome(there: Place) -> None:
    db = there.open()
    stock = declare(db)
    db.run(lambda t: t.insert(stock, {"id": 1, "count": 1}))
    db.admin.own(stock)
    owned = db._store.ownership.owned(db._forest.tables.spec(stock))
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
db.admin.own(stock)
db.run(lambda t: t.insert(stock, {"id": 1, "count": 42}))
print("owned", flush=True)
sys.stdin.readline()
"""


@pytest.mark.crash
def test_table_of_a_killed_owner_can_be_owned_with_all_it_committed(there: Place) -> None:
    db = there.open()
    stock = declare(db)
    assert there._schema is not None
    owner = subprocess.Popen(
        [sys.executable, "-c", OWN_AND_WAIT, there._url, there._schema],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "owned\n"
        with pytest.raises(TableOwned, match=f"process {owner.pid} on"):
            db.admin.own(stock)
        owner.send_signal(signal.SIGKILL)
        owner.wait(PATIENCE_S)
        until(lambda: _owned(db, stock))
    finally:
        owner.kill()
        owner.communicate()
    assert db.run(lambda t: t.get(stock, 1))["count"] == 42  # type: ignore[index]


def _owned(db: adb.Database, table: Table) -> bool:
    try:
        db.admin.own(table)
    except TableOwned:
        return False
    return True
