"""Locking by FOR UPDATE, NOWAIT and SKIP LOCKED, against transactions here and elsewhere."""

from __future__ import annotations

import contextlib
import math
import threading
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    bindparam,
    desc,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import activedb as adb
from activedb.errors import InvalidRow, LockNotAvailable, UnsupportedStatement
from tests.databases import (
    PATIENCE_S,
    Place,
    in_thread,
    lock_waits,
    until,
    waits_at_the_server,
)
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def declare(db: adb.Database) -> Table:
    jobs = Table(
        "jobs",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("state", String(10)),
        Column("rank", Integer),
    )
    db.create_all()
    return jobs


class Desk:
    """Two databases on one place: on Postgres they are like two processes."""

    def __init__(self, where: Place, *, far: bool):
        self.here = where.open()
        self.jobs = declare(self.here)
        self.there = where.open() if far else self.here
        self.jobs_there = declare(self.there) if far else self.jobs
        with self.here.transaction() as t:
            for key in range(1, 7):
                t.insert(self.jobs, {"id": key, "state": "new", "rank": -key})

    def queue(self, count: int | None, **how: Any) -> Any:
        """Draw the SELECT of a queue: the jobs of the highest rank first."""
        jobs = self.jobs
        chosen = select(jobs.c.id).where(jobs.c.state == "new").order_by(jobs.c.rank.desc())
        return chosen.limit(count).with_for_update(**how)


@pytest.fixture(params=["here", "elsewhere"])
def desk(request: pytest.FixtureRequest, where: Place) -> Desk:
    """Six jobs; who else has locks is in this process or, on Postgres, as if in another."""
    far = request.param == "elsewhere"
    if far and where.is_memory:
        pytest.skip("the memory twin has one process")
    return Desk(where, far=far)


@pytest.fixture
def taken(desk: Desk) -> Iterator[Desk]:
    """The same, while another transaction has the jobs 1 and 3."""
    hold, ready = threading.Event(), threading.Event()

    def work(t: adb.Transaction) -> None:
        t.get_many(desk.jobs_there, [1, 3], for_update=True)
        ready.set()
        hold.wait(2 * PATIENCE_S)

    working = in_thread(desk.there.run, work)
    assert ready.wait(PATIENCE_S)
    yield desk
    hold.set()
    working.result(PATIENCE_S)


def test_get_nowait_of_a_taken_row_raises_at_once_and_spares_the_transaction(taken: Desk) -> None:
    jobs = taken.jobs
    with taken.here.transaction() as t:
        t.update(jobs, 2, state="mine")
        for _ in range(2):
            with pytest.raises(LockNotAvailable, match=r"jobs.*\(1,\)"):
                t.get(jobs, 1, for_update=True, nowait=True)
        with pytest.raises(LockNotAvailable, match=r"\(3,\)"):
            t.get_many(jobs, [2, 3, 4], for_update=True, nowait=True)
        row = t.get(jobs, 4, for_update=True, nowait=True)
        assert row is not None
        assert row["state"] == "new"
        t.update(jobs, 4, state="mine")
        assert t.get(jobs, 99, for_update=True, nowait=True) is None
        t.insert(jobs, {"id": 99})
    with taken.here.transaction() as t:
        assert t.get_many(jobs, [2, 4, 99])[4] == {"id": 4, "state": "mine", "rank": -4}


def test_get_nowait_goes_with_for_update_only(desk: Desk) -> None:
    with desk.here.transaction() as t:
        with pytest.raises(UnsupportedStatement, match="for_update=True"):
            t.get(desk.jobs, 1, nowait=True)
        assert t.get(desk.jobs, 1) is not None


def test_get_nowait_of_a_row_that_was_read_before_upgrades_or_raises(desk: Desk) -> None:
    jobs = desk.jobs
    with desk.here.transaction() as t:
        t.get(jobs, 1)
        assert t.get(jobs, 1, for_update=True, nowait=True) is not None
        t.get(jobs, 2)
        with _held_shared(desk, 2), pytest.raises(LockNotAvailable):
            t.get(jobs, 2, for_update=True, nowait=True)
        t.update(jobs, 1, state="mine")


