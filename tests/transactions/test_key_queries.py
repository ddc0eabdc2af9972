"""Queries whose WHERE clause names primary keys: they lock these rows, and no table."""

from __future__ import annotations

import enum
import itertools
import re
import threading
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from sqlalchemy import (
    CHAR,
    JSON,
    LABEL_STYLE_TABLENAME_PLUS_COL,
    REAL,
    Boolean,
    Column,
    Computed,
    Date,
    DateTime,
    Engine,
    Enum,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Select,
    String,
    Table,
    Time,
    TypeDecorator,
    UniqueConstraint,
    Uuid,
    and_,
    bindparam,
    create_engine,
    delete,
    distinct,
    exists,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    text,
    true,
    tuple_,
    union,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

import activedb as adb
from activedb.errors import LockNotAvailable
from lockmgr import Mode, OneOf, Predicate
from tests.databases import PATIENCE_S, in_thread, lock_waits, until
from tests.drawing import SCALE, Worlds
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from activedb import Database
    from tests.databases import Place
    from tests.transactions.bank import Bank

KEYS = range(1, 5)
Rows = dict[str, dict[tuple[int, ...], dict[str, int | None]]]
COLUMNS = {"a": ("id", "x", "b_id"), "b": ("id", "y"), "c": ("p", "q", "z"), "d": ("id", "u", "v")}


class Schema:
    """Two tables with a key of one column, one with a key of two, and one with a unique column.

    The second has a column that the database computes.
    """

    def __init__(self, metadata: MetaData):
        self.a = Table(
            "a",
            metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("x", Integer),
            Column("b_id", Integer),
        )
        self.b = Table(
            "b",
            metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("y", Integer),
            Column("w", Integer, Computed("y + 1")),
        )
        self.c = Table(
            "c",
            metadata,
            Column("p", Integer, primary_key=True, autoincrement=False),
            Column("q", Integer, primary_key=True, autoincrement=False),
            Column("z", Integer),
        )
        self.d = Table(
            "d",
            metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            Column("u", Integer, unique=True),
            Column("v", Integer),
        )

    @property
    def tables(self) -> list[Table]:
        return [self.a, self.b, self.c, self.d]


# -- random statements -----------------------------------------------------------------------------


def statement_over(
    schema: Schema, random: Random, share: float = 0
) -> tuple[Select[Any], dict[str, Any]]:
    """Return a random SELECT with the values of its parameters.

    A `share` of its conditions compares columns that are no keys.
    """
    a, b, c, d = schema.a, schema.b, schema.c, schema.d
    other = a.alias("other")
    part = select(a.c.id, c.c.p).join(c, a.c.x == c.c.q).subquery()
    parameters: dict[str, Any] = {}

    def value() -> int:
        return random.choice(KEYS)

    def values() -> list[int]:
        return random.sample(KEYS, random.randint(1, 2))

    def parameter(given: Any, *, expanding: bool = False) -> Any:
        name = f"p{len(parameters)}"
        parameters[name] = given
        return bindparam(name, expanding=expanding)

    def on(left: Table, right: Table) -> Any:
        """Return a condition on which to join."""
        pairs: dict[Table, list[Any]] = {
            a: [a.c.b_id == right.c[0], a.c.id == right.c[0], a.c.x == right.c[1]],
            b: [b.c.y == right.c[0], b.c.id == right.c[1]],
        }
        more = [
            left.c[0] == value(),
            right.c[0] == value(),
            right.c[0].in_(values()),
            right.c[1] > 1,
            or_(right.c[0] == value(), left.c[1] > 2),
        ]
        return and_(random.choice(pairs[left]), *random.sample(more, random.choice((0, 0, 1))))

    def keyed(table: Table) -> list[Callable[[], Any]]:
        if table is c:
            return [
                lambda: and_(c.c.p == value(), c.c.q == value()),
                lambda: and_(c.c.p == value(), c.c.q.in_(values())),
                lambda: tuple_(c.c.p, c.c.q).in_([(value(), value()), (value(), value())]),
                lambda: tuple_(c.c.q, c.c.p).in_([(value(), value())]),
                lambda: c.c.p == value(),
                lambda: and_(c.c.p == value(), c.c.q == value(), c.c.z == value()),
                lambda: and_(tuple_(c.c.p, c.c.q).in_([(value(), value())]), c.c.q == value()),
            ]
        key = table.c[random.choice(("u", "u", "id") if table is d else ("id",))]
        return [
            lambda: key == value(),
            lambda: value() == key,
            lambda: key.in_(values()),
            lambda: key == parameter(value()),
            lambda: key.in_(parameter(values(), expanding=True)),
            lambda: and_(key == value(), table.c[1] > 1),
            lambda: and_(key == value(), table.c[1] == value()),
            lambda: and_(list(table.c)[-1].in_(values()), key.in_(values())),
            lambda: and_(key == value(), key == value()),
            lambda: and_(key == value(), table.c[1].is_(None)),
            lambda: or_(key == value(), table.c[1] > 2),
            lambda: not_(key == value()),
            lambda: key + 1 == value(),
            lambda: key.in_(select(b.c.y)),
        ]

    def compared(table: Table) -> list[Callable[[], Any]]:
        column = list(table.c)[-1]
        return [
            lambda: column == value(),
            lambda: column > value(),
            lambda: column <= parameter(value()),
            lambda: and_(column >= value(), column < value()),
            lambda: column.in_(values()),
        ]

    sources: list[Callable[[], tuple[Any, list[Table]]]] = [
        lambda: (select(a), [a]),
        lambda: (select(b), [b]),
        lambda: (select(c), [c]),
        lambda: (select(a, b).join(b, a.c.b_id == b.c.id), [a, b]),
        lambda: (select(a, b).outerjoin_from(a, b, a.c.b_id == b.c.id), [a, b]),
        lambda: (select(a, b).outerjoin_from(b, a, a.c.b_id == b.c.id), [a, b]),
        lambda: (select(a.c.id, other.c.id).where(a.c.x == other.c.x), [a]),
        lambda: (select(other).where(other.c.id == value()), []),
        lambda: (select(part).where(part.c.id == value(), part.c.p == value()), []),
        lambda: (select(a.c.id, c.c.z).where(a.c.x == c.c.z), [a, c]),
        lambda: (select(a).where(exists().where(b.c.id == a.c.b_id)), [a]),
        lambda: (select(b).where(exists().where(a.c.b_id == b.c.id, b.c.id == value())), [b]),
        lambda: (select(a).where(a.c.x.in_(select(other.c.b_id))), [a]),
        lambda: (select(b.c.y, select(func.max(a.c.x)).scalar_subquery()), [b]),
        lambda: (select(d), [d]),
        lambda: (select(d), [d]),
        lambda: (select(a, d).join(d, a.c.x == d.c.u), [a, d]),
        lambda: (select(a, d).outerjoin(d, a.c.x == d.c.u), [a]),
        lambda: (select(d, b).outerjoin(b, b.c.id == d.c.v), [d]),
        lambda: (select(a, b).join(b, a.c.id == b.c.w), [b]),
        lambda: (select(b, d).where(d.c[random.choice("uv")] == b.c.w), [b]),
        lambda: (select(a, b).outerjoin_from(a, b, on(a, b)), [a]),
        lambda: (select(a, b).outerjoin_from(b, a, on(a, b)), [b]),
        lambda: (select(a, b).join_from(a, b, on(a, b)), []),
        lambda: (select(a, b).join_from(a, b, on(a, b), full=True), []),
        lambda: (select(a, b, c.c.z).join_from(a, b.join(c, on(b, c)), on(a, b)), [a]),
        lambda: (select(a, b, c.c.z).outerjoin_from(a, b.outerjoin(c, on(b, c)), on(a, b)), [a]),
        lambda: (select(a, b, c.c.z).join(b, on(a, b)).outerjoin(c, on(b, c)), [a, b]),
        lambda: (select(a.c.x, other.c.x).where(a.c.x == other.c.id), [a]),
        lambda: (select(a.c.x, other.c.x).outerjoin(other, a.c.b_id == other.c.id), [a]),
        lambda: (select(a, c.c.z).where(c.c.p == a.c.x, c.c.q == a.c.b_id), [a]),
        lambda: (select(a, c.c.z).where(c.c.p == a.c.x, c.c.q.in_([a.c.b_id, 1])), [a]),
        lambda: (select(a).where(~exists().where(b.c.id == a.c.b_id, b.c.y > 2)), [a]),
        lambda: (select(a, select(b.c.y).where(b.c.id == a.c.b_id).scalar_subquery()), [a]),
        lambda: (select(a).where(a.c.x.in_(select(b.c.y).where(b.c.id == value()))), [a]),
        lambda: (select(select(b).where(b.c.id == value()).cte("named")), []),
        lambda: (
            union(*(select(b.c.id, b.c.y).where(random.choice(keyed(b))()) for _ in "ab")),
            [],
        ),
        lambda: (select(a, func.count()).join(b, on(a, b)).group_by(a.c.id, a.c.x, a.c.b_id), [a]),
    ]
    statement, tables = random.choice(sources)()
    for table in tables:
        for _ in range(random.choice((0, 1, 1, 2))):
            conditions = compared(table) if random.random() < share else keyed(table)
            statement = statement.where(random.choice(conditions)())
    if tables and random.random() < 0.2:
        statement = statement.with_only_columns(
            func.count(), func.sum(distinct(tables[0].c[1])), maintain_column_froms=True
        )
    return statement, parameters


def data(random: Random) -> Rows:
    """Return random rows, some of the keys absent."""

    def number() -> int:
        return random.choice(KEYS)

    found: Rows = {"a": {}, "b": {}, "c": {}, "d": {}}
    for key, unique in zip(KEYS, random.sample([*KEYS, None], len(KEYS)), strict=True):
        if random.random() < 0.8:
            found["d"][(key,)] = {"id": key, "u": unique, "v": number()}
        if random.random() < 0.8:
            found["a"][(key,)] = {"id": key, "x": number(), "b_id": number()}
        if random.random() < 0.8:
            found["b"][(key,)] = {"id": key, "y": number()}
        for other in KEYS:
            if random.random() < 0.5:
                found["c"][key, other] = {"p": key, "q": other, "z": number()}
    return found


def changes(rows: Rows, random: Random) -> Iterator[tuple[str, tuple[int, ...], Any]]:
    """Yield every row or absent key with another content that is allowed: None, or a row."""
    for name, of_table in rows.items():
        wide = 2 if name == "c" else 1
        keys = [(k,) for k in KEYS] if wide == 1 else [(k, m) for k in KEYS for m in KEYS]
        for key in keys:
            if key in of_table:
                yield name, key, None
            free = {column: random.choice(KEYS) for column in COLUMNS[name][wide:]}
            others = (row for known, row in of_table.items() if known != key)
            if name == "d" and any(row["u"] == free["u"] for row in others):
                continue
            yield name, key, {**dict(zip(COLUMNS[name], key, strict=False)), **free}


def written(
    t: adb.Transaction, schema: Schema, rows: Rows, name: str, key: tuple[int, ...], new: Any
) -> None:
    """Make one of `changes` in a transaction, and in `rows`."""
    table = schema.a.metadata.tables[name]
    if new is None:
        t.delete(table, key)
        del rows[name][key]
    else:
        if key in rows[name]:
            t.update(table, key, **{n: new[n] for n in COLUMNS[name][len(key) :]})
        else:
            t.insert(table, new)
        rows[name][key] = new


def in_text(statement: Any, parameters: dict[str, Any], random: Random) -> tuple[Any, Any]:
    """Return a statement as text, with some of its values in the text and some beside it."""
    compiled = statement.params(parameters).compile(
        dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}
    )
    beside: dict[str, int] = {}

    def value(found: re.Match[str]) -> str:
        if random.random() < 0.5:
            return found.group()
        beside[name := f"t{len(beside)}"] = int(found.group(1))
        return f"= :{name}"

    return text(re.sub(r"= (\d)", value, str(compiled))), beside


