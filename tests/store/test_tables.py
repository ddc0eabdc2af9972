"""Tables as the layers above see them: keys, checks, messages."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Date,
    DateTime,
    Enum,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Uuid,
    insert,
)
from sqlalchemy.dialects.postgresql import CITEXT, INET, TIME, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from activedb.errors import DefinitionError, InvalidRow, PatternError
from activedb.events import updated
from activedb.store.sql import Tables, TableSpec
from tests.ledger import Ledger

METADATA = MetaData()


class Colour(enum.Enum):
    RED = "red"


ALL = Table(
    "everything",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("flag", Boolean, nullable=False),
    Column("ratio", Float),
    Column("price", Numeric(10, 2)),
    Column("name", String(20)),
    Column("at", DateTime(timezone=True)),
    Column("day", Date),
    Column("colour", Enum(Colour)),
    Column("token", Uuid),
)
PAIRS = Table(
    "pairs",
    METADATA,
    Column("a", Integer, primary_key=True),
    Column("b", String(5), primary_key=True),
    Column("n", Integer),
)
GOOD: dict[str, Any] = {"id": 1, "flag": True}


def test_spec_names_the_key_and_what_the_database_numbers() -> None:
    spec = TableSpec(ALL)
    assert (spec.name, spec.key_columns, spec.generated) == ("everything", ("id",), ("id",))
    spec = TableSpec(PAIRS)
    assert (spec.key_columns, spec.generated) == (("a", "b"), ())
    owned = Table("owned", METADATA, Column("id", ForeignKey("everything.id"), primary_key=True))
    assert TableSpec(owned).generated == ()


def test_spec_of_a_table_without_primary_key_is_refused() -> None:
    with pytest.raises(DefinitionError, match="table bare has no primary key"):
        TableSpec(Table("bare", MetaData(), Column("x", Integer)))


def test_writes_into_columns_with_another_key_are_refused(ledger: Ledger) -> None:
    db = ledger.db
    keyed = Table(
        "keyed",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("Sum", Integer, key="total"),
    )
    db.create_all()
    with db.connection() as connection:
        connection.execute(insert(keyed), {"id": 1, "total": 5})
        connection.commit()
    with pytest.raises(PatternError, match="no column 'total': name one of id, Sum"):
        updated(keyed, "total")
    assert updated(keyed, "Sum").keys == {("update", "keyed")}
    with db.transaction() as t:
        assert t.get(keyed, 1) == {"id": 1, "Sum": 5}
        writes: list[Callable[[], object]] = [
            lambda: t.insert(keyed, {"id": 2, "Sum": 1}),
            lambda: t.insert(keyed, {"id": 2, "total": 1}),
            lambda: t.update(keyed, 1, Sum=6),
        ]
        for write in writes:
            with pytest.raises(DefinitionError, match="column Sum has the key 'total'; "):
                write()
        t.delete(keyed, 1)


@pytest.mark.parametrize("thing", ["everything", None, 3, dict, ALL.c.id])
def test_tables_refuse_what_is_no_table(thing: Any) -> None:
    with pytest.raises(DefinitionError, match="neither a SQLAlchemy Table nor a class"):
        Tables().spec(thing)


def test_tables_give_one_spec_for_a_class_and_its_table() -> None:
    class Base(DeclarativeBase):
        pass

    class Pet(Base):
        __tablename__ = "pets"
        ident: Mapped[int] = mapped_column("id", primary_key=True)

    tables = Tables()
    assert tables.spec(Pet) is tables.spec(Pet.__table__) is tables.spec(Pet)
    assert tables.spec(ALL) is not tables.spec(PAIRS)


def test_key_is_a_tuple_for_every_table() -> None:
    assert TableSpec(ALL).key(7) == TableSpec(ALL).key((7,)) == (7,)
    assert TableSpec(PAIRS).key((7, "x")) == (7, "x")
    assert TableSpec(PAIRS).key_of({"n": 0, "b": "x", "a": 7}) == (7, "x")


@pytest.mark.parametrize(
    ("table", "key", "message"),
    [
        (PAIRS, 7, r"the key is \(a, b\), so give 2 value\(s\), not 1: 7"),
        (PAIRS, (1, "x", 2), r"give 2 value\(s\), not 3"),
        (ALL, (), r"give 1 value\(s\), not 0"),
        (ALL, None, "key column id cannot be NULL"),
        (PAIRS, (1, None), "key column b cannot be NULL"),
        (ALL, "7", r"column id takes Integer\(\), not str '7'"),
        (ALL, True, r"column id takes Integer\(\), not bool True"),
        (PAIRS, ("x", 1), r"column a takes Integer\(\), not str 'x'"),
    ],
)
def test_key_that_does_not_fit_is_refused(table: Table, key: Any, message: str) -> None:
    with pytest.raises(InvalidRow, match=f"table {table.name}: .*{message}"):
        TableSpec(table).key(key)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"flagg": 1}, "table everything has no column 'flagg'; it has id, flag, ratio"),
        ({"flag": None}, "column flag is NOT NULL; give it a value"),
        ({"flag": 1}, r"column flag takes Boolean\(\), not int 1"),
        ({"ratio": "0.5"}, r"column ratio takes Float\(\), not str '0.5'"),
        ({"ratio": True}, r"column ratio takes Float\(\), not bool True"),
        ({"price": "1"}, r"column price takes Numeric\(.*\), not str '1'"),
        ({"name": 5}, r"column name takes String\(length=20\), not int 5"),
        ({"at": "2024-01-01"}, r"column at takes DateTime\(.*\), not str"),
    ],
)
def test_row_with_a_wrong_value_is_refused(values: dict[str, Any], message: str) -> None:
    spec = TableSpec(ALL)
    with pytest.raises(InvalidRow, match=message):
        spec.complete({**GOOD, **values})
    with pytest.raises(InvalidRow, match=message):
        spec.changed(spec.complete(GOOD), values)


def test_row_without_a_required_value_is_refused() -> None:
    with pytest.raises(InvalidRow, match="table everything: column flag is NOT NULL"):
        TableSpec(ALL).complete({"id": 1})
    with pytest.raises(InvalidRow, match="table everything: column id is NOT NULL"):
        TableSpec(ALL).complete({"flag": True})


@pytest.mark.parametrize(
    "values",
    [
        {"ratio": 1},
        {"price": Decimal("1.25")},
        {"price": 3},
        {"at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)},
        {"day": datetime.date(2024, 1, 1)},
        {"colour": Colour.RED},
        {"name": None},
    ],
)
def test_row_with_a_right_value_is_taken(values: dict[str, Any]) -> None:
    spec = TableSpec(ALL)
    row = spec.complete({**GOOD, **values})
    assert {name: row[name] for name in values} == values
    assert set(row) == {c.name for c in ALL.columns}
    assert dict(spec.changed(spec.complete(GOOD), values)) == dict(row)


def test_row_keeps_its_key() -> None:
    spec = TableSpec(PAIRS)
    row = spec.complete({"a": 1, "b": "x"})
    assert spec.changed(row, {"a": 1, "n": 5}) == {"a": 1, "b": "x", "n": 5}
    with pytest.raises(InvalidRow, match="an update cannot change key column b"):
        spec.changed(row, {"b": "y"})


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (CITEXT(), "may be equal to the server"),
        (INET(), "may be equal to the server"),
        (TIMESTAMP(precision=0), "is rounded"),
        (TIME(precision=3), "is rounded"),
        (TIME(timezone=True), "in several zones"),
    ],
)
def test_key_of_which_equal_values_look_different_is_refused(kind: Any, why: str) -> None:
    table = Table("odd", MetaData(), Column("id", kind, primary_key=True), Column("n", kind))
    with pytest.raises(DefinitionError, match=f"key column id: .*{why}"):
        TableSpec(table)