@contextlib.contextmanager
def _held_shared(desk: Desk, key: int) -> Iterator[None]:
    """Have another transaction keep a row that it has read."""
    release, ready = threading.Event(), threading.Event()

    def work(t: adb.Transaction) -> None:
        t.get(desk.jobs_there, key)
        ready.set()
        release.wait(2 * PATIENCE_S)

    reading = in_thread(desk.there.run, work)
    assert ready.wait(PATIENCE_S)
    yield
    release.set()
    reading.result(PATIENCE_S)


def test_query_skip_locked_returns_the_first_free_rows_and_locks_them(taken: Desk) -> None:
    with taken.here.transaction() as t:
        assert t.query(taken.queue(2, skip_locked=True)) == [(2,), (4,)]
        t.update(taken.jobs, 2, state="done")
        with t.subtransaction() as s:
            assert s.query(taken.queue(2, skip_locked=True)) == [(4,), (5,)]
        assert t.query(taken.queue(None, skip_locked=True)) == [(4,), (5,), (6,)]
        assert t.query(taken.queue(0, skip_locked=True)) == []

        def look(other: adb.Transaction) -> Any:
            with pytest.raises(LockNotAvailable):
                other.get(taken.jobs_there, 5, for_update=True, nowait=True)
            return other.get(taken.jobs_there, 7, for_update=True, nowait=True)

        assert in_thread(taken.there.run, look).result(PATIENCE_S) is None


def test_query_skip_locked_sees_and_skips_rows_of_the_sphere(taken: Desk) -> None:
    jobs = taken.jobs
    with taken.here.transaction() as t:
        t.insert(jobs, {"id": 50, "state": "new", "rank": 100})
        t.update(jobs, 2, state="done")
        t.delete(jobs, 4)
        with t.subtransaction() as s:
            assert s.query(taken.queue(2, skip_locked=True)) == [(50,), (5,)]


def test_query_nowait_raises_if_any_of_its_rows_is_taken(taken: Desk) -> None:
    jobs = taken.jobs
    with taken.here.transaction() as t:
        with pytest.raises(LockNotAvailable, match=r"\(1,\)"):
            t.query(taken.queue(2, nowait=True))
        free = select(jobs).where(jobs.c.id > 3).order_by(jobs.c.id).with_for_update(nowait=True)
        assert [row.id for row in t.query(free)] == [4, 5, 6]
        t.update(jobs, 4, state="mine")


def test_query_for_update_waits_for_taken_rows_and_locks_all(desk: Desk) -> None:
    jobs = desk.jobs
    with desk.here.transaction() as t:
        found = t.query(select(jobs).where(jobs.c.id < 3).with_for_update().order_by(jobs.c.id))
        assert [row.state for row in found] == ["new", "new"]

        def look(other: adb.Transaction) -> None:
            for key in (1, 2):
                with pytest.raises(LockNotAvailable):
                    other.get(desk.jobs_there, key, for_update=True, nowait=True)

        in_thread(desk.there.run, look).result(PATIENCE_S)
        assert t.query(select(jobs.c.id).where(jobs.c.id == 1).with_for_update(read=True)) == [(1,)]
        t.update(jobs, 1, state="mine")


def test_query_for_update_here_waits_until_the_row_is_free(where: Place) -> None:
    desk = Desk(where, far=False)
    with desk.here.transaction() as t:
        t.update(desk.jobs, 1, state="late")
        waits = lock_waits(desk.here)
        waiting = in_thread(
            desk.here.run, lambda s: s.query(select(desk.jobs.c.state).limit(1).with_for_update())
        )
        until(lambda: lock_waits(desk.here) > waits)
    assert len(waiting.result(PATIENCE_S)) == 1