def result(engine: Engine, schema: Schema, rows: Rows, query: Any, given: Any) -> list[Any]:
    """Return what the statement selects of these rows, in any order."""
    with engine.connect() as connection:
        for table in schema.tables:
            connection.execute(delete(table))
            if rows[table.name]:
                connection.execute(insert(table), list(rows[table.name].values()))
        found = sorted(map(tuple, connection.execute(query, given)), key=repr)
        connection.rollback()
    return found


@pytest.fixture
def engine() -> Iterator[Engine]:
    """Yield an engine of plain SQLite, in memory."""
    engine = create_engine("sqlite://")
    yield engine
    engine.dispose()


@pytest.mark.long
@pytest.mark.parametrize("share", [0, 0.6])
@pytest.mark.parametrize("part", range(4))
def test_no_change_that_the_locks_of_a_query_allow_changes_its_result(
    where: Place, part: int, share: float, engine: Engine
) -> None:
    db = where.open()
    schema = Schema(db.metadata)
    db.create_all()
    db.metadata.create_all(engine)
    worlds = Worlds(
        30 * SCALE, "key queries", part, share, by_key=5, several_by_key=2, by_table=2, changed=20
    )
    for random in worlds:
        rows = data(random)
        query, given = statement_over(schema, random, share)
        if random.random() < 0.5:
            query, given = in_text(query, given, random)
        with db.transaction() as t:
            for table in schema.tables:
                t.execute(delete(table))
                for row in rows[table.name].values():
                    t.insert(table, row)
        with db.transaction() as t:
            if random.random() < 0.5:
                name, key, new = random.choice(list(changes(rows, random)))
                written(t, schema, rows, name, key, new)
            found = sorted(map(tuple, t.query(query, given)), key=repr)
            held = set(node_of(t).held)
        assert found == result(engine, schema, rows, query, given)
        by_key = {name for name, *key in held if key}
        worlds.met["by_key" if by_key else "by_table"] += 1
        worlds.met["several_by_key"] += len(by_key) > 1
        worlds.met["by_unique"] += "d" in by_key
        for name, key, new in changes(rows, random):
            if (name,) in held or (name, key) in held:
                continue
            asked = [part for place, *parts in held if place == name for part in parts]
            both = [row for row in (rows[name].get(key), new) if row is not None]
            if any(isinstance(p, Predicate) and any(map(p.covers, both)) for p in asked):
                continue
            of_table = {k: row for k, row in rows[name].items() if k != key}
            if new is not None:
                of_table[key] = new
            other = result(engine, schema, {**rows, name: of_table}, query, given)
            assert other == found, f"{name} {key} becomes {new}: {query} {given}, held {held}"
            worlds.met["changed"] += 1


