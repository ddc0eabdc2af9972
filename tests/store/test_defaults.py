"""Defaults of columns: what memory puts into a column that is left out is what Postgres does."""

from __future__ import annotations

import datetime
import enum
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Enum,
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
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB

import activedb as adb
from activedb.errors import DefinitionError
from tests.databases import place
from tests.drawing import Worlds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from tests.databases import Place


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Doubled(TypeDecorator[int]):
    """Numbers of which the database keeps the half."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: object) -> int | None:
        return None if value is None else value // 2

    def process_result_value(self, value: int | None, dialect: object) -> int | None:
        return None if value is None else value * 2


EPOCH = datetime.datetime(2020, 1, 2, 3, 4, 5, 678)
UUID = "12345678-1234-5678-1234-567812345678"
TEXTS: Sequence[tuple[Any, Sequence[str]]] = (
    (Boolean(), ("true", "false", "T", " off", "1", "0", "no")),
    (JSON(), ('{"a": 1}', "[]", "{}", '"x"', "1.5", "null")),
    (JSONB(), ('{"a": [1, null]}', "{}")),
    (Date(), ("2020-01-02", "2020-01-02 03:04:05")),
    (DateTime(), ("2020-01-02 03:04:05.678", "2020-01-02", "2020-01-02 03:04:05+02")),
    (DateTime(timezone=True), ("2020-01-02 03:04:05+02", "2020-01-02 03:04:05")),
    (Time(), ("03:04:05", "03:04:05.000678")),
    (Interval(), ("1 day", "2 weeks -3 days", "1 hour 30 minutes", "-00:00:01.5", "1 year 1 mon")),
    (Integer(), ("5", "-5")),
    (Double(), ("1.5", "1e3")),
    (Numeric(10, 2), ("1.5", "-2")),
    (String(), ("", "it's 5% :x", "null")),
    (Enum(Colour, name="colour"), ("RED", "BLUE")),
    (LargeBinary(), ("abc", "\\x00ff")),
    (Uuid(), (UUID,)),
    (Uuid(as_uuid=False), (UUID,)),
    (Doubled(), ("5",)),
)
"""Types, and texts that Postgres takes for them."""

EXPRESSIONS: Sequence[tuple[Any, Sequence[Any]]] = (
    (Boolean(), (text("true"), literal(False), text("1 = 2"))),
    (JSON(), (literal({"a": 1}, JSON()),)),
    (Date(), (literal(EPOCH.date()),)),
    (DateTime(), (literal(EPOCH), literal(EPOCH.date()))),
    (DateTime(timezone=True), (literal(EPOCH.replace(tzinfo=datetime.UTC)),)),
    (Time(), (literal(EPOCH.time()),)),
    (Integer(), (text("6 * 7"), func.length("abc"))),
    (Numeric(10, 2), (text("1.5"), literal(2))),
    (Text(), (func.lower("ABC"), text("'a' || 'b'"))),
    (Doubled(), (text("2 + 3"),)),
)
"""Types, and expressions that both databases compute."""


def column(name: str, world: Random) -> Column[Any]:
    """Draw a column with a default."""
    if world.random() < 0.5:
        kind, texts = world.choice(TEXTS)
        chosen = world.choice(texts)
        return Column(name, kind, server_default=world.choice((chosen, quoted(chosen))))
    kind, expressions = world.choice(EXPRESSIONS)
    return Column(name, kind, default=world.choice(expressions))


def outcome(where: Place, columns: Sequence[Column[Any]]) -> list[Any]:
    """Insert rows that leave out columns with defaults, in all ways; return the rows."""
    db = where.open()
    table = Table(
        "things",
        db.metadata,
        Column("id", Integer, primary_key=True),
        *(column._copy() for column in columns),
    )
    db.create_all()
    with db.transaction() as t:
        seen: list[Any] = [dict(t.insert(table, {"id": 1}))]
        t.execute(insert(table), [{"id": 2}, {"id": 3}])
        seen += [dict(row) for row in t.get_many(table, [2, 3]).values() if row is not None]
    with db.connection() as connection:
        connection.execute(insert(table).values(id=4))
        connection.commit()
    with db.transaction() as t:
        seen += [tuple(row) for row in t.query(select(table).order_by(table.c.id))]
    return seen


def test_drawn_defaults_are_those_of_postgres(there: Place) -> None:
    for world in Worlds(5, "defaults"):
        columns = [column(f"c{n}", world) for n in range(12)]
        with place(None) as memory, there.another() as server:
            assert outcome(memory, columns) == outcome(server, columns)


@pytest.mark.long
def test_all_defaults_are_those_of_postgres(there: Place) -> None:
    columns: list[Column[Any]] = []
    for n, (kind, texts) in enumerate(TEXTS):
        for i, each in enumerate(texts):
            columns.append(Column(f"t{n}_{i}", kind, server_default=each))
            columns.append(Column(f"q{n}_{i}", kind, server_default=quoted(each)))
    for n, (kind, expressions) in enumerate(EXPRESSIONS):
        for i, expression in enumerate(expressions):
            columns.append(Column(f"e{n}_{i}", kind, default=expression))
    with place(None) as memory:
        for here, other in zip(outcome(memory, columns), outcome(there, columns), strict=True):
            assert here == other


def quoted(value: str) -> Any:
    """Return a literal of SQL."""
    return text("'" + value.replace("'", "''").replace(":", "\\:") + "'")


@pytest.mark.parametrize("kind", [DateTime(), DateTime(timezone=True), Date(), Time()])
def test_default_of_now_is_a_moment(db: adb.Database, kind: Any) -> None:
    expressions: dict[str, Any] = {
        "now": func.now(),
        "stamp": text("CURRENT_TIMESTAMP"),
        "asked": func.current_timestamp(),
    }
    table = Table(
        "things",
        db.metadata,
        Column("id", Integer, primary_key=True),
        *(
            Column(f"{name}_{how}", kind, **{how: value})
            for name, value in expressions.items()
            for how in ("default", "server_default", "onupdate")
        ),
    )
    db.create_all()
    with db.transaction() as t:
        inserted = t.insert(table, {"id": 1})
        given = {name for name, value in inserted.items() if value is not None}
        assert given == {c.name for c in table.c if "onupdate" not in c.name}
        changed = t.update(table, 1)
        assert all(type(value) is kind.python_type for value in list(changed.values())[1:])
    with db.transaction() as t:
        assert t.get(table, 1) == changed


def test_default_that_memory_cannot_read_is_a_definition_error() -> None:
    with adb.connect("memory://") as db:
        table = Table(
            "things",
            db.metadata,
            Column("id", Integer, primary_key=True),
            Column("at", DateTime, server_default="yesterday"),
        )
        db.create_all()
        with db.transaction() as t:
            t.insert(table, {"id": 1, "at": EPOCH})
            with pytest.raises(DefinitionError, match="cannot read the default 'yesterday' of col"):
                t.insert(table, {"id": 2})


def test_function_of_a_default_sees_the_values_of_its_row(db: adb.Database) -> None:
    def sum_of(context: Any) -> int:
        given = context.get_current_parameters()
        return int(given["n"]) + int(given.get("first", 0))

    table = Table(
        "things",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer),
        Column("first", Integer, default=sum_of),
        Column("second", Integer, default=sum_of, onupdate=sum_of),
    )
    db.create_all()
    with db.transaction() as t:
        assert t.insert(table, {"n": 1}) == {"id": 1, "n": 1, "first": 1, "second": 2}
        t.execute(insert(table), [{"n": 2}, {"n": 3}])
        t.update(table, 1, n=5)
        t.execute(update(table).where(table.c.id == 2).values(n=table.c.n + 5, first=1))
    with db.transaction() as t:
        rows = t.query(select(table.c.n, table.c.first, table.c.second).order_by(table.c.id))
        assert rows == [(5, 1, 5), (7, 1, 8), (3, 3, 6)]