def test_query_for_update_of_a_mapped_class_locks_its_rows(where: Place) -> None:
    db = where.open()

    class Base(DeclarativeBase):
        metadata = db.metadata

    class Task(Base):
        __tablename__ = "tasks"
        id: Mapped[int] = mapped_column(primary_key=True)
        name: Mapped[str] = mapped_column(String(10))

    db.create_all()
    with db.transaction() as t:
        t.insert(Task, {"id": 1, "name": "a"})
        t.insert(Task, {"id": 2, "name": "b"})
    with db.transaction() as t:
        claim = select(Task).order_by(Task.id).limit(1).with_for_update(skip_locked=True)
        assert [row.Task.name for row in t.query(claim)] == ["a"]
        other = in_thread(db.run, lambda s: [row.Task.name for row in s.query(claim)])
        assert other.result(PATIENCE_S) == ["b"]


@pytest.mark.parametrize(
    "make",
    [
        lambda jobs, other: select(jobs, other).where(jobs.c.id == other.c.id),
        lambda jobs, other: select(jobs.c.state).distinct(),
        lambda jobs, other: select(jobs.c.state).group_by(jobs.c.state),
        lambda jobs, other: select(jobs.c.id).offset(1),
        lambda jobs, other: select(jobs.subquery("q") if hasattr(jobs, "subquery") else other),
    ],
)
def test_query_for_update_of_more_than_rows_of_one_table_is_refused(desk: Desk, make: Any) -> None:
    statement = make(desk.jobs, desk.jobs.alias("other"))
    with desk.here.transaction() as t:
        with pytest.raises(UnsupportedStatement, match="with_for_update"):
            t.query(statement.with_for_update(skip_locked=True))
        t.update(desk.jobs, 1, state="mine")


@pytest.mark.long
def test_queue_of_jobs_with_many_workers_does_each_job_once(where: Place, scale: int) -> None:
    workers, count = 4, 20 * scale
    databases = [where.open(threads=8)]
    jobs = {databases[0]: declare(databases[0])}
    if not where.is_memory:
        databases.append(where.open(threads=8))
        jobs[databases[1]] = declare(databases[1])
    first = jobs[databases[0]]
    with databases[0].transaction() as t:
        for key in range(count):
            t.insert(first, {"id": key, "state": "new", "rank": key % 3})
    done: list[list[int]] = [[] for _ in range(workers)]

    def work(number: int) -> None:
        db = databases[number % len(databases)]
        table = jobs[db]
        claim = select(table.c.id).where(table.c.state == "new").order_by(table.c.rank).limit(2)

        def step(t: adb.Transaction) -> list[int]:
            found = [row.id for row in t.query(claim.with_for_update(skip_locked=True))]
            for key in found:
                t.update(table, key, state=f"w{number}")
            return found

        while found := db.run(step):
            done[number] += found

    working = [in_thread(work, number) for number in range(workers)]
    for one in working:
        one.result(PATIENCE_S)
    assert sorted(key for part in done for key in part) == list(range(count))
    with databases[0].transaction() as t:
        left = select(func.count()).where(first.c.state == "new")
        assert t.query(left) == [(0,)]
        assert t.execute(update(first).values(state="old")) == count


@pytest.mark.parametrize(
    "use", ["get", "get_many", "for update", "many for update", "update", "delete", "execute"]
)
def test_row_is_locked_on_the_server_as_strongly_as_here(desk: Desk, use: str) -> None:
    """Other programs may share a row that was read, and not one that is to be written."""
    jobs = desk.jobs
    if not desk.here._store.is_shared:
        pytest.skip("no other program can lock rows of the memory twin")
    uses: dict[str, Callable[[adb.Transaction], object]] = {
        "get": lambda t: t.get(jobs, 2),
        "get_many": lambda t: t.get_many(jobs, [2, 4]),
        "for update": lambda t: t.get(jobs, 2, for_update=True),
        "many for update": lambda t: t.get_many(jobs, [2, 4], for_update=True),
        "update": lambda t: t.update(jobs, 2, state="mine"),
        "delete": lambda t: t.delete(jobs, 2),
        "execute": lambda t: t.execute(update(jobs).where(jobs.c.id == 2).values(state="mine")),
    }
    row = select(jobs.c.id).where(jobs.c.id == 2)
    shared = row.with_for_update(read=True, skip_locked=True)
    exclusive = row.with_for_update(key_share=True, skip_locked=True)
    with desk.here.transaction() as t:
        uses[use](t)
        with desk.here._store.short() as plain:
            assert plain.execute(exclusive).all() == []
        with desk.here._store.short() as plain:
            assert bool(plain.execute(shared).all()) is use.startswith("get")