@pytest.mark.long
def test_equations_with_any_columns_select_what_they_say(engine: Engine) -> None:
    db = adb.connect("memory://")
    schema = Schema(db.metadata)
    db.create_all()
    db.metadata.create_all(engine)
    for random in Worlds(40 * SCALE, "equations"):
        rows = data(random)
        with db.transaction() as t:
            for table in schema.tables:
                t.execute(delete(table))
                for row in rows[table.name].values():
                    t.insert(table, row)
        for _ in range(20):
            table = random.choice(schema.tables)
            columns = random.choices(list(table.c), k=random.randint(1, 4))
            some = random.sample(KEYS, 2)
            conditions: list[Any] = [
                random.choice((c == some[0], c.in_(some), some[1] == c)) for c in columns
            ]
            query = random.choice((select(table), select(*set(columns)))).where(*conditions)
            with db.transaction() as t:
                found = sorted(map(tuple, t.query(query)), key=repr)
            assert found == result(engine, schema, rows, query, {}), f"{query} {some}"
    db.close()


# -- what is locked --------------------------------------------------------------------------------


def locks_of(t: adb.Transaction) -> set[tuple[object, ...]]:
    return set(node_of(t).held)


@pytest.mark.parametrize("text_of", ["", "text "])
@pytest.mark.parametrize("how", ["query", "for update", "update", "delete"])
def test_statements_with_a_key_lock_its_row(bank: Bank, how: str, text_of: str) -> None:
    a = bank.accounts
    one: Any = a.c.id == 1
    two: Any = a.c.id.in_([1, 9])
    if text_of:
        one, two = text("id = :id").bindparams(id=1), text("accounts.id IN (1, 9)")
    ways: dict[str, Callable[[adb.Transaction], Any]] = {
        "query": lambda t: t.query(select(a.c.balance).where(one)),
        "for update": lambda t: t.query(select(a.c.balance).where(one).with_for_update()),
        "update": lambda t: t.execute(update(a).where(one).values(balance=a.c.balance + 1)),
        "delete": lambda t: t.execute(delete(a).where(two)),
    }
    found = {"query": [(10,)], "for update": [(10,)], "update": 1, "delete": 1}
    with bank.db.transaction() as t:
        assert ways[how](t) == found[how]
        keys = {(1,), (9,)} if how == "delete" else {(1,)}
        mode = Mode.S if how == "query" else Mode.X
        assert node_of(t).held == {("accounts", key): mode for key in keys}


