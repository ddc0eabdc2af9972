"""Transactions inside the caller's own connection or session, which only the caller commits."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    ForeignKey,
    Integer,
    String,
    Table,
    create_engine,
    func,
    select,
    text,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Session, sessionmaker

import activedb as adb
from activedb.errors import (
    ActiveDBError,
    ConfigurationError,
    RuleFailed,
    TransactionCancelled,
    TransactionStateError,
    UniqueViolation,
)
from lockmgr import LockManager, LockTable
from tests.databases import PATIENCE_S, in_thread, lock_waits, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.databases import Place

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def db(where: Place) -> adb.Database:
    return where.open(lock_timeout_ms=5_000)


@pytest.fixture
def accounts(db: adb.Database) -> Table:
    table = Table(
        "accounts",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("balance", Integer, nullable=False),
        Column("owner", String(20), unique=True),
    )
    db.create_all()
    db.run(lambda t: t.insert(table, {"id": 1, "balance": 100, "owner": "ann"}))
    return table


def balance(db: adb.Database, table: Table, key: int = 1) -> int | None:
    row = db.run(lambda t: t.get(table, key))
    return None if row is None else row["balance"]


def of_caller(connection: Connection, table: Table, key: int = 1) -> int | None:
    return connection.scalar(select(table.c.balance).where(table.c.id == key))


def test_block_writes_into_the_callers_transaction_which_commits_it(
    db: adb.Database, accounts: Table
) -> None:
    with db.connection() as connection:
        connection.execute(update(accounts).values(balance=110))
        with db.transaction(connection=connection) as t:
            assert t.get(accounts, 1, for_update=True)["balance"] == 110  # type: ignore[index]
            t.update(accounts, 1, balance=120)
            t.insert(accounts, {"id": 2, "balance": 7})
        assert of_caller(connection, accounts) == 120
        connection.execute(update(accounts).values(balance=accounts.c.balance + 1))
        with db.transaction(connection=connection) as t:
            assert t.get(accounts, 1)["balance"] == 121  # type: ignore[index]
            assert t.query(select(accounts.c.balance).order_by(accounts.c.id)) == [(121,), (8,)]
        connection.commit()
    assert (balance(db, accounts), balance(db, accounts, 2)) == (121, 8)


def test_rollback_of_the_caller_undoes_the_blocks(db: adb.Database, accounts: Table) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=0)
        connection.rollback()
    assert balance(db, accounts) == 100
    assert db._forest.locks.dump() == "empty"


def test_connection_closed_without_a_commit_undoes_the_blocks(
    db: adb.Database, accounts: Table
) -> None:
    with db.connection() as connection, db.transaction(connection=connection) as t:
        t.update(accounts, 1, balance=0)
    assert balance(db, accounts) == 100


def test_block_that_raises_is_undone_alone(db: adb.Database, accounts: Table) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=50)
        with pytest.raises(ZeroDivisionError), db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=0)
            raise ZeroDivisionError
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=60)
            t.abort("not so")
        assert of_caller(connection, accounts) == 50
        connection.commit()
    assert balance(db, accounts) == 50


def test_refused_row_undoes_its_block_alone(db: adb.Database, accounts: Table) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=50)
        with pytest.raises(UniqueViolation), db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=0)
            t.insert(accounts, {"id": 2, "balance": 0, "owner": "ann"})
        assert of_caller(connection, accounts) == 50
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=51)
        connection.commit()
    assert balance(db, accounts) == 51


def test_locks_are_kept_until_the_caller_commits(db: adb.Database, accounts: Table) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=50)
        before = lock_waits(db)
        other = in_thread(balance, db, accounts)
        until(lambda: lock_waits(db) > before)
        assert not other.done()
        connection.commit()
    assert other.result(PATIENCE_S) == 50


def test_subtransactions_and_parallel_children_run_inside_the_block(
    db: adb.Database, accounts: Table
) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            for key in range(10, 15):
                t.spawn(lambda s, key: s.insert(accounts, {"id": key, "balance": key}), key)
            with t.subtransaction() as s:
                s.update(accounts, 1, balance=0)
                s.abort("undone")
        connection.commit()
    assert [balance(db, accounts, key) for key in (1, 10, 14)] == [100, 10, 14]


def test_rules_act_in_the_callers_transaction(db: adb.Database, accounts: Table) -> None:
    log = Table("log", db.metadata, Column("id", Integer, primary_key=True), Column("x", Integer))
    db.create_all()

    @db.rule(on=adb.updated(accounts))
    def note(t: Transaction, o: Occurrence) -> None:
        t.insert(log, {"id": 1, "x": o.new["balance"]})

    @db.rule(on=adb.updated(accounts), coupling="deferred")
    def note_later(t: Transaction, o: Occurrence) -> None:
        t.insert(log, {"id": 2, "x": t.get(log, 1)["x"] + 1})  # type: ignore[index]

    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=5)
        rows = connection.execute(select(log).order_by(log.c.id)).all()
        assert rows == [(1, 5), (2, 6)]
        connection.rollback()
    assert db.row_counts()["log"] == 0


def test_savepoint_the_caller_goes_back_to_undoes_what_came_after(
    db: adb.Database, accounts: Table
) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=50)
        outer = connection.begin_nested()
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=40)
        inner = connection.begin_nested()
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=30)
            t.insert(accounts, {"id": 2, "balance": 0})
        inner.rollback()
        with db.transaction(connection=connection) as t:
            assert t.get(accounts, 1)["balance"] == 40  # type: ignore[index]
            assert t.get(accounts, 2) is None
            t.update(accounts, 1, balance=41)
        outer.commit()
        connection.commit()
    assert (balance(db, accounts), balance(db, accounts, 2)) == (41, None)


def test_outer_savepoint_takes_the_inner_one_along(db: adb.Database, accounts: Table) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=50)
        outer = connection.begin_nested()
        inner = connection.begin_nested()
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=30)
        inner.commit()
        outer.rollback()
        with db.transaction(connection=connection) as t:
            assert t.get(accounts, 1)["balance"] == 50  # type: ignore[index]
        connection.commit()
    assert balance(db, accounts) == 50


def test_two_transactions_of_one_connection_follow_each_other(
    db: adb.Database, accounts: Table
) -> None:
    with db.connection() as connection:
        for n in range(5):
            with db.transaction(connection=connection) as t:
                t.update(accounts, 1, balance=n)
            connection.commit()
    assert balance(db, accounts) == 4
    assert db.counters()["transactions_committed"] >= 5


def test_commit_inside_an_open_block_is_refused(db: adb.Database, accounts: Table) -> None:
    with db.connection() as connection:
        with (
            pytest.raises(TransactionStateError, match="open subtransaction"),
            db.transaction(connection=connection) as t,
        ):
            t.update(accounts, 1, balance=0)
            connection.commit()
        connection.rollback()
    assert balance(db, accounts) == 100


def test_session_and_block_see_each_other(db: adb.Database, accounts: Table) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Account(Base):
        __table__ = accounts

    with db.connection() as connection, Session(connection) as session:
        mine = session.get(Account, 1)
        assert mine is not None
        mine.balance = 70
        session.flush()
        with db.transaction(connection=session) as t:
            assert t.get(Account, 1)["balance"] == 70  # type: ignore[index]
            t.update(Account, 1, balance=71)
        session.refresh(mine)
        assert mine.balance == 71
        session.commit()
    assert balance(db, accounts) == 71


def test_block_in_an_open_block_is_refused(db: adb.Database, accounts: Table) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=50)
            with pytest.raises(TransactionStateError, match="open over this connection"):
                db.transaction(connection=connection)
        connection.commit()
    assert balance(db, accounts) == 50


def test_savepoint_in_an_open_block_is_refused(db: adb.Database, accounts: Table) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            with pytest.raises(TransactionStateError, match="savepoint"):
                connection.begin_nested()
            t.update(accounts, 1, balance=50)
        connection.commit()
    assert balance(db, accounts) == 50


@pytest.mark.parametrize("in_words", [False, True])
def test_savepoint_gone_back_to_withdraws_what_its_blocks_raised(
    db: adb.Database, accounts: Table, in_words: bool
) -> None:
    first, second = adb.event("FIRST"), adb.event("SECOND")
    seen: list[Any] = []
    db.rule(on=adb.seq(first, second), name="pair")(lambda t, o: seen.append(o))
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=50)
        if in_words:
            connection.execute(text("SAVEPOINT Mine"))
        else:
            nested = connection.begin_nested()
        with db.transaction(connection=connection):
            db.signal("FIRST")
        if in_words:
            connection.execute(text("ROLLBACK TO SAVEPOINT mine"))
        else:
            nested.rollback()
        with db.transaction(connection=connection):
            db.signal("SECOND")
        connection.commit()
    assert seen == []
    until(lambda: db._forest.locks.dump() == "empty")


def test_savepoint_older_than_the_first_block_undoes_it_all(
    db: adb.Database, accounts: Table
) -> None:
    with db.connection() as connection:
        connection.execute(update(accounts).values(balance=7))
        nested = connection.begin_nested()
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=50)
        top = t.parent
        nested.rollback()
        assert top is not None
        assert top.state == "aborted"
        with db.transaction(connection=connection) as t:
            assert t.get(accounts, 1)["balance"] == 7  # type: ignore[index]
        connection.commit()
    assert balance(db, accounts) == 7


def test_commit_refused_inside_savepoint_and_block_gives_every_lock_back(
    db: adb.Database, accounts: Table
) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.get(accounts, 1)
        connection.begin_nested()
        with (
            pytest.raises(TransactionStateError, match="open subtransaction"),
            db.transaction(connection=connection) as t,
        ):
            t.update(accounts, 1, balance=0)
            connection.commit()
        assert db._forest.locks.dump() == "empty"
        connection.rollback()
    assert balance(db, accounts) == 100


def test_commit_that_is_refused_here_leaves_nothing_for_the_next_one(
    db: adb.Database, accounts: Table
) -> None:
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=0)
        top = t.parent
        assert top is not None
        top.cancel("no longer wanted")
        with pytest.raises(TransactionCancelled):
            connection.commit()
        connection.rollback()
        assert of_caller(connection, accounts) == 100
        with db.transaction(connection=connection) as t:
            t.insert(accounts, {"id": 2, "balance": 2})
        connection.commit()
    assert [balance(db, accounts, key) for key in (1, 2)] == [100, 2]


# -- what only a server has ----------------------------------------------------------------


@pytest.fixture
def own_engine(where: Place, db: adb.Database, accounts: Table) -> Any:
    if where.is_memory:
        pytest.skip("memory has connections of its own")
    options = {"options": f"-csearch_path={where._schema}"}
    engine = create_engine(where._url, connect_args=options)
    yield engine
    engine.dispose()


def test_connection_of_the_callers_own_engine(
    own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    with own_engine.begin() as connection, db.transaction(connection=connection) as t:
        t.update(accounts, 1, balance=1)
    assert balance(db, accounts) == 1


def test_commit_that_the_server_refuses_aborts(
    own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    lines = Table(
        "lines",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("account", ForeignKey("accounts.id", deferrable=True, initially="DEFERRED")),
    )
    db.create_all()
    with own_engine.connect() as connection:
        with db.transaction(connection=connection) as t:
            t.insert(lines, {"id": 1, "account": 99})
        top = t.parent
        assert top is not None
        with pytest.raises(IntegrityError):
            connection.commit()
        connection.rollback()
    until(lambda: top.state == "aborted")
    assert db.row_counts()["lines"] == 0
    assert db._forest.locks.dump() == "empty"


def test_lost_connection_undoes_the_blocks(
    own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    with own_engine.connect() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=0)
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        with db._store.short() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        with pytest.raises(ActiveDBError), db.transaction(connection=connection) as t:
            t.get(accounts, 1, for_update=True)
            t.query(select(accounts))
        connection.rollback()
        assert balance(db, accounts) == 100
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=3)
        connection.commit()
    assert balance(db, accounts) == 3


def test_commit_over_a_connection_with_another_time_zone_is_known(
    where: Place, own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    options = {"options": f"-csearch_path={where._schema} -ctimezone=Asia/Tokyo"}
    engine = create_engine(where._url, connect_args=options)
    with engine.connect() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=1)
        top = t.parent
        assert top is not None
        connection.commit()
        until(lambda: top.state.is_final)
        assert top.state == "committed"
    engine.dispose()


def test_locks_of_a_connection_that_is_dropped_without_a_close_are_given_back(
    where: Place, own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    options = {"options": f"-csearch_path={where._schema}"}
    engine = create_engine(where._url, connect_args=options, pool_size=1, max_overflow=0)

    def forgetful() -> None:
        session = Session(engine)
        with db.transaction(connection=session) as t:
            t.update(accounts, 1, balance=1)

    forgetful()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    until(lambda: db._forest.locks.dump() == "empty")
    with engine.connect() as connection:  # the only one of its pool
        assert of_caller(connection, accounts) == 100
    engine.dispose()


def test_table_lock_lost_with_a_savepoint_is_taken_anew(
    where: Place, own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    other = where.open()
    theirs = accounts.to_metadata(other.metadata)
    rows = select(func.count()).select_from(accounts)
    with own_engine.connect() as connection:
        with db.transaction(connection=connection) as t:
            t.get(accounts, 1)
        nested = connection.begin_nested()
        with db.transaction(connection=connection) as t:
            t.query(rows)
        nested.rollback()
        with db.transaction(connection=connection) as t:
            assert t.query(rows) == [(1,)]
            inserting = in_thread(
                lambda: other.run(lambda u: u.insert(theirs, {"id": 9, "balance": 9}))
            )
            until(lambda: _waits_at_the_server(db))
            assert t.query(rows) == [(1,)]
        connection.commit()
    inserting.result(PATIENCE_S)


def _waits_at_the_server(db: adb.Database) -> bool:
    with db._store.short() as connection:
        return bool(connection.scalar(text("SELECT count(*) FROM pg_locks WHERE NOT granted")))


def test_close_right_after_the_callers_commit_leaves_nothing_behind(
    own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    with own_engine.connect() as connection:
        for end in (connection.commit, lambda: None):
            with db.transaction(connection=connection) as t:
                t.update(accounts, 1, balance=1)
            end()
        db.close()
        connection.commit()  # of a block whose database object is closed
    assert not [t.name for t in threading.enumerate() if t.name == "activedb-outcome"]
    assert db._store._short.pool.checkedin() == 0  # type: ignore[attr-defined]


def test_connection_that_reads_from_a_snapshot_is_refused(own_engine: Any, db: Any) -> None:
    engine = own_engine.execution_options(isolation_level="REPEATABLE READ")
    with (
        engine.connect() as connection,
        pytest.raises(ConfigurationError, match=r"REPEATABLE READ.*READ COMMITTED"),
    ):
        db.transaction(connection=connection)


def test_session_whose_flush_failed_is_refused_until_its_rollback(
    own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Account(Base):
        __table__ = accounts

    with Session(own_engine) as session:
        session.add(Account(id=1, balance=0))
        with pytest.raises(IntegrityError):
            session.flush()
        with pytest.raises(TransactionStateError, match=r"rollback\(\)"):
            db.transaction(connection=session)
        session.rollback()
        with db.transaction(connection=session) as t:
            t.update(accounts, 1, balance=8)
        session.commit()
    assert balance(db, accounts) == 8


def test_session_with_several_engines_is_refused(
    own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    with (
        Session(binds={accounts: own_engine}) as session,
        pytest.raises(ConfigurationError, match="bind_arguments"),
    ):
        db.transaction(connection=session)


def test_connection_that_was_invalidated_is_refused_until_its_rollback(
    own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    with own_engine.connect() as connection:
        connection.begin()
        connection.invalidate()
        with pytest.raises(TransactionStateError, match=r"rollback\(\)"):
            db.transaction(connection=connection)
        connection.rollback()
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=3)
        connection.commit()
    assert balance(db, accounts) == 3


def test_connection_to_another_database_is_refused(where: Place, db: adb.Database) -> None:
    engine = create_engine("sqlite://" if where.is_memory else where._url)
    with (
        engine.connect() as connection,
        pytest.raises(ConfigurationError, match=r"db\.connection|another database or schema"),
    ):
        db.transaction(connection=connection)
    engine.dispose()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda c: c.close(), "closed"),
        (lambda c: c.execution_options(isolation_level="AUTOCOMMIT"), "AUTOCOMMIT"),
        (lambda c: c.begin_twophase(), "two-phase"),
    ],
)
def test_connection_without_a_usable_transaction_is_refused(
    own_engine: Any, db: adb.Database, spoil: Callable[[Connection], object], message: str
) -> None:
    with own_engine.connect() as connection:
        spoil(connection)
        with pytest.raises(ConfigurationError, match=message):
            db.transaction(connection=connection)


def test_what_is_no_connection_is_refused(db: adb.Database) -> None:
    with pytest.raises(ConfigurationError, match="not str"):
        db.transaction(connection="postgresql://localhost")
    with pytest.raises(ConfigurationError, match="not int"):
        db.watch(3)


# -- flushes of ordinary sessions ----------------------------------------------------------


def test_flushes_of_a_session_raise_data_events(db: adb.Database, accounts: Table) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Account(Base):
        __table__ = accounts

    seen: list[tuple[str, Any, Any]] = []

    @db.rule(on=adb.inserted(accounts))
    def added(t: Transaction, o: Occurrence) -> None:
        seen.append(("insert", None, o.new["balance"]))
        if o.new["id"] < 10:
            t.insert(accounts, {"id": o.new["id"] + 10, "balance": -o.new["balance"]})

    @db.rule(on=adb.updated(accounts, "balance"))
    def changed(t: Transaction, o: Occurrence) -> None:
        seen.append(("update", o.old["balance"], o.new["balance"]))

    @db.rule(on=adb.deleted(accounts))
    def gone(t: Transaction, o: Occurrence) -> None:
        seen.append(("delete", o.old["balance"], None))

    make = sessionmaker()
    db.watch(make)
    with db.connection() as connection, make(bind=connection) as session:
        session.add(Account(id=2, balance=5))
        session.flush()
        mine = session.get(Account, 1)
        assert mine is not None
        mine.balance = 90
        session.flush()
        mine.owner = "bea"  # no rule listens to that column
        session.flush()
        session.delete(mine)
        session.commit()
    assert seen == [
        ("insert", None, 5),
        ("insert", None, -5),
        ("update", 100, 90),
        ("delete", 90, None),
    ]
    assert [balance(db, accounts, key) for key in (1, 2, 12)] == [None, 5, -5]


def test_session_watched_in_several_ways_is_heard_once(db: adb.Database, accounts: Table) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Account(Base):
        __table__ = accounts

    seen: list[Any] = []
    db.rule(on=adb.updated(accounts), name="u")(lambda t, o: seen.append(o.new["balance"]))
    db.rule(on=adb.inserted(accounts), name="i")(lambda t, o: seen.append("inserted"))
    make = sessionmaker()
    for sessions in (make, make, Session):
        db.watch(sessions)
    with db.connection() as connection, make(bind=connection) as session:
        mine = session.get(Account, 1)
        assert mine is not None
        mine.balance = 6
        session.commit()
    assert seen == [6]
    db._forest.watched.close()
    with db.connection() as connection, Session(connection) as session:
        session.add(Account(id=5, balance=1))
        session.commit()
    assert seen == [6]


def test_flush_that_changes_a_key_is_a_deletion_and_an_insertion(
    db: adb.Database, accounts: Table
) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Account(Base):
        __table__ = accounts

    seen: list[Any] = []
    db.rule(on=adb.deleted(accounts), name="d")(lambda t, o: seen.append(("gone", o.old["id"])))
    db.rule(on=adb.inserted(accounts), name="i")(lambda t, o: seen.append(("new", o.new["id"])))
    make = sessionmaker()
    db.watch(make)
    with db.connection() as connection, make(bind=connection) as session:
        mine = session.get(Account, 1)
        assert mine is not None
        mine.id = 44
        session.commit()
    assert seen == [("gone", 1), ("new", 44)]


def test_flush_in_a_savepoint_whose_rule_fails_is_undone_alone(
    db: adb.Database, accounts: Table
) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Account(Base):
        __table__ = accounts

    @db.rule(on=adb.inserted(accounts))
    def refuse(t: Transaction, o: Occurrence) -> None:
        t.update(accounts, 1, balance=o.new["id"])
        if o.new["id"] == 3:
            raise ValueError("no")

    make = sessionmaker()
    db.watch(make)
    with db.connection() as connection:
        connection.begin()
        with make(bind=connection, join_transaction_mode="control_fully") as session:
            session.add(Account(id=2, balance=2))
            session.flush()
            with pytest.raises(RuleFailed), session.begin_nested():
                session.add(Account(id=3, balance=3))
            session.add(Account(id=4, balance=4))
            session.commit()
    assert [balance(db, accounts, key) for key in (1, 2, 3, 4)] == [4, 2, None, 4]


def test_flush_of_more_rows_than_one_statement_can_name(own_engine: Any, db: adb.Database) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    names = "abcde"  # 5 parameters for each key
    keys = [Column(name, Integer, primary_key=True, autoincrement=False) for name in names]

    class Place(Base):
        __table__ = Table("places", db.metadata, *keys)

    db.create_all()
    db._forest.locks = LockManager(LockTable())  # the verifying one would take an hour
    make = sessionmaker(own_engine)
    db.watch(make)
    count = 65_535 // len(names) + 1
    with make() as session:
        session.add_all(Place(a=n, b=0, c=0, d=0, e=0) for n in range(count))
        session.commit()
    assert db.row_counts()["places"] == count


def test_rule_that_fails_fails_the_flush(db: adb.Database, accounts: Table) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Account(Base):
        __table__ = accounts

    @db.rule(on=adb.inserted(accounts))
    def refuse(t: Transaction, o: Occurrence) -> None:
        raise ValueError("no")

    make = sessionmaker()
    db.watch(make)
    with db.connection() as connection:
        with make(bind=connection) as session:
            session.add(Account(id=2, balance=5))
            with pytest.raises(RuleFailed, match="no"):
                session.flush()
        connection.rollback()
    assert balance(db, accounts, 2) is None
    assert db._forest.locks.dump() == "empty"