# -- what is declared, and what a server would do --------------------------------------------------


def test_rows_are_locked_in_the_order_of_a_name_in_the_statement(where: Place) -> None:
    db, table = numbered(where)
    ordered = select(table.c.id, (-table.c.n).label("last")).order_by("last")
    newest = select(table.c.id).order_by(desc("n")).limit(1).with_for_update(skip_locked=True)
    with db.transaction() as t:
        assert t.query(ordered.with_for_update()) == [(3, -3), (2, -2), (1, -1)]
        assert t.query(ordered.limit(1).with_for_update(nowait=True)) == [(3, -3)]
        assert t.query(newest.with_only_columns(table.c.id, table.c.n)) == [(3, 3)]


def test_parameters_inside_expressions_of_an_insert_are_theirs(where: Place) -> None:
    db, table = numbered(where)
    one = insert(table).values(id=10, n=func.abs(bindparam("x")))
    with db.transaction() as t:
        t.execute(one, {"x": -5})
        t.execute(insert(table).values(id=bindparam("i"), n=7), [{"i": 11}, {"i": 12}])
        t.execute(
            insert(table).values(n=func.abs(bindparam("x"))),
            [{"id": 13, "x": -1}, {"id": 14, "x": 2}],
        )
        with pytest.raises(UnsupportedStatement, match="give a value for the parameter x"):
            t.execute(one, {"y": 1})
        found = t.query(select(table).where(table.c.id >= 10).order_by(table.c.id))
        assert found == [(10, 5), (11, 7), (12, 7), (13, 1), (14, 2)]
        t.execute(insert(table), ({"id": n, "n": n} for n in (15, 16)))  # type: ignore[arg-type]
        t.execute(insert(table).values([(17, 17), (18, 18)]))
        with pytest.raises(UnsupportedStatement, match="has 1 values, and the table 2 columns"):
            t.execute(insert(table).values([(17,)]))
        some = select(func.count()).where(table.c.id.in_(bindparam("ids", expanding=True)))
        counted = insert(table).values(id=19, n=some.scalar_subquery())
        t.execute(counted, {"ids": [15, 16, 99]})
        found = t.query(select(table).where(table.c.id >= 15).order_by(table.c.id))
        assert found == [(15, 15), (16, 16), (17, 17), (18, 18), (19, 2)]


@pytest.mark.parametrize("ondelete", ["CASCADE", "SET NULL"])
def test_rows_that_cascades_change_are_locked(where: Place, ondelete: str) -> None:
    db = where.open()
    parents = Table("parents", db.metadata, Column("id", Integer, primary_key=True))
    children = Table(
        "children",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("parent", ForeignKey("parents.id", ondelete=ondelete)),
    )
    notes = Table("notes", db.metadata, Column("id", Integer, primary_key=True))
    db.create_all()
    with db.transaction() as t:
        for number in (1, 2, 3):
            t.insert(parents, {"id": number})
            t.insert(children, {"id": number, "parent": number})

    def remove(t: adb.Transaction, number: int) -> None:
        t.delete(parents, number)

    def is_waiting(waits: int) -> bool:
        return lock_waits(db) > waits or waits_at_the_server(db)

    queries = [
        select(func.count(children.c.parent)),
        select(func.count(children.c.parent)).where(children.c.id.in_([1, 2, 3])),
    ]
    for number, query in enumerate(queries, 1):
        deleted = None
        try:
            with db.transaction() as t:
                before = t.query(query)
                waits = lock_waits(db)
                deleted = in_thread(db.run, remove, number)
                until(partial(is_waiting, waits))
                assert t.query(query) == before
                t.insert(notes, {"id": number})
        finally:
            if deleted is not None:
                deleted.result(PATIENCE_S)


