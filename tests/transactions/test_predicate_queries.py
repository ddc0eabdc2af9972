"""Queries whose WHERE clause compares columns with values: they lock predicates, and no table."""

from __future__ import annotations

import operator
import sys
import threading
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Computed,
    Date,
    DateTime,
    Float,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    and_,
    delete,
    func,
    or_,
    select,
    text,
    update,
)

import activedb as adb
from activedb.errors import SerializationConflict
from lockmgr import Mode
from tests.databases import PATIENCE_S, in_thread, lock_waits, until
from tests.drawing import SCALE, Worlds
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future
    from random import Random

    from activedb import Database
    from tests.databases import Place

    Rows = dict[int, dict[str, Any]]
    Holds = Callable[[dict[str, Any]], bool]

T = TypeVar("T")
KEYS = range(1, 9)
WARDS = ("A", "B", "C", None)
LEVELS = (*range(5), None)
FREE = (True, False, None)
COSTS = (Decimal("0.5"), Decimal("1.25"), Decimal(2), None)
DOSES = (-0.5, 0.1, 0.30000000000000004, 2.0, None)
VALUES: dict[str, tuple[Any, ...]] = {
    "ward": WARDS,
    "level": LEVELS,
    "free": FREE,
    "cost": COSTS,
    "dose": DOSES,
}


def declare_beds(metadata: MetaData) -> Table:
    return Table(
        "beds",
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("ward", String(9)),
        Column("level", Integer),
        Column("free", Boolean),
        Column("cost", Numeric(9, 2)),
        Column("dose", Float),
    )


def beds_of(db: Database) -> Table:
    beds = declare_beds(db.metadata)
    db.create_all()
    return beds


def fill(db: Database, beds: Table, rows: Iterable[dict[str, Any]]) -> None:
    with db.transaction() as t:
        t.execute(delete(beds))
        for row in rows:
            t.insert(beds, row)


def some_row(chance: Random, key: int) -> dict[str, Any]:
    return {"id": key, **{name: chance.choice(values) for name, values in VALUES.items()}}


def held(t: adb.Transaction) -> dict[Any, Mode]:
    """Return what a transaction has locked inside tables, predicates as text."""
    node = node_of(t)
    found = node.forest.locks._table.held(node.id)
    return {
        resource[-1] if isinstance(resource[-1], tuple) else repr(resource[-1]): mode
        for resource, mode in found.items()
        if len(resource) > 1
    }


def table_mode(t: adb.Transaction, table: Table) -> Mode | None:
    node = node_of(t)
    return node.forest.locks._table.held(node.id).get((table.name,))


def start(db: Database, work: Callable[..., T], *arguments: Any) -> tuple[Future[T], bool]:
    """Call on another thread, until it has ended or waits for a lock; return whether it waits."""
    waits = lock_waits(db)
    started = in_thread(work, *arguments)
    until(lambda: started.done() or lock_waits(db) > waits)
    return started, not started.done()


# -- a write waits if it changes the answer, and hardly ever else -------------------------------

OPERATORS = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def is_among(name: str, values: tuple[Any, ...], row: dict[str, Any]) -> bool:
    return row[name] in values


def compares(name: str, told: str, value: Any, row: dict[str, Any]) -> bool:
    return row[name] is not None and bool(OPERATORS[told](row[name], value))


def is_null_or_not(name: str, is_null: bool, row: dict[str, Any]) -> bool:
    return (row[name] is None) is is_null


