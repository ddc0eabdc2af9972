"""Queries over a sphere give what the same query gives once everything is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    String,
    Table,
    and_,
    case,
    except_,
    exists,
    func,
    literal,
    select,
    union_all,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, aliased, mapped_column

from tests.databases import place

if TYPE_CHECKING:
    from collections.abc import Iterator

    import activedb as adb


@pytest.fixture(params=["memory", "postgres"])
def db(request: pytest.FixtureRequest) -> Iterator[adb.Database]:
    """An open database."""
    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    with place(url) as opened:
        yield opened.open()


def declare(db: adb.Database) -> tuple[Table, Table, Table]:
    people = Table(
        "people",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("name", String(20)),
        Column("boss", Integer),
    )
    pay = Table(
        "pay",
        db.metadata,
        Column("person", ForeignKey("people.id"), primary_key=True),
        Column("year", Integer, primary_key=True),
        Column("amount", Integer),
    )
    odd = Table(
        "Order",
        db.metadata,
        Column("Select", Integer, primary_key=True),
        Column("from", String(20)),
    )
    db.create_all()
    return people, pay, odd


def queries(people: Table, pay: Table, odd: Table) -> dict[str, Any]:
    boss = people.alias("boss")
    totals = (
        select(pay.c.person, func.sum(pay.c.amount).label("total"))
        .group_by(pay.c.person)
        .subquery()
    )
    rich = select(pay.c.person).where(pay.c.amount > 15).cte("rich")
    chain = (
        select(people.c.id, literal(0).label("depth"))
        .where(people.c.boss.is_(None))
        .cte("chain", recursive=True)
    )
    chain = chain.union_all(
        select(people.c.id, chain.c.depth + 1).join(chain, people.c.boss == chain.c.id)
    )
    newest = select(func.max(pay.c.year)).where(pay.c.person == people.c.id).scalar_subquery()
    return {
        "all": select(people),
        "columns": select(people.c.name, people.c.id + 100),
        "count": select(func.count()).select_from(people),
        "aggregate of nothing": select(func.sum(pay.c.amount)).where(pay.c.year > 3000),
        "group": select(pay.c.year, func.sum(pay.c.amount), func.count(pay.c.amount))
        .group_by(pay.c.year)
        .having(func.count() > 1),
        "join": select(people.c.name, pay.c.year, pay.c.amount).join_from(people, pay),
        "outer join": select(people.c.name, pay.c.year).outerjoin_from(people, pay),
        "self join": select(people.c.name, boss.c.name).join_from(
            people, boss, people.c.boss == boss.c.id
        ),
        "subquery": select(people.c.name, totals.c.total).join(
            totals, totals.c.person == people.c.id
        ),
        "correlated": select(people.c.name, newest),
        "exists": select(people.c.name).where(
            exists().where(and_(pay.c.person == people.c.id, pay.c.amount > 15))
        ),
        "not exists": select(people.c.name).where(~exists().where(pay.c.person == people.c.id)),
        "in": select(people.c.id).where(people.c.id.in_(select(pay.c.person))),
        "cte": select(people.c.name).join(rich, rich.c.person == people.c.id),
        "recursive cte": select(chain),
        "union": union_all(select(people.c.id), select(pay.c.person)),
        "except": except_(select(people.c.id), select(pay.c.person)),
        "distinct": select(pay.c.person).distinct(),
        "nulls": select(people.c.id).where(people.c.name.is_(None)),
        "case": select(people.c.id, case((people.c.name.is_(None), "none"), else_=people.c.name)),
        "window": select(
            pay.c.person, func.rank().over(partition_by=pay.c.year, order_by=pay.c.amount.desc())
        ),
        "derived table of a union": select(func.count()).select_from(
            union_all(select(people.c.id), select(pay.c.person)).subquery()
        ),
        "order and limit": select(people.c.id).order_by(people.c.id.desc()).limit(2),
        "odd names": select(odd).where(odd.c["from"] != "x"),
        "constant": select(literal(1)),
    }


def fill(t: adb.Transaction, people: Table, pay: Table, odd: Table) -> None:
    for key, name, above in [(1, "ann", None), (2, "bob", 1), (3, None, 2), (4, "dan", 2)]:
        t.insert(people, {"id": key, "name": name, "boss": above})
    for person, year, amount in [(1, 1, 10), (2, 1, 20), (2, 2, None), (4, 1, 30)]:
        t.insert(pay, {"person": person, "year": year, "amount": amount})
    t.insert(odd, {"Select": 1, "from": "a"})


def change(t: adb.Transaction, people: Table, pay: Table, odd: Table) -> None:
    t.delete(pay, (4, 1))
    t.delete(people, 4)
    t.update(people, 3, name="cat", boss=1)
    t.insert(people, {"id": 5, "name": None, "boss": 3})
    with t.subtransaction() as s:
        s.insert(pay, {"person": 5, "year": 1, "amount": 40})
        s.update(pay, (2, 2), amount=7)
        s.update(people, 1, name="eve")
        s.insert(odd, {"Select": 2, "from": "b"})
    with t.subtransaction() as s:
        s.delete(pay, (1, 1))
        s.update(people, 1, name="nobody")
        s.abort()
    t.insert(people, {"id": 6, "name": "gone", "boss": None})
    t.delete(people, 6)


def test_query_over_the_sphere_equals_the_query_after_the_commit(db: adb.Database) -> None:
    tables = declare(db)
    named = queries(*tables)
    with db.transaction() as t:
        fill(t, *tables)
        first = {name: sorted(map(repr, t.query(q))) for name, q in named.items()}
    with db.transaction() as t:
        assert {name: sorted(map(repr, t.query(q))) for name, q in named.items()} == first
        change(t, *tables)
        with t.subtransaction() as s, s.subtransaction() as r:
            sphere = {name: sorted(map(repr, r.query(q))) for name, q in named.items()}
    with db.transaction() as t:
        after = {name: sorted(map(repr, t.query(q))) for name, q in named.items()}
    assert sphere == after
    assert after["all"] != first["all"]
    assert len(after["recursive cte"]) == 4
    assert after["odd names"] == ["(1, 'a')", "(2, 'b')"]


def test_query_through_mapped_classes_sees_the_sphere(db: adb.Database) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Person(Base):
        __tablename__ = "person"
        id: Mapped[int] = mapped_column(primary_key=True)
        called: Mapped[str | None] = mapped_column("name", String(20))

    db.create_all()
    other = aliased(Person)
    with db.transaction() as t:
        assert t.query(select(Person.id)) == []
        t.insert(Person, {"id": 1, "name": "ann"})
        t.insert(Person, {"id": 2, "name": "bob"})
        assert t.query(select(Person.id, Person.called).order_by(Person.id)) == [
            (1, "ann"),
            (2, "bob"),
        ]
        assert t.query(select(Person.called, other.called).join(other, Person.id < other.id)) == [
            ("ann", "bob")
        ]
        t.delete(Person, 1)
        assert t.query(select(Person.called)) == [("bob",)]


def test_query_with_a_user_cte_named_like_a_column_or_another_table(db: adb.Database) -> None:
    people, pay, odd = declare(db)
    with db.transaction() as t:
        fill(t, people, pay, odd)
        cte = select(people.c.id).where(people.c.id > 2).cte("pay2")
        assert sorted(t.query(select(cte.c.id))) == [(3,), (4,)]


def test_query_with_many_dirty_rows_is_right(db: adb.Database) -> None:
    people, _, _ = declare(db)
    with db.transaction() as t:
        for key in range(400):
            t.insert(people, {"id": key, "name": f"p{key}"})
        assert t.query(select(func.count(), func.max(people.c.id))) == [(400, 399)]
        for key in range(0, 400, 2):
            t.delete(people, key)
        assert t.query(select(func.count()).select_from(people)) == [(200,)]