@pytest.mark.parametrize("lazy", ["select", "joined", "selectin"])
def test_mapped_class_by_key_locks_the_rows_that_it_loads_of_its_table(
    db: adb.Database, lazy: Any
) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Person(Base):
        __tablename__ = "persons"
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        boss_id: Mapped[int | None] = mapped_column(ForeignKey("persons.id"))
        boss: Mapped[Person | None] = relationship(lazy=lazy, join_depth=1, remote_side=[id])

    db.create_all()
    with db.transaction() as t:
        t.insert(Person, {"id": 1, "boss_id": None})
        t.insert(Person, {"id": 2, "boss_id": 1})
    with db.transaction() as t:
        ((person,),) = t.query(select(Person).where(Person.id == 2))
        assert person.boss_id == 1
        loaded = {("persons", (1,))} if lazy != "select" else set()
        assert locks_of(t) == {("persons", (2,))} | loaded


@pytest.mark.parametrize(
    "condition",
    [
        "id = 1 OR balance = 3",
        "id + 0 > 1",
        "id <> 1",
        "id = balance",
        "balance = 1.0",
    ],
)
def test_other_conditions_lock_the_table(bank: Bank, condition: str) -> None:
    with bank.db.transaction() as t:
        t.query(select(bank.accounts.c.id).where(text(condition)))
        assert locks_of(t) == {("accounts",)}