class Question:
    """Random query of one table, and which rows it is about."""

    def __init__(self, chance: Random, beds: Table, has_decimals: bool):
        self.names: list[str] = []
        holds: list[Holds] = []
        clauses: list[Any] = []
        told: list[str] = []
        self.values: dict[str, Any] = {}
        aliased = beds.alias("b")
        for _ in range(chance.randint(1, 3)):
            # The memory twin compares decimals as floating-point numbers.
            names = ["ward", "level", "level", "free", "dose", *["cost"] * has_decimals]
            name = chance.choice(names)
            column = aliased.c[name]
            kinds = {"ward": ["=", "in"], "free": ["is", "bare"], "level": [*OPERATORS, "in"]}
            kind = chance.choice([*kinds.get(name, OPERATORS), "between", "null", "not null"])
            if kind == "between" and name in ("ward", "free"):
                kind = "null"
            choices = [v for v in VALUES[name] if v is not None]
            one, two = chance.choice(choices), chance.choice(choices)
            p = f"p{len(self.values)}"
            if kind in ("null", "not null"):
                is_null = kind == "null"
                clauses.append(column.is_(None) if is_null else column.is_not(None))
                told.append(f"b.{name} IS {kind.upper()}")
                holds.append(partial(is_null_or_not, name, is_null))
            elif kind in ("is", "bare"):
                is_true = column.is_(one) if kind == "is" else column if one else ~column
                clauses.append(is_true)
                bare = f"b.{name}" if one else f"NOT b.{name}"
                told.append(f"b.{name} IS {one}" if kind == "is" else bare)
                holds.append(partial(is_among, name, (one,)))
            elif kind == "in":
                clauses.append(column.in_([one, two]))
                told.append(f"b.{name} IN (:{p}, :{p}x)")
                self.values |= {p: one, f"{p}x": two}
                holds.append(partial(is_among, name, (one, two)))
            elif kind == "between":
                clauses.append(column.between(one, two))
                told.append(f"b.{name} BETWEEN :{p} AND :{p}x")
                self.values |= {p: one, f"{p}x": two}
                holds += [partial(compares, name, ">=", one), partial(compares, name, "<=", two)]
            else:
                clauses.append(OPERATORS[kind](column, one))
                told.append(f"b.{name} {kind} :{p}")
                self.values |= {p: one}
                holds.append(partial(compares, name, kind, one))
        self._holds = holds
        shape = chance.choice(["rows", "count", "text", "subquery"])
        condition = and_(*clauses)
        if shape == "rows":
            self.statement: Any = select(aliased).where(condition).order_by(aliased.c.id)
            self.values = {}
        elif shape == "count":
            self.statement = select(func.count(), func.sum(aliased.c.id)).where(condition)
            self.values = {}
        elif shape == "text":
            where = " AND ".join(told)
            self.statement = text(f"SELECT b.id, b.level FROM beds b WHERE {where} ORDER BY 1")
        else:
            chosen = select(aliased.c.id).where(condition).subquery()
            self.statement = select(func.max(chosen.c.id), func.count())
            self.values = {}

    def is_about(self, row: dict[str, Any] | None) -> bool:
        return row is not None and all(holds(row) for holds in self._holds)

    def ask(self, t: adb.Transaction) -> list[Any]:
        return [tuple(row) for row in t.query(self.statement, self.values or None)]


def some_write(
    chance: Random, rows: Rows
) -> tuple[
    dict[str, Any] | None, dict[str, Any] | None, Callable[[adb.Transaction, Table], object]
]:
    """Return a random write as its old row, its new row and the call."""
    key = chance.choice(KEYS)
    old = rows.get(key)
    new = some_row(chance, key)
    if old is None:
        return None, new, lambda t, beds: t.insert(beds, new)
    if chance.random() < 0.3:
        return old, None, lambda t, beds: t.delete(beds, key)
    changed = {name: new[name] for name in VALUES}
    return old, new, lambda t, beds: t.update(beds, key, **changed)


@pytest.mark.long
@pytest.mark.parametrize("lock_escalation", [None, 3])
def test_write_waits_if_it_changes_the_answer_and_hardly_ever_otherwise(
    where: Place, lock_escalation: int | None
) -> None:
    """Random predicates against brute force: none of the conflicts is missed.

    With escalation, locks on rows and predicates become locks on tables.
    """
    db = where.open(lock_escalation=lock_escalation)
    beds = beds_of(db)
    worlds = Worlds(
        40 * SCALE,
        "predicates",
        lock_escalation,
        changes=10,
        moves=5,
        free=10,
        absent=3,
        refused=1,
        whole=0,
    )
    false = 0
    for chance in worlds:
        rows: Rows = {key: some_row(chance, key) for key in KEYS if chance.random() < 0.7}
        fill(db, beds, rows.values())
        question = Question(chance, beds, not where.is_memory)
        old, new, write = some_write(chance, rows)
        with db.transaction() as t:
            before = question.ask(t)
            done, waited = start(db, db.run, write, beds)
            assert question.ask(t) == before
        done.result(PATIENCE_S)
        with db.transaction() as after:
            changed = question.ask(after) != before
        concerned = question.is_about(old) or question.is_about(new)
        assert not changed or concerned
        assert waited or not concerned, (question.values, old, new)
        false += waited and not concerned
        worlds.met["changes"] += changed
        worlds.met["moves"] += question.is_about(old) != question.is_about(new)
        worlds.met["absent"] += waited and before in ([], [(0, None)], [(None, 0)])
        worlds.met["free" if not waited else "refused"] += 1
    assert lock_escalation or false <= 0.05 * worlds.met["free"] + 1, false


# -- what is locked -----------------------------------------------------------------------------


