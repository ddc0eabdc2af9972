"""UPDATE, DELETE and INSERT over the versions of a sphere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    String,
    Table,
    bindparam,
    case,
    delete,
    event,
    func,
    insert,
    literal,
    select,
    text,
)
from sqlalchemy import update as sql_update
from sqlalchemy.dialects import postgresql
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import activedb as adb
from activedb.errors import InvalidRow, RowExists, UnsupportedStatement
from tests.transactions.bank import Bank


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
    assert db.admin.row_counts() == {"pets": 0}


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
        (lambda a: insert(a).values(id=9).returning(text("1")), "RETURNING"),
        (lambda a: delete(a).returning(select(func.max(a.c.id)).scalar_subquery()), "RETURNING"),
        (lambda a: insert(a).values(id=text("7")), "literal_column"),
        (lambda a: sql_update(a).values(balance=text("7")), "literal_column"),
        (lambda a: sql_update(a.alias()).values(balance=7), "one table"),
        (lambda a: insert(a).values([{"id": 8}, {"id": 9, "balance": 1}]), "columns"),
        (lambda a: sql_update(a), "without values"),
        (lambda a: postgresql.insert(a).values(id=1).on_conflict_do_nothing(), "ON CONFLICT"),
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


@pytest.mark.parametrize("make", [lambda a: delete(a), lambda a: text("DELETE FROM accounts")])
def test_query_takes_selects_only_and_spares_the_transaction(bank: Bank, make: Any) -> None:
    with bank.db.transaction() as t:
        with pytest.raises(UnsupportedStatement, match="query"):
            t.query(make(bank.accounts))
        t.update(bank.accounts, 1, balance=11)
    assert bank.committed() == {1: 11, 2: 20}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t, a: t.execute(insert(a), 5), "takes a row, or a list of rows"),
        (lambda t, a: t.execute(insert(a), [5]), "a row of an insert"),
        (lambda t, a: t.execute(insert(a), "ab"), "a row of an insert"),
        (lambda t, a: t.query(text("SELECT 1"), [1]), "by name, such as"),
        (lambda t, a: t.query(select(a).with_for_update(), 5), "by name, such as"),
    ],
)
def test_parameters_that_are_no_mapping_are_refused_and_spare_the_transaction(
    bank: Bank, call: Any, message: str
) -> None:
    with bank.db.transaction() as t:
        with pytest.raises(InvalidRow, match=message):
            call(t, bank.accounts)
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


def test_execute_insert_of_expressions_sees_the_sphere(bank: Bank) -> None:
    a = bank.accounts
    highest = select(func.max(a.c.balance)).scalar_subquery()
    with bank.db.transaction() as t:
        t.update(a, 1, balance=100)
        rows = [{"id": 3, "balance": highest}, {"id": func.abs(-4), "balance": 5}]
        assert t.execute(insert(a).values(rows)) == 2
        assert t.execute(insert(a).values(id=literal(2) + 3, balance=highest + 1)) == 1
    assert bank.committed() == {1: 100, 2: 20, 3: 100, 4: 5, 5: 101}


def test_execute_takes_parameters_beside_the_statement(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        assert t.execute(insert(a), [{"id": 3, "balance": 1}, {"id": 4, "balance": 2}]) == 2
        assert t.execute(insert(a), {"id": 5}) == 1
        assert t.execute(insert(a), []) == 0
        raised = sql_update(a).values(balance=a.c.balance + bindparam("by"))
        assert t.execute(raised.where(a.c.id >= bindparam("low")), {"by": 10, "low": 3}) == 3
        assert t.execute(delete(a).where(a.c.id == bindparam("x")), {"x": 1}) == 1
        assert t.execute(insert(a).values(id=bindparam("x"), balance=6), {"x": 6}) == 1
    assert bank.committed() == {2: 20, 3: 11, 4: 12, 5: None, 6: 6}


def test_execute_insert_of_many_rows_is_all_or_nothing(bank: Bank) -> None:
    a = bank.accounts
    seen: list[int] = []

    @bank.db.rule(on=adb.inserted(a))
    def note(t: adb.Transaction, o: adb.Occurrence) -> None:
        seen.append(o.new["id"])

    def rows(*keys: int, **last: Any) -> Any:
        records: list[dict[str, Any]] = [{"id": key, "balance": 0} for key in keys]
        records[-1] |= last
        return insert(a).values(records)

    with bank.db.transaction() as t:
        t.insert(a, {"id": 9})
        for statement, error in [
            (rows(3, 4, 2), RowExists),
            (rows(3, 4, 9), RowExists),
            (rows(3, 4, 3), RowExists),
            (rows(3, 4, 5, balance="much"), InvalidRow),
            (insert(a).values([{"id": 3, "age": 1}]), InvalidRow),
            (insert(a).from_select(["id"], select(a.c.id + 1)), RowExists),
        ]:
            with pytest.raises(error):
                t.execute(statement)
        assert t.query(select(a.c.id).order_by(a.c.id)) == [(1,), (2,), (9,)]
        assert seen == [9]
        assert t.execute(rows(5, 3, 4)) == 3
        assert seen == [9, 5, 3, 4]
    assert sorted(bank.committed()) == [1, 2, 3, 4, 5, 9]


def test_execute_update_that_fails_for_one_row_writes_none(bank: Bank) -> None:
    a = bank.accounts
    wrong = case((a.c.id == 2, literal(None)), else_=literal("x"))
    with bank.db.transaction() as t:
        t.execute(insert(bank.notes).values([{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]))
        with pytest.raises(InvalidRow, match="NOT NULL"):
            n = bank.notes
            t.execute(sql_update(n).values(text=case((n.c.id == 2, None), else_="x")))
        with pytest.raises(InvalidRow):
            t.execute(sql_update(a).values(balance=wrong))
        assert t.query(select(a.c.balance).order_by(a.c.id)) == [(10,), (20,)]
    assert bank.committed_notes() == ["a", "b"]


def test_execute_of_many_rows_takes_a_few_statements(bank: Bank) -> None:
    a = bank.accounts
    sent: list[str] = []
    with bank.db.transaction() as t:
        t.query(select(a))
        event.listen(
            bank.db._store.engine, "after_cursor_execute", lambda *given: sent.append(given[2])
        )
        t.execute(insert(a), [{"id": key, "balance": 0} for key in range(10, 60)])
        t.execute(sql_update(a).where(a.c.id < 50).values(balance=1))
        t.execute(delete(a).where(a.c.id >= 50))
        assert 0 < len(sent) < 25, sent


def test_execute_update_from_another_table(bank: Bank) -> None:
    a, n = bank.accounts, bank.notes
    with bank.db.transaction() as t:
        t.insert(n, {"id": 2, "text": "two"})
        t.insert(n, {"id": 3, "text": "three"})
        joined = sql_update(a).where(a.c.id == n.c.id).values(owner=n.c.text)
        assert t.execute(joined.returning(a.c.id, a.c.owner)) == [(2, "two")]
        same = sql_update(a).where(n.c.id > a.c.id).values(balance=7)
        assert t.execute(same) == 2
        with pytest.raises(UnsupportedStatement, match="several new values"):
            t.execute(sql_update(a).where(n.c.id > a.c.id).values(owner=n.c.text))
        latest = select(n.c.text).where(n.c.id == a.c.id + 1).scalar_subquery()
        assert t.execute(sql_update(a).values(owner=latest).returning(a.c.owner)) == [
            ("two",),
            ("three",),
        ]


def test_execute_delete_using_another_table(bank: Bank) -> None:
    a, n = bank.accounts, bank.notes
    with bank.db.transaction() as t:
        t.insert(n, {"id": 2, "text": "two"})
        assert t.execute(delete(a).where(a.c.id == n.c.id, n.c.text == "two")) == 1
    assert bank.committed() == {1: 10}


def test_execute_returning_gives_new_values_and_old_ones_of_a_delete(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        made = insert(a).values([{"id": 4, "balance": 1}, {"id": 3, "balance": 2}])
        assert t.execute(made.returning(a.c.id, (a.c.balance * 10).label("tenfold"))) == [
            (4, 10),
            (3, 20),
        ]
        changed = sql_update(a).where(a.c.id > 2).values(balance=a.c.balance + 1)
        rows = t.execute(changed.returning(a))
        assert rows == [(3, 3, None), (4, 2, None)]
        assert rows[0].balance == 3
        assert rows[0]._mapping == {"id": 3, "balance": 3, "owner": None}
        gone = t.execute(delete(a).where(a.c.id > 1).returning(a.c.balance, -a.c.balance))
        assert gone == [(20, -20), (3, -3), (2, -2)]
        assert t.execute(delete(a).where(a.c.id > 1).returning(a.c.id)) == []
        assert t.query(select(a.c.id)) == [(1,)]


def test_execute_update_of_a_mapped_class_goes_by_attribute(db: adb.Database) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Person(Base):
        __tablename__ = "person"
        id: Mapped[int] = mapped_column(primary_key=True)
        called: Mapped[str | None] = mapped_column("name", String(20))
        kind: Mapped[str] = mapped_column(String(10), default="person")
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "person"}  # noqa: RUF012

    class Boss(Person):
        __mapper_args__ = {"polymorphic_identity": "boss"}  # noqa: RUF012

    class Engineer(Person):
        __tablename__ = "engineer"
        id: Mapped[int] = mapped_column(ForeignKey("person.id"), primary_key=True)
        __mapper_args__ = {"polymorphic_identity": "engineer"}  # noqa: RUF012

    db.create_all()
    with db.transaction() as t:
        assert t.execute(insert(Person).values(id=1, called="ann")) == 1
        made = t.execute(insert(Boss).values(id=2, called="bob").returning(Boss.kind))
        assert made == [("boss",)]
        assert t.execute(sql_update(Boss).values(called="bo")) == 1
        assert t.query(select(Person.id, Person.called).order_by(Person.id)) == [
            (1, "ann"),
            (2, "bo"),
        ]
        with pytest.raises(UnsupportedStatement, match="name the attributes"):
            t.execute(sql_update(Person).values(called="x").returning(Person))
        with pytest.raises(UnsupportedStatement, match="joined-table inheritance"):
            t.execute(insert(Engineer).values(id=3))
        assert t.execute(delete(Boss).returning(Boss.called)) == [("bo",)]
        assert t.query(select(func.count()).select_from(Person)) == [(1,)]


def test_execute_fills_in_defaults_for_each_row(db: adb.Database) -> None:
    counted = itertools.count(1)
    shared = db._store.is_shared
    things = Table(
        "things",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("made", Integer, default=lambda: next(counted)),
        Column(
            "at", String(40), server_default=func.random() if not shared else func.gen_random_uuid()
        ),
        Column("seen", Integer, onupdate=lambda: next(counted)),
        Column("n", Integer),
    )
    db.create_all()
    with db.transaction() as t:
        rows = t.execute(insert(things).values([{"n": n} for n in range(20)]).returning(things))
        assert [row.made for row in rows] == list(range(1, 21))
        assert len({row.id for row in rows}) == 20
        assert len({row.at for row in rows}) == 20
        changed = t.execute(sql_update(things).values(n=0).returning(things.c.seen))
        assert [row.seen for row in changed] == list(range(21, 41))


@pytest.mark.parametrize("how", ["insert", "execute insert", "update", "execute update"])
def test_defaults_that_read_a_table_see_the_sphere_and_lock_the_table(bank: Bank, how: str) -> None:
    """Such a default is a query like any other."""
    a = bank.accounts
    total = select(func.sum(a.c.balance)).scalar_subquery()
    totals = Table(
        "totals",
        bank.db.metadata,
        Column("id", Integer, primary_key=True),
        Column("at_first", Integer, default=total),
        Column("at_last", Integer, onupdate=total),
    )
    bank.db.create_all()
    bank.db.run(lambda t: t.insert(totals, {"id": 1, "at_first": 0}))
    ways: dict[str, Callable[[adb.Transaction], object]] = {
        "insert": lambda t: t.insert(totals, {"id": 2}),
        "execute insert": lambda t: t.execute(insert(totals).values(id=2)),
        "update": lambda t: t.update(totals, 1),
        "execute update": lambda t: t.execute(sql_update(totals).values(at_first=0)),
    }
    with bank.db.transaction() as t:
        t.update(a, 1, balance=100)
        with t.subtransaction() as s:
            s.insert(a, {"id": 3, "balance": 1000})
            ways[how](s)
            found = s.query(select(totals.c.at_first, totals.c.at_last).order_by(totals.c.id))
            assert 1120 in found[-1]
        assert "accounts: " in bank.db._forest.locks.dump()


def test_execute_rules_see_the_whole_statement(bank: Bank) -> None:
    a = bank.accounts
    seen: list[Any] = []

    @bank.db.rule(on=adb.updated(a))
    def total(t: adb.Transaction, o: adb.Occurrence) -> None:
        seen.append((o.old["balance"], o.new["balance"], t.query(select(func.sum(a.c.balance)))))

    with bank.db.transaction() as t:
        t.execute(sql_update(a).values(balance=a.c.balance + 1))
    assert seen == [(10, 11, [(32,)]), (20, 21, [(32,)])]
