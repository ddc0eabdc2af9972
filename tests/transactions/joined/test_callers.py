"""Connections and sessions that blocks take over, and what becomes of those that end badly."""

from __future__ import annotations

import gc
import threading
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Connection, ForeignKey, Integer, Table, create_engine, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import DeclarativeBase, Session

import activedb as adb
from activedb.errors import ActiveDBError, ConfigurationError, TransactionStateError
from tests.databases import PATIENCE_S, in_thread, until
from tests.transactions.joined.reading import balance, of_caller

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tests.databases import Place


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
    until(lambda: db._forest.locks.dump() == "empty")  # given back on another thread
    assert top.state == "aborted"
    assert db.admin.row_counts()["lines"] == 0


def test_lost_connection_undoes_the_blocks(
    own_engine: Any, db: adb.Database, accounts: Table
) -> None:
    with own_engine.connect() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=0)
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        with db._store.short() as other:
            other.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": pid})
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


def test_close_while_the_callers_commit_begins_to_be_waited_for(
    own_engine: Any, db: adb.Database, accounts: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing: list[Future[None]] = []
    start = threading.Thread.start

    def start_beside(thread: threading.Thread) -> None:
        if thread.name == "activedb-outcome":
            closing.append(in_thread(db._forest.joined.close))
            until(db._forest.joined.closing.is_set)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_beside)
    with own_engine.connect() as connection:
        with db.transaction(connection=connection) as t:
            t.update(accounts, 1, balance=11)
        connection.commit()
    closing[0].result(PATIENCE_S)


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