def asked(beds: Table) -> list[tuple[Any, str]]:
    b = beds.alias("x")
    no_ward = select(b.c.id).where(b.c.ward.is_(None)).subquery()
    free = select(b.c.id).where(b.c.free.is_(True)).subquery()
    return [
        (select(beds).where(beds.c.ward == "A"), "{ward = 'A'}"),
        (select(b.c.id).where(b.c.ward == "A", b.c.level >= 3), "{level >= 3 and ward = 'A'}"),
        (select(beds).where(beds.c.level > 1, beds.c.level < 4), "{1 < level < 4}"),
        (select(beds).where(beds.c.level.between(3, 9)), "{3 <= level <= 9}"),
        (select(beds).where(beds.c.ward.in_(["A", "B"])), "{ward in 'A', 'B'}"),
        (select(beds).where(beds.c.level >= 3, beds.c.ward != "B"), "{level >= 3}"),
        (select(beds).where(beds.c.ward == "A", func.abs(beds.c.level) < 2), "{ward = 'A'}"),
        (
            text("SELECT count(*) FROM beds WHERE ward = 'A' AND level < 2"),
            "{level < 2 and ward = 'A'}",
        ),
        (text("SELECT 1 WHERE EXISTS (SELECT 1 FROM beds z WHERE 'A' = z.ward)"), "{ward = 'A'}"),
        (select(beds).where(beds.c.id >= 7), "{id >= 7}"),
        (select(func.max(no_ward.c.id)), "{ward is null}"),
        (select(func.count()).select_from(free), "{free = True}"),
        (select(beds).where(beds.c.free.is_(False)), "{free = False}"),
    ]


@pytest.mark.parametrize("number", range(len(asked(declare_beds(MetaData())))))
def test_query_locks_the_predicate_and_the_rows_that_satisfy_it(where: Place, number: int) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": i % 4} for i in KEYS])
    statement, expected = asked(beds)[number]
    before = db.admin.counters()
    with db.transaction() as t:
        t.query(statement)
        locks = held(t)
        predicates = [each for each in locks if isinstance(each, str)]
        assert predicates == [expected]
        assert set(locks.values()) == {Mode.S}
        assert table_mode(t, beds) is Mode.IS
    counted = db.admin.counters()
    assert counted["queries_locking_predicates"] == 1
    assert counted["queries_locking_tables"] == before["queries_locking_tables"]


def unknown(beds: Table) -> list[Any]:
    return [
        select(beds),
        select(beds).where(beds.c.level != 3),
        select(beds).where(or_(beds.c.ward == "A", beds.c.level == 3)),
        select(beds).where(func.lower(beds.c.ward) == "a"),
        select(beds).where(beds.c.ward > "A"),  # in whose order?
        select(beds).where(beds.c.level > beds.c.id),
        text("SELECT * FROM beds WHERE level < 2.5"),
        text("SELECT * FROM beds WHERE level NOT BETWEEN 2 AND 3"),
    ]


@pytest.mark.parametrize("number", range(len(unknown(declare_beds(MetaData())))))
def test_query_of_which_no_predicate_is_known_locks_the_table(where: Place, number: int) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "A", "level": i} for i in KEYS])
    before = db.admin.counters()
    with db.transaction() as t:
        t.query(unknown(beds)[number])
        assert held(t) == {}
        assert table_mode(t, beds) is Mode.S
    after = db.admin.counters()
    assert after["queries_locking_tables"] == before["queries_locking_tables"] + 1


def test_query_of_more_rows_than_are_locked_one_by_one_locks_the_table(where: Place) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "A", "level": i} for i in range(200)])
    with db.transaction() as t:
        assert len(t.query(select(beds).where(beds.c.level < 128))) == 128
        assert table_mode(t, beds) is Mode.IS
        assert len(t.query(select(beds).where(beds.c.level < 129))) == 129
        # Without other processes no rows are locked.
        assert table_mode(t, beds) is (Mode.IS if where.is_memory else Mode.S)


