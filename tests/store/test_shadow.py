"""Dirty rows come back as committed ones do, whatever their types; indexes stay in use."""

from __future__ import annotations

import datetime
import enum
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Computed,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    String,
    Table,
    Text,
    Time,
    TypeDecorator,
    Uuid,
    event,
    func,
    select,
    text,
)
from sqlalchemy.dialects import postgresql

if TYPE_CHECKING:
    import activedb as adb
    from tests.databases import Place

UTC = datetime.UTC


class Color(enum.Enum):
    """A type of its own on the server."""

    RED = 1
    BLUE = 2


class Shouted(TypeDecorator[str]):
    """Text that is stored in capitals."""

    impl = String(20)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value.upper()

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value.lower()


COMMON: dict[str, tuple[Any, list[Any]]] = {
    "big": (BigInteger, [2**62, -1]),
    "yes": (Boolean, [True, False]),
    "day": (Date, [datetime.date(2024, 2, 29)]),
    "at": (DateTime(timezone=True), [datetime.datetime(2024, 1, 1, 12, 30, 1, 5, UTC)]),
    "local": (DateTime, [datetime.datetime(1999, 12, 31, 23, 59, 59, 999_999)]),
    "hour": (Time, [datetime.time(12, 30)]),
    "span": (Interval, [datetime.timedelta(days=3, seconds=1)]),
    "real": (Float, [1.5, 1e300, 3.0]),
    "price": (Numeric(10, 2, asdecimal=True), [Decimal("12.30"), Decimal("5.00")]),
    "name": (String(20), ["", "it's", "ü%:x", "5", "007"]),
    "note": (Text, ["long " * 50, "\\x41", "{a,b}", 'say "x", NULL']),
    "raw": (LargeBinary, [b"", b"\x00\xff'"]),
    "tree": (JSON, [{"a": [1, None, "x"]}, [], "text", 5]),
    "id2": (Uuid, [uuid.UUID(int=5)]),
    "color": (Enum(Color, name="color_of_shadow"), list(Color)),
    "plain": (Enum("x", "y", native_enum=False), ["x", "y"]),
    "shout": (Shouted, ["abc"]),
    "sorted": (String(5, collation="C"), ["a", "B"]),
}

POSTGRES: dict[str, tuple[Any, list[Any]]] = {
    "tags": (postgresql.ARRAY(String), [[], ["a", "b,{}"], ["NULL", None]]),
    "grid": (postgresql.ARRAY(Integer, dimensions=2), [[[1, 2], [3, 4]]]),
    "doc": (postgresql.JSONB, [{"b": 1}, [1]]),
    "address": (postgresql.INET, ["10.0.0.1"]),
    "range": (postgresql.INT4RANGE, [postgresql.Range(1, 5)]),
}


@pytest.mark.parametrize("arrays", [False, True])
def test_query_of_dirty_rows_gives_what_committed_rows_give(where: Place, arrays: bool) -> None:
    if where.is_memory and arrays:
        pytest.skip("SQLite has no such types")
    db = where.open()
    types = dict(COMMON) | (POSTGRES if arrays else {})
    if where.is_memory:
        del types["sorted"]
    columns = [Column(name, of) for name, (of, _) in types.items()]
    things = Table("things", db.metadata, Column("id", Integer, primary_key=True), *columns)
    db.create_all()
    rows: list[dict[str, Any]] = [{"id": 0, **dict.fromkeys(types)}]
    for number in range(max(len(values) for _, values in types.values())):
        row = {name: values[number % len(values)] for name, (_, values) in types.items()}
        rows.append({"id": number + 1, **row})
    questions = [
        select(things).order_by(things.c.id),
        *(select(things.c.id).where(things.c[n] == values[0]) for n, (_, values) in types.items()
          if n not in ("tree", "tags", "grid")),
        *(select(things.c.id).where(things.c[n].is_(None)) for n in set(types) - {"tree", "doc"}),
        select(things.c.name).order_by(things.c.name, things.c.id),
        select(things.c.price / 2, things.c.real / 2, things.c.id / 2).order_by(things.c.id),
        select(func.sum(things.c.price), func.max(things.c.at), func.min(things.c.name)),
    ]  # fmt: skip
    if not where.is_memory:
        questions.append(select(things.c.sorted).order_by(things.c.sorted, things.c.id))
    with db.transaction() as t:
        t.insert(things, {**rows[1], "id": 99})
    with db.transaction() as t:
        t.delete(things, 99)
        for row in rows:
            t.insert(things, row)
        dirty = [[tuple(row) for row in t.query(question)] for question in questions]
    with db.transaction() as t:
        committed = [[tuple(row) for row in t.query(question)] for question in questions]
    for question, one, other in zip(questions, dirty, committed, strict=True):
        assert repr(sorted(one, key=repr)) == repr(sorted(other, key=repr)), str(question)
    assert len(dirty[0]) == len(rows)


def test_query_computes_the_columns_that_the_database_computes(db: adb.Database) -> None:
    boxes = Table(
        "boxes",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("wide", Integer),
        Column("high", Integer),
        Column("area", Integer, Computed("wide * high", persisted=True)),
    )
    db.create_all()
    with db.transaction() as t:
        t.insert(boxes, {"id": 1, "wide": 2, "high": 3})
        t.insert(boxes, {"id": 2, "wide": 4, "high": None})
    with db.transaction() as t:
        t.update(boxes, 1, wide=5)
        assert t.query(select(boxes.c.area).order_by(boxes.c.id)) == [(15,), (None,)]
        assert t.execute(boxes.update().values(high=2).returning(boxes.c.area)) == [(10,), (8,)]


def test_query_by_key_and_by_index_over_dirty_rows_uses_the_indexes(where: Place) -> None:
    if where.is_memory:
        pytest.skip("asks Postgres for its plan")
    db = where.open()
    wide = Table(
        "wide",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("other", Integer, index=True),
        Column("n", Integer),
    )
    db.create_all()
    with db._store.short() as connection:
        connection.execute(
            text("INSERT INTO wide SELECT i, i, 0 FROM generate_series(1, 20000) AS i")
        )
        connection.execute(text("ANALYZE wide"))
    again = wide.alias("again")
    questions = [
        select(wide).where(wide.c.id == 70),
        select(wide.c.n).where(wide.c.other.in_([5, 6])),
        select(wide.c.id, again.c.n).where(wide.c.id == 9, again.c.id == wide.c.id),
        text("SELECT w.n FROM wide w WHERE w.id BETWEEN 3 AND 9 AND w.other > 4"),
        text("SELECT n FROM wide WHERE id = (SELECT max(id) FROM wide v WHERE v.id < 50)"),
    ]
    sent: list[tuple[str, Any]] = []
    with db.transaction() as t:
        for key in range(1, 300):
            t.update(wide, key, n=1)
        event.listen(
            db._store.engine,
            "after_cursor_execute",
            lambda c, cursor, sql, values, *more: sent.append((sql, values)),
        )
        for question in questions:
            t.query(question)
        t.abort()
    asked = [(sql, values) for sql, values in sent if "activedb_seen_1" in sql]
    assert len(asked) >= len(questions)
    for sql, values in asked:
        with db._store.short() as connection:
            plan = connection.exec_driver_sql(f"EXPLAIN {sql}", values).scalars().all()
        assert not [line for line in plan if "Seq Scan on wide" in line], "\n".join(plan)
