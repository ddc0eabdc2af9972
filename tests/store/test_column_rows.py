"""Rows as columns: what is written comes back, whatever types the server's columns have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Identity,
    Integer,
    SmallInteger,
    Table,
    delete,
    select,
    text,
)

from activedb.errors import ConstraintViolation, InvalidRow, SerializationConflict, StoreError
from activedb.store.flush import ColumnRows
from activedb.store.sql import TableSpec

if TYPE_CHECKING:
    import activedb as adb
    from tests.databases import Place

KINDS = [SmallInteger, Integer, BigInteger, Identity]
NONE = np.empty(0, np.int64), np.empty(0, np.float64)


def columns(pairs: dict[int, float]) -> tuple[Any, Any]:
    """Keys and values as arrays."""
    return np.array(list(pairs), np.int64), np.array(list(pairs.values()), np.float64)


def write(
    db: adb.Database, rows: ColumnRows, added: Any = NONE, changed: Any = NONE, gone: Any = ()
) -> None:
    """Write in a transaction of its own."""
    with db._store.short() as connection:
        rows.write(connection, added=added, changed=changed, gone=np.array(gone, np.int64))


def read(db: adb.Database, rows: ColumnRows) -> dict[Any, Any]:
    """All rows."""
    with db._store.short() as connection:
        keys, values = rows.read(connection)
    return dict(zip(map(int, keys), values, strict=True))


def check(db: adb.Database, rows: ColumnRows) -> None:
    """Rows come, change and go."""
    kept = {n: n / 3 for n in range(500)} | {500: -0.0, 501: float("inf"), 502: 1e-310}
    write(db, rows, columns(kept))
    assert read(db, rows) == kept
    write(db, rows, columns({700: 7.0}), columns({3: 33.0, 4: 44.0}), [0, 1, 2])
    kept = {**kept, 3: 33.0, 4: 44.0, 700: 7.0}
    assert read(db, rows) == {key: kept[key] for key in kept if key > 2}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_written_as_columns_come_back(where: Place, kind: Any) -> None:
    db = where.open()
    if kind is Identity and where.is_memory:
        pytest.skip("SQLite has no identity columns")
    key: Column[Any] = (
        Column("the key", Integer, Identity(always=True), primary_key=True)
        if kind is Identity
        else Column("the key", kind, primary_key=True, autoincrement=False)
    )
    table = Table("a %table", db.metadata, key, Column("a %value", Double))
    db.create_all()
    check(db, ColumnRows(TableSpec(table), "a %value"))


def test_columns_of_other_types_than_declared_are_written_row_by_row(where: Place) -> None:
    db = where.open()
    table = Table(
        "other",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("value", Double),
    )
    with db._store.short() as connection:
        connection.execute(
            text("CREATE TABLE other (id NUMERIC PRIMARY KEY, value DOUBLE PRECISION)")
        )
    check(db, ColumnRows(TableSpec(table), "value"))


def test_null_is_read_as_it_is_and_refusals_are_errors_of_ours(where: Place) -> None:
    db = where.open()
    table = Table(
        "nulls",
        db.metadata,
        Column("id", SmallInteger, primary_key=True, autoincrement=False),
        Column("value", Double),
    )
    db.create_all()
    rows = ColumnRows(TableSpec(table), "value")
    with db.transaction() as t:
        t.insert(table, {"id": 1, "value": None})
    write(db, rows, columns({2: 2.0}))
    assert read(db, rows) == {1: None, 2: 2.0}
    with pytest.raises((StoreError, SerializationConflict)):
        write(db, rows, columns({2: 3.0}))
    if not where.is_memory:
        with pytest.raises((InvalidRow, ConstraintViolation)):
            write(db, rows, columns({40_000: 3.0}))


FLOATS = st.dictionaries(
    st.integers(0, 3),
    st.one_of(st.floats(), st.sampled_from([float("nan"), float("inf"), 2.0**53])),
    max_size=3,
)


@pytest.mark.long
@given(FLOATS, FLOATS)
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_columns_are_kept_or_refused_as_rows_are(
    where: Place, first: dict[int, float], second: dict[int, float]
) -> None:
    db = where.open()
    table = Table(
        "kept",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("value", Double),
    )
    db.create_all()
    rows = ColumnRows(db._forest.tables.spec(table), "value")

    def as_rows(pairs: dict[int, float], known: set[int]) -> None:
        with db.transaction() as t:
            for key, value in pairs.items():
                if key in known:
                    t.update(table, key, value=value)
                else:
                    t.insert(table, {"id": key, "value": value})

    def as_columns(pairs: dict[int, float], known: set[int]) -> None:
        new = {key: value for key, value in pairs.items() if key not in known}
        changed = {key: value for key, value in pairs.items() if key in known}
        write(db, rows, columns(new), columns(changed))

    results: list[Any] = []
    for method in (as_rows, as_columns):
        with db.transaction() as t:
            t.execute(delete(table))
        known: set[int] = set()
        for pairs in (first, second):
            try:
                method(pairs, known)
                known |= pairs.keys()
                results.append("kept")
            except InvalidRow:
                results.append("refused")
        with db.transaction() as t:
            results.append(repr(sorted((r.id, r.value) for r in t.query(select(table)))))
    assert results[:3] == results[3:]