def test_query_of_times_and_dates_locks_their_ranges(where: Place) -> None:
    if where.is_memory:
        pytest.skip("the memory twin compares times as text")
    db = where.open()
    visits = Table(
        "visits",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("at", DateTime(timezone=True)),
        Column("local", DateTime),
        Column("day", Date),
        Column("price", Numeric(9, 2)),
        Column("dose", Float(53)),
        Column("rough", Float(24)),
        Column("twice", Integer, Computed("id * 2")),
    )
    db.create_all()
    noon = datetime(2026, 3, 29, 12, tzinfo=UTC)
    naive = datetime(2026, 3, 29, 12)  # a column without a zone
    cases: list[tuple[Any, str | None]] = [
        (visits.c.at >= noon, f"{{at >= {noon!r}}}"),
        (visits.c.at == noon, f"{{{noon!r} <= at <= {noon!r}}}"),
        (visits.c.local < naive, f"{{local < {naive!r}}}"),
        (visits.c.day.between(noon.date(), date(2026, 4, 1)), None),
        (visits.c.price > 3, "{price > Decimal('3')}"),
        (visits.c.price == Decimal("1.5"), "{Decimal('1.5') <= price <= Decimal('1.5')}"),
        (visits.c.price > 1.5, ""),
        (visits.c.dose > 1.5, "{dose > 1.5}"),
        (visits.c.rough > 1.5, ""),  # its values are rounded at the server
        (visits.c.twice == 4, ""),
        (text("at < CAST(:t AS TIMESTAMP)").bindparams(t=noon), ""),
    ]
    for clause, expected in cases:
        with db.transaction() as t:
            t.query(select(visits.c.id).where(clause))
            predicates = [each for each in held(t) if isinstance(each, str)]
            if expected == "":
                assert predicates == []
                assert table_mode(t, visits) is Mode.S
            else:
                assert table_mode(t, visits) is Mode.IS
                assert expected in (None, *predicates)
    with db.transaction() as t:
        t.query(select(visits).where(visits.c.at >= noon))

        def insert(key: int, at: datetime) -> None:
            with db.transaction() as other:
                other.insert(visits, {"id": key, "at": at})

        in_thread(insert, 1, noon - timedelta(microseconds=1)).result(PATIENCE_S)
        late, waits = start(db, insert, 2, noon)
        assert waits
    late.result(PATIENCE_S)


# -- writes that are conditions ------------------------------------------------------------------


def test_null_in_a_column_of_which_none_may_be_a_value_locks_the_table(where: Place) -> None:
    db = where.open()
    notes = Table(
        "notes",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("data", JSON),
        Column("done_at", DateTime(timezone=True)),
    )
    db.create_all()
    with db.transaction() as t:
        t.insert(notes, {"id": 1, "data": None})
        assert t.query(select(notes.c.id).where(notes.c.data.is_(None))) == []  # JSON's null
        assert table_mode(t, notes) is Mode.SIX
    with db.transaction() as t:
        assert t.query(select(notes.c.id).where(notes.c.done_at.is_(None))) == [(1,)]
        assert "{done_at is null}" in held(t)
        assert table_mode(t, notes) is Mode.IS
        late, waits = start(db, db.run, lambda t: t.insert(notes, {"id": 2, "data": 1}))
        assert waits
    late.result(PATIENCE_S)


def test_update_and_delete_with_a_condition_lock_its_predicate(where: Place) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": i} for i in KEYS])
    with db.transaction() as t:
        assert t.execute(update(beds).where(beds.c.ward == "A").values(level=0)) == 4
        assert table_mode(t, beds) is Mode.IX
        assert held(t)["{ward = 'A'}"] is Mode.SIX

        def elsewhere() -> None:
            with db.transaction() as other:
                other.execute(delete(beds).where(beds.c.ward == "B", beds.c.level > 6))
                other.insert(beds, {"id": 20, "ward": "B", "level": 1})

        in_thread(elsewhere).result(PATIENCE_S)

        def here(other: adb.Transaction) -> int:
            return int(other.execute(update(beds).where(beds.c.ward == "A").values(level=1)))

        late, waits = start(db, db.run, here)
        assert waits
        t.insert(beds, {"id": 21, "ward": "A", "level": 2})
    assert late.result(PATIENCE_S) == 5


def test_query_for_update_locks_its_predicate(where: Place) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": i} for i in KEYS])
    with db.transaction() as t:
        assert len(t.query(select(beds).where(beds.c.ward == "A").with_for_update())) == 4
        assert table_mode(t, beds) is Mode.IX
        assert {each: mode for each, mode in held(t).items() if mode is Mode.X}.keys() == {
            (2,),
            (4,),
            (6,),
            (8,),
        }


# -- writers that began before the first question ------------------------------------------------


def test_first_question_waits_for_writers_that_began_before_it(where: Place) -> None:
    """Compare what these write with no predicate, and what later ones write with each."""
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": i} for i in KEYS])
    db._forest.asked.clear()

    def ask() -> list[Any]:
        with db.transaction() as t:
            return t.query(select(beds.c.id).where(beds.c.ward == "A", beds.c.level > 5))

    with db.transaction() as t:
        t.update(beds, 1, level=9)
        first, waits = start(db, ask)
        assert waits
        t.update(beds, 1, ward="A")  # it is still compared with nothing
        assert not first.done()
    assert sorted(first.result(PATIENCE_S)) == [(1,), (6,), (8,)]
    with db.transaction() as t:
        t.update(beds, 3, level=9)
        assert sorted(in_thread(ask).result(PATIENCE_S)) == [(1,), (6,), (8,)]
        t.get(beds, 6, for_update=True)  # locked, but not written
        with t.subtransaction() as child:
            child.update(beds, 5, level=9)
            child.abort()


