"""Parameters of other types than the columns that they are compared with, beside plain SQL."""

from __future__ import annotations

import operator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Integer,
    Numeric,
    SmallInteger,
    String,
    Table,
    Text,
    bindparam,
    select,
)

from activedb.errors import ActiveDBError
from tests.drawing import SCALE, Worlds

if TYPE_CHECKING:
    from tests.databases import Place

TYPES: dict[str, Any] = {
    "small": SmallInteger(),
    "whole": Integer(),
    "big": BigInteger(),
    "double": Double(),
    "tenths": Numeric(10, 1),
    "exact": Numeric(),
    "rounded": Numeric(10),
    "day": Date(),
    "time": DateTime(),
    "instant": DateTime(timezone=True),
    "truth": Boolean(),
    "name": String(3),
    "text": Text(),
}
NOON = datetime(2020, 1, 1, 12)
VALUES: dict[str, list[Any]] = {
    **{key: [-1, 0, 1, 2] for key in ("small", "whole", "big")},
    "double": [-1.0, 0.0, 1.2, 1.5, 2.0],
    **{key: [Decimal(n) for n in ("-1", "0", "1.2", "1.5", "2")] for key in ("tenths", "exact")},
    "rounded": [Decimal(n) for n in ("-1", "0", "1.4", "1.5", "2")],
    "day": [date(2019, 12, 31), date(2020, 1, 1), date(2020, 1, 2)],
    "time": [NOON.replace(hour=6), NOON, NOON.replace(day=2, hour=0)],
    "instant": [each.replace(tzinfo=UTC) for each in (NOON.replace(hour=6), NOON)],
    "truth": [True, False],
    **{key: ["", "1", "a", "a  ", "abc", "b"] for key in ("name", "text")},
}
GIVEN = [value for values in VALUES.values() for value in values]
COMPARED = (operator.eq, operator.lt, operator.le, operator.gt, operator.ge)


@pytest.mark.long
def test_queries_select_what_plain_sql_selects(there: Place) -> None:
    db = there.open()
    columns = [Column(name, kind) for name, kind in TYPES.items()]
    table = Table("typed", db.metadata, Column("id", Integer, primary_key=True), *columns)
    db.create_all()
    with db.transaction() as t:
        for number in range(6):
            row = {name: VALUES[name][number % len(VALUES[name])] for name in TYPES}
            t.insert(table, {"id": number, **row})
        t.insert(table, {"id": 6})
    worlds = Worlds(400 * SCALE, "types of parameters", refused=10, taken=50)
    for random in worlds:
        name, kind = random.choice(list(TYPES)), random.choice(list(TYPES.values()))
        value = random.choice(VALUES[name] if random.random() < 0.3 else GIVEN)
        condition = random.choice(COMPARED)(table.c[name], bindparam("value", type_=kind))
        for query in (select(table.c.id), select(table)):
            told = f"{name} {condition} {value!r} as {kind!r}"
            with db.connection() as connection:
                try:
                    expected = connection.execute(query.where(condition), {"value": value}).all()
                except Exception:
                    expected = None
            try:
                with db.transaction() as t:
                    found = t.query(query.where(condition), {"value": value})
            except ActiveDBError:
                assert expected is None, told
                worlds.met["refused"] += 1
            else:
                assert expected is not None, told
                assert sorted(map(tuple, found)) == sorted(map(tuple, expected)), told
                worlds.met["taken"] += 1


@pytest.mark.parametrize("name", ["tenths", "exact", "rounded", "name"])
def test_values_are_at_once_what_they_will_be_once_written(there: Place, name: str) -> None:
    db = there.open()
    columns = [Column(each, kind) for each, kind in TYPES.items()]
    table = Table("typed", db.metadata, Column("id", Integer, primary_key=True), *columns)
    db.create_all()
    odd: dict[str, list[Any]] = {
        "tenths": [Decimal("0.25"), Decimal("123456789.06")],
        "exact": [Decimal("1234567890123456789012345678901.25")],
        "rounded": [Decimal("0.5"), Decimal("1.49"), Decimal("-2.5"), 3.7],
        "name": ["a    ", "abc  ", "    "],
    }
    keys = range(len(odd[name]))
    with db.transaction() as t:
        for number, value in enumerate(odd[name]):
            t.insert(table, {"id": number, name: value})
        at_once = [value for (value,) in t.query(select(table.c[name]).order_by(table.c.id))]
        assert [row[name] for row in t.get_many(table, keys).values() if row] == at_once
    with db.transaction() as t:
        assert [row[name] for row in t.get_many(table, keys).values() if row] == at_once


def test_text_longer_than_a_key_is_found_as_plain_sql_finds_it(there: Place) -> None:
    db = there.open()
    table = Table("coded", db.metadata, Column("id", String(3), primary_key=True))
    db.create_all()
    with db.transaction() as t:
        t.insert(table, {"id": "abc   "})
        assert t.get(table, "abc") == {"id": "abc"}
    for text in ("abc", "abc   ", "ab"):
        queries = [
            select(table).where(table.c.id == text),
            select(table).where(table.c.id.in_([text])),
            select(table).where(table.c.id == text).with_for_update(),
        ]
        with db.transaction() as t:
            found = [bool(t.query(query)) for query in queries]
            assert [*found, t.get(table, text) is not None] == [text == "abc"] * 4
