"""Blocks inside the caller's transaction, which only the caller commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table, select, update
from sqlalchemy.orm import DeclarativeBase, Session

import activedb as adb
from activedb.errors import TransactionCancelled, TransactionStateError, UniqueViolation
from tests.databases import PATIENCE_S, in_thread, lock_waits, until
from tests.transactions.joined.reading import balance, of_caller

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction


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
    assert db.admin.row_counts()["log"] == 0


def test_two_transactions_of_one_connection_follow_each_other(
    db: adb.Database, accounts: Table
) -> None:
    with db.connection() as connection:
        for n in range(5):
            with db.transaction(connection=connection) as t:
                t.update(accounts, 1, balance=n)
            connection.commit()
    assert balance(db, accounts) == 4
    assert db.admin.counters()["transactions_committed"] >= 5


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
        mine: Any = session.get(Account, 1)
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