def test_writer_that_has_written_nothing_yet_blocks_no_reader(where: Place) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": i} for i in KEYS])

    def ask(ward: str) -> list[Any]:
        with db.transaction() as t:
            return t.query(select(beds.c.level).where(beds.c.ward == ward, beds.c.level < 3))

    assert in_thread(ask, "A").result(PATIENCE_S) == [(2,)]
    with db.transaction() as t:
        assert t.query(select(beds).where(beds.c.ward == "C").with_for_update()) == []
        assert in_thread(ask, "B").result(PATIENCE_S) == [(1,)]
    with db.transaction() as t:
        t.query(select(beds.c.id).where(beds.c.level == 7).with_for_update(skip_locked=True))
        assert in_thread(ask, "A").result(PATIENCE_S) == [(2,)]
    with db.transaction() as t:
        t.update(beds, 7, level=8)
        late, waits = start(db, db.run, lambda u: u.update(beds, 7, level=9))
        assert waits
        assert in_thread(ask, "A").result(PATIENCE_S) == [(2,)]
    late.result(PATIENCE_S)


# -- hierarchies ----------------------------------------------------------------------------------


def test_children_see_and_lock_what_their_superiors_have_asked_and_written(where: Place) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": i} for i in KEYS])
    ward = select(beds.c.id).where(beds.c.ward == "A").order_by(beds.c.id)
    with db.transaction() as t:
        assert t.query(ward) == [(2,), (4,), (6,), (8,)]
        t.update(beds, 1, ward="A")
        with t.subtransaction() as child:
            child.delete(beds, 2)
            assert child.query(ward) == [(1,), (4,), (6,), (8,)]
            with child.subtransaction() as grandchild:
                grandchild.insert(beds, {"id": 20, "ward": "A", "level": 0})
                assert grandchild.query(ward) == [(1,), (4,), (6,), (8,), (20,)]
                grandchild.abort()
            assert child.query(ward) == [(1,), (4,), (6,), (8,)]
        assert t.query(ward) == [(1,), (4,), (6,), (8,)]

        def ask_and_add(key: int) -> Callable[[adb.Transaction], int]:
            def work(child: adb.Transaction) -> int:
                found = len(child.query(ward))
                child.insert(beds, {"id": key, "ward": "A", "level": 0})
                return found

            return work

        children = [t.spawn(ask_and_add(key)) for key in (30, 31, 32)]
        assert sorted(child.result() for child in children) == [4, 5, 6]
    with db.transaction() as t:
        assert len(t.query(ward)) == 7


def test_child_that_wrote_before_the_first_question_may_have_written_anything(
    where: Place,
) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "A", "level": 0} for i in KEYS])
    db._forest.asked.clear()
    written, declared = threading.Event(), threading.Event()

    def early(child: adb.Transaction) -> None:
        child.update(beds, 1, level=7)
        written.set()
        assert declared.wait(PATIENCE_S)

    def late(child: adb.Transaction) -> None:
        assert written.wait(PATIENCE_S)
        db._forest.asked.add(node_of(child).forest.tables.spec(beds))
        child.update(beds, 2, level=8)

    def ask() -> list[Any]:
        with db.transaction() as other:
            return other.query(select(beds.c.id).where(beds.c.level == 7))

    with db.transaction() as t:
        first, second = t.spawn(early), t.spawn(late)
        second.result()
        declared.set()
        first.result()
        asking, waits = start(db, ask)
        assert waits
    assert asking.result(PATIENCE_S) == [(1,)]


def test_parallel_children_ask_and_write_at_the_same_time(where: Place) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "A", "level": 0} for i in KEYS])

    def ask(child: adb.Transaction) -> None:
        for level in range(100, 130):
            child.query(select(beds.c.id).where(beds.c.level == level))

    def write(child: adb.Transaction) -> None:
        for number in range(30):
            child.insert(beds, {"id": 100 + number, "ward": "B", "level": 1})

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with db.transaction() as t:
            for child in [t.spawn(ask), t.spawn(write)]:
                child.result()
    finally:
        sys.setswitchinterval(interval)


def test_rows_that_a_failed_dependent_rule_has_read_do_not_change_an_answer(where: Place) -> None:
    db = where.open()
    beds = beds_of(db)
    orders = Table("orders", db.metadata, Column("id", Integer, primary_key=True))
    db.create_all()
    fill(db, beds, [{"id": 5, "ward": "A", "level": 1}])
    has_read, may_fail, tries = threading.Event(), threading.Event(), [0]

    @db.rule(on=adb.inserted(orders), coupling="causal")
    def reader(t: adb.Transaction, event: adb.Event) -> None:
        t.get(beds, 5)
        has_read.set()
        assert may_fail.wait(PATIENCE_S)
        raise ZeroDivisionError

    def work(t: adb.Transaction) -> list[Any]:
        tries[0] += 1
        t.insert(orders, {"id": 1})
        assert has_read.wait(PATIENCE_S)
        found = t.query(select(beds.c.id).where(beds.c.ward == "A"))
        may_fail.set()
        until(lambda: not db._forest.dependencies._causal)
        return found

    assert db.run(work) == [(5,)]
    assert tries == [1]


