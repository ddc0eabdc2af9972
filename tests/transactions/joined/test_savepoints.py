"""Blocks and the savepoints of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Table, func, select, text, update

import activedb as adb
from activedb.errors import TransactionStateError
from tests.databases import PATIENCE_S, in_thread, until, waits_at_the_server
from tests.transactions.joined.reading import balance

if TYPE_CHECKING:
    from tests.databases import Place


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
            until(lambda: waits_at_the_server(db))
            assert t.query(rows) == [(1,)]
        connection.commit()
    inserting.result(PATIENCE_S)