def test_values_that_are_no_keys_are_left_to_the_server(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        assert t.query(select(a.c.id).where(a.c.id == bindparam("k")), {"k": None}) == []
        assert t.query(select(a.c.id).where(a.c.id.in_([]))) == []
        assert t.query(select(a.c.id).where(a.c.id == 1.5)) == []
        assert locks_of(t) == {("accounts",)}


def test_many_keys_lock_the_table(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        assert len(t.query(select(a.c.id).where(a.c.id.in_(range(1_000))))) == 2
        assert locks_of(t) == {("accounts",)}


def test_table_that_is_locked_already_is_not_locked_by_key(bank: Bank) -> None:
    a = bank.accounts
    with bank.db.transaction() as t:
        t.query(select(a.c.id))
        t.query(select(a.c.id).where(a.c.id == 1))
        assert locks_of(t) == {("accounts",)}


# -- what waits, and what does not -----------------------------------------------------------------


def test_transactions_that_query_other_keys_do_not_wait_for_each_other(bank: Bank) -> None:
    """Each has read a row, and writes it, while the other one has."""
    a, both = bank.accounts, threading.Barrier(2, timeout=PATIENCE_S)

    def add(t: adb.Transaction, key: int) -> None:
        ((balance,),) = t.query(select(a.c.balance).where(a.c.id == key))
        both.wait()
        t.update(a, key, balance=balance + 1)
        both.wait()

    adding = [in_thread(bank.db.run, add, key) for key in (1, 2)]
    for each in adding:
        each.result(PATIENCE_S)
    assert lock_waits(bank.db) == 0
    assert bank.db.run(lambda t: t.query(select(a.c.balance).order_by(a.c.id))) == [(11,), (21,)]


def test_key_that_a_query_finds_absent_stays_absent(where: Place) -> None:
    """An insert of the key waits, here and in another process."""
    one, two = where.open(), where.open()
    tables = []
    for db in (one, two):
        tables.append(
            Table(
                "things",
                db.metadata,
                Column("id", Integer, primary_key=True, autoincrement=False),
                Column("n", Integer),
            )
        )
        db.create_all()
    if where.is_memory:
        two, tables[1] = one, tables[0]
    query = select(tables[0].c.n).where(tables[0].c.id == 7)
    with one.transaction() as t:
        assert t.query(query) == []
        inserting = in_thread(two.run, lambda u: u.insert(tables[1], {"id": 7, "n": 1}))
        until(lambda: lock_waits(two) or waits_for_key(one, two))
        assert t.query(query) == []
        assert not inserting.done()
    inserting.result(PATIENCE_S)
    assert one.run(lambda t: t.query(query)) == [(1,)]


@pytest.mark.parametrize("option", ["skip_locked", "nowait"])
def test_read_that_must_not_wait_locks_no_row_to_find_those_of_a_subquery(
    bank: Bank, option: str
) -> None:
    a = bank.accounts
    noted = exists().where(bank.notes.c.id == a.c.id)
    options: Any = {option: True}
    query = select(a.c.id).where(a.c.id == 1, ~noted).with_for_update(**options)
    with bank.db.transaction() as t:
        t.get(a, 1, for_update=True)
        ask: Any = in_thread(bank.db.run, lambda u: u.query(query))
        if option == "skip_locked":
            assert ask.result(PATIENCE_S) == []
        else:
            with pytest.raises(LockNotAvailable):
                ask.result(PATIENCE_S)
    assert bank.db.run(lambda t: t.query(query)) == [(1,)]
    assert lock_waits(bank.db) == 0


def open_users(db: adb.Database) -> Table:
    """Return a table with a unique column, and two rows in it."""
    users = Table(
        "users",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("name", String(20), unique=True),
    )
    db.create_all()
    with db.transaction() as t:
        for key, name in ((1, "ann"), (2, "bob")):
            t.insert(users, {"id": key, "name": name})
    return users


def test_query_by_a_unique_value_locks_its_row_and_without_one_the_value(db: adb.Database) -> None:
    users = open_users(db)
    by_name = select(users.c.id).where(users.c.name == bindparam("name"))
    with db.transaction() as t:
        assert t.query(by_name, {"name": "bob"}) == [(2,)]
        assert locks_of(t) == {("users", (2,))}
    with db.transaction() as t:
        t.update(users, 2, name="ben")
        assert t.query(by_name, {"name": "ann"}) == [(1,)]
        assert t.query(by_name, {"name": "ben"}) == [(2,)]  # others might insert it, too
        assert locks_of(t) == {
            ("users", (1,)),
            ("users", (2,)),
            ("users", Predicate([OneOf("name", ["ben"])])),
        }
    with db.transaction() as t:
        t.update(users, 2, name="bob")
    with db.transaction() as t:
        assert t.query(by_name, {"name": "cid"}) == []
        assert locks_of(t) == {("users", Predicate([OneOf("name", ["cid"])]))}
    counted = db.admin.counters()
    assert (counted["queries_locking_rows"], counted["queries_locking_predicates"]) == (2, 2)
    assert "queries_locking_tables" not in counted
    with db.transaction() as t:
        assert t.execute(update(users).where(users.c.name == "ann").values(name="eve")) == 1
        assert node_of(t).held == {("users", (1,)): Mode.X, ("users",): Mode.IX}
    with db.transaction() as t:
        assert t.query(select(users.c.name).where(users.c.name == "eve").with_for_update())
        assert node_of(t).held == {("users", (1,)): Mode.X, ("users",): Mode.IX}


def test_query_by_a_unique_value_that_moves_meanwhile_finds_the_row_that_has_it(
    db: adb.Database,
) -> None:
    users = open_users(db)
    found = threading.Event()

    def query(t: adb.Transaction) -> list[Any]:
        found.set()
        return t.query(select(users.c.id).where(users.c.name == "ann"))

    with db.transaction() as t:
        t.update(users, 1, name="eve")
        querying = in_thread(db.run, query)
        until(lambda: lock_waits(db))
        t.update(users, 2, name="ann")
    assert querying.result(PATIENCE_S) == [(2,)]


def test_query_whose_values_differ_each_time_it_is_sent_ends(db: adb.Database) -> None:
    users, numbers = open_users(db), itertools.count(10)
    below = users.c.id < bindparam("below", callable_=lambda: next(numbers))
    with db.transaction() as t:
        assert t.query(select(users.c.id).where(users.c.name == "ann", below)) == [(1,)]
        assert locks_of(t) >= {("users",)}


def test_parameters_that_are_converted_or_named_by_sqlalchemy_select_what_they_say(
    db: adb.Database,
) -> None:
    users = open_users(db)
    words = Table("words", db.metadata, Column("word", String(20), primary_key=True))
    db.create_all()
    key = users.c.id == 1
    with db.transaction() as t:
        t.insert(words, {"word": "hello"})
        for more in (true(), words.c.word != "other"):
            query = select(words.c.word).where(words.c.word == literal("HELLO", Lower()), more)
            assert t.query(query) == [("hello",)]
    with db.transaction() as t:
        assert t.query(select(users.c.id).where(key), {"id_1": 2}) == [(2,)]
        long = select(users.c.id).where(key).set_label_style(LABEL_STYLE_TABLENAME_PLUS_COL)
        assert t.query(long)[0]._fields == ("users_id",)


def open_seats(where: Place) -> tuple[adb.Database, Table]:
    """Return a table with unique columns, one alone, two together, and one that is computed."""
    db = where.open(threads=4)
    seats = Table(
        "seats",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("name", String(20), unique=True),
        Column("line", Integer),
        Column("place", Integer),
        Column("n", Integer),
        Column("twice", Integer, Computed("n * 2", persisted=True), unique=True),
        UniqueConstraint("line", "place"),
    )
    db.create_all()
    return db, seats


def a_seat(random: Random, key: int) -> dict[str, Any]:
    return {
        "id": key,
        "name": random.choice(["a", "b", "c", None]),
        "line": random.choice([1, 2, None]),
        "place": random.choice([1, 2, None]),
        "n": random.choice([1, 2, 3, 4, None]),
    }


def some_seats(random: Random) -> Iterator[dict[str, Any]]:
    """Yield rows that the constraints allow."""
    taken: set[tuple[Any, ...]] = set()
    for key in KEYS:
        row = a_seat(random, key)
        values = {("name", row["name"]), ("n", row["n"]), (row["line"], row["place"])}
        values = {each for each in values if None not in each}
        if not taken & values:
            taken |= values
            yield row


def seat_questions(seats: Table) -> list[Callable[[Random], Any]]:
    """Return queries by unique values."""
    c, other = seats.c, seats.alias("other")
    ids = select(c.id, c.n)
    return [
        lambda random: ids.where(c.name == random.choice("abc")),
        lambda random: ids.where(c.name.in_(random.sample("abc", 2))),
        lambda random: ids.where(c.name == random.choice("abc"), c.n > 1),
        lambda random: ids.where(c.line == random.choice([1, 2]), c.place == random.choice([1, 2])),
        lambda random: ids.where(c.line.in_([1, 2]), c.place == random.choice([1, 2])),
        lambda random: ids.where(c.line == random.choice([1, 2]), c.place.is_(None)),
        lambda random: ids.where(c.twice == random.choice([2, 4])),
        lambda random: ids.where(c.name == random.choice("abc")).with_for_update(),
        lambda random: (
            select(c.id, other.c.id.label("of"))
            .join(other, other.c.place == c.line)
            .where(c.name == random.choice("abc"), other.c.line == 1)
        ),
    ]


def change_seats(
    seats: Table, seed: float, rows: dict[int, dict[str, Any]], t: adb.Transaction
) -> None:
    """Insert, change, delete or replace some rows, also with values that are taken."""
    random = Random(seed)
    for key in random.sample(KEYS, random.choice([1, 1, 2])):
        new = a_seat(random, key)
        if key not in rows:
            t.insert(seats, new)
        elif random.random() < 0.5:
            t.update(seats, key, **{name: new[name] for name in new if name != "id"})
        else:
            t.delete(seats, key)
            if random.random() < 0.5:
                t.insert(seats, new)


@pytest.mark.long
@pytest.mark.parametrize("is_written_first", [False, True])
def test_query_by_unique_values_has_one_answer_whatever_a_sibling_writes(
    where: Place, is_written_first: bool
) -> None:
    """No constraint keeps rows of one hierarchy apart before its commit."""
    db, seats = open_seats(where)
    worlds = Worlds(60 * SCALE, "siblings", is_written_first, waited=5, beside=5, found=5)
    for random in worlds:
        rows = {row["id"]: row for row in some_seats(random)}
        with db.transaction() as t:
            t.execute(delete(seats))
            for row in rows.values():
                t.insert(seats, row)
        question = random.choice(seat_questions(seats))(random)
        first, second, has_waited = answers_beside(
            db, question, partial(change_seats, seats, random.random(), rows), is_written_first
        )
        assert first == second, str(question)
        worlds.met["waited" if has_waited else "beside"] += 1
        worlds.met["found"] += bool(first)


def answers_beside(
    db: adb.Database,
    question: Any,
    change: Callable[[adb.Transaction], object],
    is_written_first: bool,
) -> tuple[list[Any], list[Any], bool]:
    """Ask twice, and have a sibling write before or in between unless one waits for the other.

    Returns both answers, and whether one waited.
    """
    steps = [threading.Event() for _ in range(4)]
    asked, may_ask_again, written, may_end = steps

    def ask(s: adb.Transaction) -> tuple[list[Any], list[Any]]:
        first = sorted(map(tuple, s.query(question)))
        asked.set()
        assert may_ask_again.wait(PATIENCE_S)
        return first, sorted(map(tuple, s.query(question)))

    def write(s: adb.Transaction) -> None:
        change(s)
        written.set()
        assert may_end.wait(PATIENCE_S)

    with db.transaction() as t:
        before = lock_waits(db)
        try:
            if is_written_first:
                writing = t.spawn(write)
                until(lambda: written.is_set() or writing.is_done)
                asking = t.spawn(ask)
                until(lambda: asked.is_set() or asking.is_done or lock_waits(db) > before)
            else:
                asking = t.spawn(ask)
                until(lambda: asked.is_set() or asking.is_done)
                writing = t.spawn(write)
                until(lambda: written.is_set() or writing.is_done or lock_waits(db) > before)
            has_waited = lock_waits(db) > before
            may_end.set()
            until(lambda: writing.is_done or (has_waited and not is_written_first))
        finally:
            for step in steps:
                step.set()
        first, second = asking.result()
        writing.result()
        t.abort()
    return first, second, has_waited


UNIQUE_VALUES: dict[str, Callable[[adb.Transaction, Table], object]] = {
    "inserted": lambda s, seats: s.insert(seats, {"id": 2, "name": "a"}),
    "moved": lambda s, seats: s.update(seats, 3, name="a"),
    "moved by a statement": lambda s, seats: s.execute(
        update(seats).where(seats.c.id == 3).values(name="a")
    ),
    "inserted by a statement": lambda s, seats: s.execute(insert(seats), [{"id": 2, "name": "a"}]),
    "computed": lambda s, seats: s.update(seats, 3, n=1),
    "of several columns": lambda s, seats: s.insert(seats, {"id": 2, "line": 1, "place": 1}),
}


@pytest.mark.parametrize("way", UNIQUE_VALUES)
def test_unique_value_that_a_query_has_found_is_not_given_to_another_row_by_a_sibling(
    where: Place, way: str
) -> None:
    db, seats = open_seats(where)
    with db.transaction() as t:
        t.insert(seats, {"id": 1, "name": "a", "line": 1, "place": 1, "n": 1})
        t.insert(seats, {"id": 3, "name": "c", "line": 1, "place": None, "n": 3})
    c = seats.c
    several = and_(c.line == 1, c.place == 1)
    found = {"computed": c.twice == 2, "of several columns": several}.get(way, c.name == "a")
    question = select(c.id).where(found)
    change = UNIQUE_VALUES[way]
    answers = answers_beside(db, question, lambda s: change(s, seats), is_written_first=False)
    assert answers == ([(1,)], [(1,)], True)
    first, second, has_waited = answers_beside(
        db, question, lambda s: change(s, seats), is_written_first=True
    )
    assert first == second
    assert has_waited


def test_queries_by_unique_values_lock_no_values_where_nothing_runs_beside_them(
    db: adb.Database,
) -> None:
    """Others are kept out by the constraint."""
    users = open_users(db)
    query = select(users.c.id).where(users.c.name == "ann")
    with db.transaction() as t:
        assert t.query(query) == [(1,)]
        with t.subtransaction() as s:
            assert s.query(query) == [(1,)]
            assert locks_of(s) == {("users", (1,))}
    with db.transaction() as t:
        assert t.spawn(lambda s: (s.query(query), locks_of(s))).result() == (
            [(1,)],
            {("users", (1,)), ("users", Predicate([OneOf("name", ["ann"])]))},
        )


VERSIONS: dict[str, tuple[Any, Any, Any]] = {
    "CHAR": (CHAR(4), "ab", "xy"),
    "REAL": (REAL(), 0.5, 0.1),
    "NUMERIC": (Numeric(8, 2), Decimal("1.15"), Decimal("2.345")),
    "text": (String(9), "ab", "xy"),
    "JSON": (JSON(), {"a": 1}, {"b": [1, 2]}),
    "computed": (Integer(), 1, 5),
}


def type_table(db: adb.Database, kind: str) -> Table:
    """Return a table with a value of a type, and a column that the database computes."""
    of_type, old, _ = VERSIONS[kind]
    computed = [Column("twice", Integer, Computed("value * 2"))] if kind == "computed" else []
    table = Table(
        "versions",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("value", of_type),
        *computed,
    )
    db.create_all()
    with db.transaction() as t:
        t.insert(table, {"id": 1, "value": old})
    return table


@pytest.mark.parametrize("kind", VERSIONS)
@pytest.mark.parametrize("to_write", [False, True])
def test_query_by_key_that_waits_for_a_sibling_answers_like_every_later_one(
    db: adb.Database, kind: str, to_write: bool
) -> None:
    table = type_table(db, kind)
    query = select(*table.c[1:]).where(table.c.id == 1)
    asked = query.with_for_update() if to_write else query
    is_written = threading.Event()

    def write(s: adb.Transaction) -> None:
        s.update(table, 1, value=VERSIONS[kind][2])
        is_written.set()
        until(lambda: lock_waits(db))

    def ask(s: adb.Transaction) -> list[Any]:
        assert is_written.wait(PATIENCE_S)
        return [s.query(asked), s.query(asked), s.query(query.order_by(table.c.id))]

    with db.transaction() as t:
        t.spawn(write)
        first, second, third = t.spawn(ask).result()
    assert first == second == third
    if kind in ("CHAR", "computed"):
        assert first == db.run(lambda t: t.query(query))


def waits_for_key(one: adb.Database, two: adb.Database) -> bool:
    return one is not two and any(backend.blockers for backend in two._store.backends())


@pytest.mark.parametrize("is_written", [False, True], ids=["committed", "written"])
def test_row_of_a_key_query_has_names_places_and_columns(bank: Bank, is_written: bool) -> None:
    accounts = bank.accounts
    with bank.db.transaction() as t:
        if is_written:
            t.update(accounts, 1, balance=7)
        (row,) = t.query(select(accounts).where(accounts.c.id == 1))
        (one,) = t.query(select(accounts.c.balance).where(accounts.c.id.in_([1])))
        seen = t.get(accounts, 1)
    assert seen is not None
    assert row._fields == tuple(c.name for c in accounts.columns)
    assert (row.id, row[1], row._mapping["balance"]) == (1, seen["balance"], seen["balance"])
    assert row._mapping[accounts.c.balance] == one._mapping[accounts.c.balance] == one.balance


class Color(enum.Enum):
    """A value that has a name at the server."""

    RED = "r"


class Lower(TypeDecorator[str]):
    """Text that is stored in lower case and shown in upper case."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value.lower()

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return None if value is None else value.upper()


VALUES: dict[str, tuple[Any, Any]] = {
    "numeric": (Numeric(10, 2), Decimal("1.5")),
    "float": (Float, 1),
    "enum": (Enum(Color), Color.RED),
    "json": (JSON, {"a": [1]}),
    "instant": (
        DateTime(timezone=True),
        datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))),
    ),
    "date": (Date, date(2026, 1, 1)),
    "time": (Time, time(1, 2)),
    "bytes": (LargeBinary, b"x"),
    "boolean": (Boolean, True),
    "uuid": (Uuid, UUID(int=7)),
    "decorated": (Lower(20), "Hello"),
    "fixed": (CHAR(5), "ab"),
}


def test_values_of_a_key_query_are_those_of_a_scan(db: Database) -> None:
    columns = [Column(name, kind) for name, (kind, _) in VALUES.items()]
    table = Table("kinds", db.metadata, Column("id", Integer, primary_key=True), *columns)
    db.create_all()
    with db.transaction() as t:
        t.insert(table, {"id": 1, **{name: value for name, (_, value) in VALUES.items()}})
    found = []
    for condition in (table.c.id == 1, table.c.id.in_([1, 2]), table.c.id > 0):
        with db.transaction() as t:
            (row,) = t.query(select(table).where(condition))
        found.append([(value, type(value)) for value in row])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("by", ["id", "n"])
def test_join_through_a_computed_column_of_an_unwritten_row_locks_what_it_reads(
    where: Place, by: str
) -> None:
    db = where.open()
    schema = Schema(db.metadata)
    db.create_all()
    b, d = schema.b, schema.d
    column = d.c.id if by == "id" else d.c.v
    query = select(d.c.v).join(b, column == b.c.w).where(b.c.id == 1)
    with db.transaction() as t:
        t.insert(b, {"id": 1, "y": 0})
        t.insert(d, {"id": 3, "u": 3, "v": 3})
    with db.transaction() as t:
        t.update(b, 1, y=2)
        assert t.query(query) == [(3,)]
        held = locks_of(t)
        assert ("d",) in held or ("d", (3,)) in held