# -- values ---------------------------------------------------------------------------------------


def test_answer_about_an_instant_beside_a_change_of_the_clocks(where: Place) -> None:
    if where.is_memory:
        pytest.skip("the memory twin compares times as text")
    db, other = where.open(), where.open()
    tables = [
        Table(
            "visits",
            each.metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("at", DateTime(timezone=True)),
        )
        for each in (db, other)
    ]
    db.create_all()
    visits, theirs = tables
    zurich = ZoneInfo("Europe/Zurich")
    early = datetime(2026, 10, 25, 2, 30, tzinfo=zurich)
    late = early.replace(fold=1)  # an hour later; equal to Python
    with pytest.raises(SerializationConflict), db.transaction() as t:
        t.query(select(visits.c.id).where(visits.c.at <= early))
        assert t.query(select(func.count()).where(visits.c.at <= late)) == [(0,)]
        at = datetime(2026, 10, 25, 1, tzinfo=UTC)
        other.run(lambda o: o.insert(theirs, {"id": 1, "at": at}))
    for number, (question, at) in enumerate(
        [
            (visits.c.at == datetime(2026, 10, 25, 0, 30, tzinfo=UTC), early),
            (visits.c.at <= datetime(2026, 10, 25, 0, 30, tzinfo=UTC), early),
            (visits.c.at <= late.replace(minute=15), early.replace(minute=45)),
            (visits.c.at >= early.replace(minute=45), late.replace(minute=15)),
        ]
    ):
        with db.transaction() as t:
            before = t.query(select(visits.c.id).where(question))
            row = {"id": 10 + number, "at": at}
            writing, waits = start(db, db.run, lambda o, row=row: o.insert(visits, row))
            assert waits
            assert t.query(select(visits.c.id).where(question)) == before
        writing.result(PATIENCE_S)


@pytest.mark.filterwarnings("ignore:The default datetime adapter is deprecated:DeprecationWarning")
def test_times_in_text_lock_the_table_where_they_are_compared_as_text() -> None:
    with closing(adb.connect("memory://")) as db:
        visits = Table(
            "visits", db.metadata, Column("id", Integer, primary_key=True), Column("at", DateTime)
        )
        db.create_all()
        noon = datetime(2026, 3, 29, 12)  # a column without a zone
        with db.transaction() as t:
            t.query(text("SELECT count(*) FROM visits WHERE at > :t"), {"t": noon})
            assert table_mode(t, visits) is Mode.S


def test_text_that_is_cut_off_may_satisfy_any_predicate(where: Place) -> None:
    if where.is_memory:
        pytest.skip("SQLite cuts nothing off")
    db = where.open()
    beds = beds_of(db)
    with db.transaction() as t:
        t.query(select(beds.c.id).where(beds.c.ward == "A" + 8 * " "))
        row = {"id": 1, "ward": "A" + 20 * " ", "level": 1}
        writing, waits = start(db, db.run, lambda o: o.insert(beds, row))
        assert waits
    writing.result(PATIENCE_S)


@pytest.mark.long
def test_many_values_and_many_predicates_lock_the_table(where: Place) -> None:
    db = where.open()
    beds = beds_of(db)
    with db.transaction() as t:
        for first in (0, 40_000):
            among = list(range(first, first + 40_000 if not where.is_memory else 10_000))
            t.query(select(func.count()).select_from(beds).where(beds.c.level.in_(among)))
        assert table_mode(t, beds) is Mode.S
    with db.transaction() as t:
        for level in range(64):
            t.query(select(beds).where(beds.c.level == level))
        assert table_mode(t, beds) is Mode.IS
        t.query(select(beds).where(beds.c.level == 64))
        assert table_mode(t, beds) is Mode.S


# -- other processes and programs -----------------------------------------------------------------


def plain(db: Database, sql: str) -> None:
    """Run a statement as another program would."""
    with db._store.engine.begin() as connection:
        connection.execute(text(f"SET LOCAL search_path TO {db._store.schema}"))
        connection.execute(text(sql))