def test_rows_are_deleted_whatever_else_is_declared() -> None:
    with adb.connect("memory://") as db:
        parents = Table("parents", db.metadata, Column("id", Integer, primary_key=True))
        Table("keyless", db.metadata, Column("p", ForeignKey("parents.id", ondelete="CASCADE")))
        db.create_all()
        Table("later", db.metadata, Column("p", ForeignKey("absent.id", ondelete="SET NULL")))
        again = Table("parents", MetaData(), Column("id", Integer, primary_key=True))
        with db.transaction() as t:
            t.insert(again, {"id": 1})
        with db.transaction() as t:
            t.delete(parents, 1)
            assert ("keyless",) in node_of(t).held
        with db.transaction() as t:
            assert t.query(select(parents)) == []


def test_table_whose_name_has_a_dot_is_no_table_of_that_schema() -> None:
    with adb.connect("memory://") as db:
        key = Column("id", Integer, primary_key=True)
        plain = Table("t", db.metadata, key)
        dotted = Table("main.t", db.metadata, Column("id", Integer, primary_key=True))
        db.create_all()
        with db.transaction() as t:
            t.insert(plain, {"id": 1})
            t.insert(dotted, {"id": 1})
            t.insert(dotted, {"id": 2})
        with db.transaction() as t:
            assert (t.get(plain, 2), t.get(dotted, 2)) == (None, {"id": 2})


def test_comparisons_with_what_doubles_cannot_hold_are_answered() -> None:
    with adb.connect("memory://") as db:
        table = Table(
            "n",
            db.metadata,
            Column("id", Integer, primary_key=True),
            Column("f", Double),
            Column("d", Numeric(500, 2)),
        )
        db.create_all()
        with db.transaction() as t:
            t.insert(table, {"id": 1, "f": 1.5, "d": 1})
            assert t.query(select(table.c.id).where(table.c.f == math.nan)) == []
            assert t.query(select(table.c.id).where(table.c.d < Decimal("1e400"))) == [(1,)]
            for name, value in (("f", math.nan), ("d", Decimal("NaN")), ("d", Decimal("1e400"))):
                with pytest.raises(InvalidRow, match="keeps doubles"):
                    t.update(table, 1, **{name: value})


def test_one_table_declared_with_and_without_its_schema_is_one(where: Place) -> None:
    db = where.open()
    table = Table(
        "twin", db.metadata, Column("id", Integer, primary_key=True), Column("n", Integer)
    )
    db.create_all()
    twin = Table(
        "twin",
        MetaData(),
        Column("id", Integer, primary_key=True),
        Column("n", Integer),
        schema=db._store.schema,
    )
    with db.transaction() as t:
        t.insert(table, {"id": 1, "n": 0})

    def add(t: adb.Transaction, which: Table) -> None:
        row = t.get(which, 1, for_update=True)
        assert row is not None
        t.update(which, 1, n=row["n"] + 1)

    with db.transaction() as t:
        with t.subtransaction() as s:
            add(s, table)
        add(t, twin)
        assert t.query(select(twin.c.n)) == t.query(select(table.c.n)) == [(2,)]


def test_nothing_waits_for_a_table_with_nowait(where: Place) -> None:
    db, table = numbered(where)
    with db.transaction() as t:
        t.query(select(table).where(table.c.n == 3))  # predicates are asked for from now on
    with db.transaction() as t:
        t.query(select(func.count()).select_from(table))
        waits = lock_waits(db)

        def claim(t: adb.Transaction) -> None:
            t.get(table, 1, for_update=True, nowait=True)

        with pytest.raises(LockNotAvailable):
            in_thread(db.run, claim).result(PATIENCE_S)
        assert lock_waits(db) == waits


def numbered(where: Place) -> tuple[adb.Database, Table]:
    """A table with the rows 1 to 3."""
    db = where.open()
    table = Table(
        "numbered", db.metadata, Column("id", Integer, primary_key=True), Column("n", Integer)
    )
    db.create_all()
    with db.transaction() as t:
        for number in (1, 2, 3):
            t.insert(table, {"id": number, "n": number})
    return db, table
