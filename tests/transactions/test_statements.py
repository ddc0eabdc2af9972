"""UPDATE, DELETE and INSERT over the versions of a sphere."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, Integer, String, Table, delete, func, insert, literal, select, text
from sqlalchemy import update as sql_update
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import activedb as adb
from activedb.errors import InvalidRow, RowExists, UnsupportedStatement
from tests.transactions.bank import Bank

pytestmark = pytest.mark.timeout(30)


def test_execute_update_uses_uncommitted_values_and_counts_rows(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        t.insert(a, {"id": 3, "balance": 30})
        t.update(a, 1, balance=100)
        with t.subtransaction() as s:
            count = s.execute(
                sql_update(a).where(a.c.balance >= 30).values(balance=a.c.balance + 1, owner="x")
            )
            assert count == 2
        assert t.execute(sql_update(a).where(a.c.id == 99).values(balance=0)) == 0
    assert bank.committed() == {1: 101, 2: 20, 3: 31}


def test_execute_update_reads_every_new_value_before_it_writes_any(bank: Bank) -> None:
    a = bank.accounts
    top = select(func.max(a.c.balance)).scalar_subquery()
    with bank.db.transaction() as t:
        assert t.execute(sql_update(a).values(balance=top + a.c.id)) == 2
    assert bank.committed() == {1: 21, 2: 22}


def test_execute_update_to_null_and_by_name(bank: Bank) -> None:
    with bank.db.transaction() as t:
        t.execute(sql_update(bank.accounts).values({"balance": None, "owner": literal("me")}))
    assert bank.committed() == {1: None, 2: None}


def test_execute_delete_takes_tombstones_into_account(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        t.delete(a, 1)
        t.insert(a, {"id": 3, "balance": 1})
        assert t.execute(delete(a)) == 2
        assert t.query(select(a)) == []
    assert bank.committed() == {}


def test_execute_insert_values_one_and_many(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        assert t.execute(insert(a).values(id=3, balance=30)) == 1
        assert t.execute(insert(a).values([{"id": 4, "balance": 1}, {"id": 5, "balance": 2}])) == 2
        with pytest.raises(RowExists):
            t.execute(insert(a).values(id=4, balance=0))
    assert bank.committed() == {1: 10, 2: 20, 3: 30, 4: 1, 5: 2}


def test_execute_insert_from_select_sees_the_sphere(bank: Bank) -> None:
    a, n = bank.accounts, bank.notes
    with bank.db.transaction() as t:
        t.update(a, 1, owner="ann")
        rows = select(a.c.id + 100, func.coalesce(a.c.owner, "nobody")).where(a.c.balance < 50)
        assert t.execute(insert(n).from_select(["id", "text"], rows)) == 2
    assert bank.committed_notes() == ["ann", "nobody"]


def test_execute_insert_from_select_of_the_same_table_does_not_feed_itself(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        copy = select(a.c.id + 10, a.c.balance)
        assert t.execute(insert(a).from_select(["id", "balance"], copy)) == 2
    assert bank.committed() == {1: 10, 2: 20, 11: 10, 12: 20}


def test_execute_of_a_mapped_class(db: adb.Database) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Pet(Base):
        __tablename__ = "pets"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str]

    db.create_all()
    with db.transaction() as t:
        t.execute(insert(Pet).values(id=1, name="rex"))
        t.execute(sql_update(Pet).where(Pet.id == 1).values(name="max"))
        assert t.get(Pet, 1) == {"id": 1, "name": "max"}
        assert t.query(select(Pet.name)) == [("max",)]
        assert t.execute(delete(Pet).where(Pet.name == "max")) == 1
    assert db.row_counts() == {"pets": 0}


def test_execute_update_of_a_composite_key_table(db: adb.Database) -> None:
    pairs = Table(
        "pairs",
        db.metadata,
        Column("a", Integer, primary_key=True),
        Column("b", String(10), primary_key=True),
        Column("n", Integer),
    )
    db.create_all()
    with db.transaction() as t:
        t.execute(insert(pairs).values([{"a": i, "b": b, "n": 0} for i in (1, 2) for b in "xy"]))
        t.delete(pairs, (2, "y"))
        assert t.execute(sql_update(pairs).where(pairs.c.b == "y").values(n=5)) == 1
        assert t.get(pairs, (1, "y")) == {"a": 1, "b": "y", "n": 5}
    with db.transaction() as t:
        assert t.query(select(func.count()).select_from(pairs)) == [(3,)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda a: select(a), r"use query\(\) for a SELECT"),
        (lambda a: text("DELETE FROM accounts"), "execute"),
        (lambda a: insert(a).values(id=9).returning(a.c.id), "RETURNING"),
        (lambda a: sql_update(a).values(balance=1).returning(a.c.id), "RETURNING"),
        (lambda a: sql_update(a), "without values"),
        (lambda a: postgresql.insert(a).values(id=1).on_conflict_do_nothing(), "ON CONFLICT"),
        (lambda a: insert(a).values(id=func.abs(3)), "plain values"),
    ],
)
def test_execute_of_an_unsupported_statement_raises_and_spares_the_transaction(
    bank: Bank, make: Any, message: str
) -> None:
    with bank.db.transaction() as t:
        with pytest.raises(UnsupportedStatement, match=message):
            t.execute(make(bank.accounts))
        t.update(bank.accounts, 1, balance=11)
    assert bank.committed() == {1: 11, 2: 20}


@pytest.mark.parametrize("make", [lambda a: delete(a), lambda a: text("SELECT 1")])
def test_query_takes_selects_only_and_spares_the_transaction(bank: Bank, make: Any) -> None:
    with bank.db.transaction() as t:
        with pytest.raises(UnsupportedStatement, match="query"):
            t.query(make(bank.accounts))
        t.update(bank.accounts, 1, balance=11)
    assert bank.committed() == {1: 11, 2: 20}


def test_execute_of_a_key_change_raises(bank: Bank) -> None:
    a = bank.accounts
    with pytest.raises(InvalidRow, match="cannot change key column id"), bank.db.transaction() as t:
        t.execute(sql_update(a).values(id=a.c.id + 100))
    assert bank.committed() == {1: 10, 2: 20}


def test_execute_update_ordered_values_and_from_other_tables_condition(bank: Bank) -> None:
    a, n = bank.accounts, bank.notes
    with bank.db.transaction() as t:
        t.insert(n, {"id": 2, "text": "rich"})
        chosen = a.c.id.in_(select(n.c.id).where(n.c.text == "rich"))
        assert (
            t.execute(
                sql_update(a).where(chosen).ordered_values((a.c.owner, "r"), (a.c.balance, 7))
            )
            == 1
        )
        assert t.get(a, 2) == {"id": 2, "balance": 7, "owner": "r"}