@pytest.mark.parametrize(
    "write",
    [
        "INSERT INTO beds VALUES (20, 'A', 1)",
        "UPDATE beds SET ward = 'A' WHERE id = 1",
        "INSERT INTO beds VALUES (21, 'A', 0), (22, 'A', NULL)",
    ],
)
def test_row_that_another_program_moves_into_an_answer_is_found_at_commit(
    where: Place, write: str
) -> None:
    if where.is_memory:
        pytest.skip("has no other programs")
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": i} for i in KEYS])
    ward = select(beds.c.id).where(beds.c.ward == "A")
    tries: list[int] = []

    def work(t: adb.Transaction) -> int:
        found = len(t.query(ward))
        tries.append(found)
        if len(tries) == 1:
            plain(db, write)
        t.insert(beds, {"id": 50, "ward": "B", "level": found})
        return found

    assert db.run(work) == tries[-1] > tries[0] == 4
    with db.transaction() as t:
        assert t.query(select(beds.c.level).where(beds.c.id == 50)) == [(tries[-1],)]


def test_answer_does_not_change_when_the_question_is_repeated(where: Place) -> None:
    if where.is_memory:
        pytest.skip("has no other programs")
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": i} for i in KEYS])
    with pytest.raises(SerializationConflict, match=r"row \(20,\)"), db.transaction() as t:
        t.query(select(beds).where(beds.c.ward == "A"))
        plain(db, "INSERT INTO beds VALUES (20, 'A', 1)")
        t.query(select(beds).where(beds.c.ward == "A"))
    with pytest.raises(SerializationConflict, match=r"row \(21,\)"), db.transaction() as t:
        t.query(select(beds).where(beds.c.ward == "A"))
        plain(db, "INSERT INTO beds VALUES (21, 'A', 1)")
        t.get(beds, 21)
    with db.transaction() as t:  # a transient row is never seen
        t.query(select(beds).where(beds.c.ward == "A"))
        plain(db, "INSERT INTO beds VALUES (22, 'A', 1)")
        plain(db, "DELETE FROM beds WHERE id = 22")
        t.insert(beds, {"id": 23, "ward": "A", "level": 1})
        t.update(beds, 1, ward="A")
        t.delete(beds, 2)
        assert len(t.query(select(beds).where(beds.c.ward == "A"))) == 7


@pytest.mark.parametrize("careful", [False, True])
def test_own_writes_do_not_change_an_answer(where: Place, careful: bool) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": i} for i in KEYS])
    ward = select(beds.c.id).where(beds.c.ward == "A")

    def work(t: adb.Transaction) -> None:
        node_of(t).hierarchy.run.careful = careful
        t.query(ward)
        with t.subtransaction() as child:
            child.insert(beds, {"id": 20, "ward": "A", "level": 1})
            child.update(beds, 1, ward="A")
            assert len(child.query(ward)) == 6
        with t.subtransaction() as child:
            child.delete(beds, 2)
            child.query(select(beds).where(beds.c.level > 6))
        assert len(t.query(ward)) == 5

    db.run(work)
    with db.transaction() as t:
        assert len(t.query(ward)) == 5


def test_two_processes_never_break_a_rule_that_each_of_them_checks(where: Place) -> None:
    """Write skew and phantoms: at least one bed of a ward stays free, and none is made twice."""
    first = where.open()
    databases = [first] if where.is_memory else [first, where.open()]
    beds = beds_of(first)
    for other in databases[1:]:
        beds_of(other)
    worlds = Worlds(6 * SCALE, "skew", taken=3, made=3)
    for chance in worlds:
        fill(first, beds, [{"id": i, "ward": "A", "level": 0} for i in range(4)])
        wards = [chance.choice("AXYZ") for _ in range(12)]

        def take(t: adb.Transaction, key: int) -> bool:
            free = t.query(select(beds.c.id).where(beds.c.ward == "A", beds.c.level == 0))
            if len(free) > 1:
                t.update(beds, free[key % len(free)][0], level=1)
                return True
            return False

        def make(t: adb.Transaction, key: int, ward: str) -> bool:
            if t.query(select(func.count()).where(beds.c.ward == ward))[0][0]:
                return False
            t.insert(beds, {"id": 100 + key, "ward": ward, "level": 0})
            return True

        jobs = []
        for key, ward in enumerate(wards):
            db = databases[key % len(databases)]
            work = take if ward == "A" else make
            arguments = (key,) if ward == "A" else (key, ward)
            jobs.append(in_thread(db.run, work, *arguments))
        done = [job.result(PATIENCE_S * 4) for job in jobs]
        with first.transaction() as t:
            rows = t.query(select(beds.c.ward, beds.c.level))
        assert sum(row == ("A", 0) for row in rows) >= 1
        for ward in "XYZ":
            assert sum(row[0] == ward for row in rows) == (ward in wards)
        worlds.met["taken"] += sum(d for d, ward in zip(done, wards, strict=True) if ward == "A")
        worlds.met["made"] += sum(d for d, ward in zip(done, wards, strict=True) if ward != "A")


