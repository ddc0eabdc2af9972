"""Columns with default= and onupdate=: a write set keeps the values that it was given."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sqlalchemy import (
    Column,
    DateTime,
    Identity,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    literal,
    text,
    update,
)

from activedb.errors import DefinitionError
from tests.store.flushing import WriteSet, insert_rows, opened, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb.store.session import Store
    from tests.databases import Place

LONG_AGO = datetime.datetime(2020, 1, 1)
ONUPDATES: dict[str, tuple[Any, Any]] = {
    "text": (Text, "app"),
    "function": (Text, lambda: "app"),
    "expression": (Text, literal("app")),
    "of the server": (DateTime, func.now()),
}


@pytest.mark.parametrize("kind", ONUPDATES)
def test_column_with_onupdate_keeps_a_value_that_is_the_old_one(store: Store, kind: str) -> None:
    column_type, onupdate = ONUPDATES[kind]
    table = Table(
        "t",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer),
        Column("by", column_type, onupdate=onupdate),
    )
    store.create_all()
    by = LONG_AGO if column_type is DateTime else "ann"
    row = {"id": 1, "n": 1, "by": by}
    insert_rows(store, table, [row])
    WriteSet(store).update(table, row, n=2, by=by).commit()
    assert rows_of(store, table) == [{"id": 1, "n": 2, "by": by}]


def test_update_by_key_applies_onupdate_each_time(where: Place) -> None:
    with where.open() as db:
        table = Table(
            "t",
            db.metadata,
            Column("id", Integer, primary_key=True),
            Column("n", Integer),
            Column("by", Text, onupdate="app"),
        )
        db.create_all()
        db.run(lambda t: t.insert(table, {"id": 1, "n": 1}))
        for n in (2, 3):
            db.run(lambda t, n=n: t.update(table, 1, n=n))  # type: ignore[misc]
            assert db.run(lambda t: dict(t.get(table, 1) or {})) == {"id": 1, "n": n, "by": "app"}
        db.run(lambda t: t.execute(update(table).values(n=4)))
        assert db.run(lambda t: dict(t.get(table, 1) or {})) == {"id": 1, "n": 4, "by": "app"}


def test_onupdate_that_needs_the_row_is_refused(where: Place) -> None:
    with where.open() as db:
        table = Table(
            "t",
            db.metadata,
            Column("id", Integer, primary_key=True),
            Column("n", Integer),
            Column("v", Integer, default=1, onupdate=text("v + 1")),
        )
        db.create_all()
        db.run(lambda t: t.insert(table, {"id": 1, "n": 1}))
        with pytest.raises(DefinitionError, match=r"table t: .* knows none of the row's columns"):
            db.run(lambda t: t.update(table, 1, n=2))
        with pytest.raises(DefinitionError, match=r"table t: .* knows none of the row's columns"):
            db.run(lambda t: t.execute(update(table).values(n=2)))
        assert db.run(lambda t: t.update(table, 1, n=2, v=2)["v"]) == 2


# -- random steps ----------------------------------------------------------------------------------

IDS = st.integers(0, 3)
VALUES = st.sampled_from([None, 0, 1, 2])
STEP = st.tuples(IDS, st.booleans(), st.fixed_dictionaries(dict.fromkeys("abcd", VALUES)))
STEPS = st.lists(STEP, min_size=4, max_size=20)


def declared(metadata: MetaData, name: str, *, has_defaults: bool) -> Table:
    def column(name: str, **defaults: Any) -> Column[Any]:
        return Column(name, Integer, **(defaults if has_defaults else {}))

    return Table(
        name,
        metadata,
        Column("id", Integer, Identity(always=has_defaults), primary_key=True),
        column("a", default=7, onupdate=8),
        column("b", default=lambda: 7, onupdate=lambda: 8),
        column("c", default=literal(7), onupdate=literal(8)),
        column("d", server_default="7", onupdate=func.abs(-8)),
    )


@pytest.fixture(scope="module", params=["memory", "postgres"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Store, Table, Table]]:
    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    with opened(url) as store:
        table = declared(store.metadata, "with_defaults", has_defaults=True)
        plain = declared(store.metadata, "without", has_defaults=False)
        store.create_all()
        yield store, table, plain


@pytest.mark.long
@given(batches=st.lists(STEPS, min_size=2, max_size=3))
def test_declared_defaults_change_no_row_of_a_write_set(
    pair: tuple[Store, Table, Table], batches: list[list[Any]]
) -> None:
    store, table, plain = pair
    with store.short() as connection:
        connection.execute(delete(table))
        connection.execute(delete(plain))
    for batch in batches:
        seen = {row["id"]: row for row in rows_of(store, plain)}
        write_set = WriteSet(store)
        with store.short() as connection:
            for key, goes, values in batch:
                old, new = seen.get(key), {"id": key, **values}
                if old is None:
                    write_set.insert(table, new)
                    connection.execute(insert(plain), new)
                elif goes:
                    write_set.delete(table, old)
                    connection.execute(delete(plain).where(plain.c.id == key))
                else:
                    write_set.update(table, old, **values)
                    connection.execute(update(plain).where(plain.c.id == key).values(values))
                if old is not None and goes:
                    del seen[key]
                else:
                    seen[key] = new
        write_set.commit()
        assert rows_of(store, table) == rows_of(store, plain)
