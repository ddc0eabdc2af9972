"""Keys and values as rows: what is kept exactly, and what is refused."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Uuid,
    create_engine,
)

from activedb.errors import InvalidRow
from activedb.store.sql import KeyedValues, TableSpec


def kept(*columns: Column[Any], key: Any = Integer) -> KeyedValues:
    return KeyedValues(
        TableSpec(Table("t", MetaData(), Column("k", key, primary_key=True), *columns))
    )


def of(kind: Any) -> KeyedValues:
    return kept(Column("v", kind))


SAME: list[tuple[Any, Any]] = [
    (Integer, 3),
    (Float, 0.1),
    (Float, 3),
    (Float, math.inf),
    (Numeric(10, 2), Decimal("1.50")),
    (Numeric(10, 2), 1),
    (String, "ä"),
    (Boolean, True),
    (Date, date(2024, 2, 29)),
    (DateTime, datetime(2024, 2, 29, 1, 2, 3, 4)),
    (DateTime(timezone=True), datetime(2024, 2, 29, tzinfo=UTC)),
    (Uuid, uuid.UUID(int=7)),
    (LargeBinary, b"\0x"),
    (JSON, {"a": [1, 2.5, None, "x"]}),
    (JSON, None),
]


@pytest.mark.parametrize(("kind", "value"), SAME)
def test_value_comes_back_as_it_was_given(kind: Any, value: Any) -> None:
    values = of(kind)
    assert values.pair(values.row(1, value)) == (1, value)


REFUSED: list[tuple[Any, Any, str]] = [
    (Integer, 0.5, "takes Integer"),
    (Integer, True, "takes Integer"),
    (Integer, "1", "takes Integer"),
    (Numeric(10, 2), Decimal("1.005"), "would return Decimal"),
    (Numeric(10, 2), 0.1, "would return Decimal"),
    (String, "\0", "cannot keep"),
    (DateTime, datetime(2024, 1, 1, tzinfo=UTC), "has no time zone"),
    (DateTime(timezone=True), datetime(2024, 1, 1), "give .* a time zone"),
    (Uuid, str(uuid.UUID(int=7)), "would return UUID"),
    (JSON, (1, 2), r"would return \[1, 2\]"),
    (JSON, {1: 2}, "would return"),
    (JSON, {1, 2}, "cannot keep"),
]


@pytest.mark.parametrize(("kind", "value", "message"), REFUSED)
def test_value_that_would_not_come_back_is_refused(kind: Any, value: Any, message: str) -> None:
    with pytest.raises(InvalidRow, match=message):
        of(kind).row(1, value)


def test_several_columns_are_a_dict() -> None:
    values = kept(Column("a", Integer), Column("b", String))
    row = values.row(1, {"b": "x", "a": None})
    assert dict(row) == {"k": 1, "a": None, "b": "x"}
    assert values.pair(row) == (1, {"a": None, "b": "x"})
    for wrong in ({"a": 1}, {"a": 1, "b": "x", "c": 2}, (1, "x")):
        with pytest.raises(InvalidRow, match="is a dict of a, b"):
            values.row(1, wrong)


def test_composite_key_is_a_tuple() -> None:
    values = kept(Column("l", String, primary_key=True), Column("v", Integer))
    assert values.pair(values.row((1, "x"), 5)) == ((1, "x"), 5)
    with pytest.raises(InvalidRow, match="give 2 value"):
        values.row(1, 5)


def test_key_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidRow, match="column k takes Integer"):
        of(Integer).row("x", 1)
    with pytest.raises(InvalidRow, match="comes back as"):
        kept(Column("v", Integer), key=Uuid).row(str(uuid.UUID(int=7)), 1)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text() | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(JSONS)
def test_json_that_is_taken_comes_back_from_a_database(value: Any) -> None:
    table = Table("t", MetaData(), Column("k", Integer, primary_key=True), Column("v", JSON))
    values = KeyedValues(TableSpec(table))
    try:
        row = values.row(1, value)
    except InvalidRow:
        return
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(table.insert(), dict(row))
        found = values.spec.row(connection.execute(table.select()).one())
        assert values.pair(found) == (1, value)
    engine.dispose()