def test_query_and_update_of_the_same_rows_by_many_threads_loses_nothing(where: Place) -> None:
    db = where.open()
    beds = beds_of(db)
    fill(db, beds, [{"id": i, "ward": "AB"[i % 2], "level": 0} for i in KEYS])

    def work(t: adb.Transaction, ward: str) -> None:
        for row in t.query(select(beds.c.id, beds.c.level).where(beds.c.ward == ward)):
            t.update(beds, row[0], level=row[1] + 1)

    jobs = [in_thread(db.run, work, "AB"[i % 2]) for i in range(8)]
    for job in jobs:
        job.result(PATIENCE_S * 4)
    with db.transaction() as t:
        assert {row[0] for row in t.query(select(beds.c.level))} == {4}


def test_commits_that_check_one_table_and_write_another_do_not_wait_for_each_other(
    where: Place,
) -> None:
    db = where.open()
    tables = [
        Table(name, db.metadata, Column("id", Integer, primary_key=True), Column("n", Integer))
        for name in ("left", "right")
    ]
    db.create_all()

    def loop(side: int) -> None:
        asked, written = tables[side], tables[1 - side]

        def work(t: adb.Transaction, number: int) -> None:
            t.query(select(asked).where(asked.c.n == -1))
            t.insert(written, {"id": number, "n": number})

        for number in range(30):
            db.run(work, number)

    for each in [in_thread(loop, 0), in_thread(loop, 1)]:
        each.result(PATIENCE_S * 2)
    counted = db.admin.counters()
    assert "retries_after_serialization_conflicts" not in counted
    assert "retries_after_deadlocks" not in counted


# -- queries that lock whole tables ---------------------------------------------------------------


def test_query_without_a_condition_that_is_understood_is_logged_once(
    where: Place, caplog: pytest.LogCaptureFixture
) -> None:
    db = where.open()
    beds = beds_of(db)
    visits = Table("visits", db.metadata, Column("id", Integer, primary_key=True))
    db.create_all()
    shouted = select(beds).where(func.upper(beds.c.ward) == "JANE ROE")
    asked: list[Any] = [
        shouted,
        shouted,
        select(beds).where(beds.c.level == 87, or_(beds.c.ward == "A", beds.c.ward == "B")),
        select(func.count()).select_from(beds),  # asks for the whole table
        select(beds.c.id).join(visits, visits.c.id != beds.c.level).where(beds.c.level == 3),
        text("SELECT id FROM beds WHERE level + 1 = 4711 AND ward || '' = 'Jane Roe'"),
        text("SELECT id FROM beds WHERE level + 1 = 4712 AND ward || '' = 'John Roe'"),
    ]

    def ask(t: adb.Transaction, statement: Any) -> None:
        t.query(statement)

    with caplog.at_level("INFO", logger="activedb.transactions"):
        for statement in asked:
            db.run(ask, statement)
    told = [r.getMessage() for r in caplog.records if "locks the whole table" in r.getMessage()]
    tables = [message.partition("table ")[2].partition(",")[0] for message in told]
    assert tables == ["beds", "visits", "beds"]
    everything = " ".join(told)
    assert "upper" in told[0]
    assert "level + … = …" in told[2]
    assert not any(value in everything for value in ("4711", "4712", "Roe", "ROE"))


WORDS = ["user", "current_user", "session_user", "current_role", "current_catalog"]


@pytest.mark.parametrize("word", [*WORDS, *map(str.upper, WORDS)])
def test_word_of_the_server_is_not_taken_for_a_column_of_that_name(there: Place, word: str) -> None:
    db = there.open()
    name, m = word.lower(), db.metadata
    Table("keyed", m, Column(name, String(80), primary_key=True))
    Table("noted", m, Column("id", Integer, primary_key=True), Column(name, String(80)))
    db.create_all()
    with db.connection() as connection:
        now = connection.scalar(text(f"SELECT {word}"))
        for told in ("keyed VALUES (:x), ('y')", "noted VALUES (1, :x), (2, 'y')"):
            connection.execute(text(f"INSERT INTO {told}"), {"x": now})
        connection.commit()
    for table in ("keyed", "noted"):
        asked = f"SELECT count(*) FROM {table} WHERE"
        with db.transaction() as t:
            for condition in (f"{word} = :x", f":x IN ({word})", f"({word}) >= :x"):
                assert t.query(text(f"{asked} {condition}"), {"x": now}) == [(2,)]
            assert t.query(text(f"{asked} {word} IS NULL")) == [(0,)]
        with db.transaction() as t:  # with a prefix, or in quotes, it is the column
            for column in (f"{table}.{word}", f'"{name}"'):
                assert t.query(text(f"{asked} {column} = :x"), {"x": now}) == [(1,)]
