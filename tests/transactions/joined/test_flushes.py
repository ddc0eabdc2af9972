"""Flushes of ordinary sessions that are watched."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Enum, Integer, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

import activedb as adb
from activedb.errors import RuleFailed
from lockmgr import LockManager, LockTable
from tests.transactions.joined.reading import balance

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction


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
        mine: Any = session.get(Account, 1)
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
        mine: Any = session.get(Account, 1)
        assert mine is not None
        mine.balance = 6
        session.commit()
    assert seen == [6]
    db._watched.close()
    with db.connection() as connection, Session(connection) as session:
        session.add(Account(id=5, balance=1))
        session.commit()
    assert seen == [6]


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def test_flush_of_rows_with_keys_that_have_no_order_raises_events(db: adb.Database) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Paint(Base):
        __tablename__ = "paints"
        colour: Mapped[Colour] = mapped_column(Enum(Colour), primary_key=True)

    db.create_all()
    seen: list[Any] = []
    db.rule(on=adb.inserted(Paint), name="i")(lambda t, o: seen.append(o.new["colour"]))
    make = sessionmaker()
    db.watch(make)
    with db.connection() as connection, make(bind=connection) as session:
        session.add_all([Paint(colour=Colour.RED), Paint(colour=Colour.BLUE)])
        session.commit()
    assert set(seen) == set(Colour)


def test_set_oriented_rule_fires_once_for_the_rows_of_a_table_in_one_flush(
    db: adb.Database, accounts: Table
) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Account(Base):
        __table__ = accounts

    fired: list[tuple[str, list[Any]]] = []
    on = adb.inserted(accounts) | adb.updated(accounts)
    db.rule(on=on, set_oriented=True, name="set")(
        lambda t, o: fired.append(("set", [row["id"] for row in o.rows]))
    )
    db.rule(on=on, name="row")(lambda t, o: fired.append(("row", [o.new["id"]])))
    make = sessionmaker()
    db.watch(make)
    with db.connection() as connection, make(bind=connection) as session:
        session.add_all([Account(id=2, balance=5), Account(id=3, balance=5)])
        mine: Any = session.get(Account, 1)  # flushes what was added
        mine.balance = 6
        session.commit()
    assert fired == [
        ("row", [2]),
        ("row", [3]),
        ("set", [2, 3]),
        ("row", [1]),
        ("set", [1]),
    ]


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
        mine: Any = session.get(Account, 1)
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


@pytest.mark.long
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
    assert db.admin.row_counts()["places"] == count


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
