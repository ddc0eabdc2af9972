"""Statements of several rows, whose constraints hold at the end of the statement."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sqlalchemy import (
    Column,
    ForeignKey,
    Identity,
    Integer,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    case,
    delete,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from activedb.errors import ForeignKeyViolation
from activedb.store.session import Store
from activedb.transactions._rows import read_locked, write_rows
from tests.store.flushing import WriteSet, insert_rows, opened, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.databases import Place

FEW, MANY = 3, 300


def tree(metadata: MetaData) -> Table:
    return Table(
        "tree",
        metadata,
        Column("id", Integer, Identity(always=True), primary_key=True),
        Column("parent", ForeignKey("tree.id")),
        Column("note", String(5)),
    )


@pytest.mark.parametrize("count", [FEW, MANY])
def test_rows_that_refer_to_each_other_are_inserted_and_deleted_by_one_statement(
    where: Place, count: int
) -> None:
    with where.open() as db:
        table = tree(db.metadata)
        db.create_all()
        rows = [{"id": n, "parent": n + 1} for n in range(1, count)] + [
            {"id": count, "parent": None},
        ]
        assert db.run(lambda t: t.execute(insert(table).values(rows))) == count
        back = [{"id": count + n, "parent": count + n - 1} for n in range(1, count)]
        db.run(lambda t: t.execute(insert(table).values(back)))
        assert db.run(lambda t: t.execute(delete(table))) == 2 * count - 1


def test_delete_of_rows_that_others_refer_to_is_still_refused(store: Store) -> None:
    table = tree(store.metadata)
    store.create_all()
    insert_rows(store, table, [{"id": 1}, {"id": 2, "parent": 1}, {"id": 3, "parent": 2}])
    steps = WriteSet(store)
    with steps.statement(table):
        for row in rows_of(store, table)[:2]:
            steps.delete(table, row)
    with pytest.raises(ForeignKeyViolation) as caught:
        steps.commit()
    assert caught.value.table == "tree"
    assert caught.value.key
    assert len(rows_of(store, table)) == 3


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_deletes_updates_and_inserts_that_are_written_together_are_not_one_statement(
    where: Place, order: tuple[int, ...]
) -> None:
    """The changed state of a program on a stream is written so."""
    with where.open() as db:
        unique = Column("name", String(5), unique=True)
        table = Table("named", db.metadata, Column("id", Integer, primary_key=True), unique)
        db.create_all()
        with db.transaction() as t:
            for number, name in enumerate("abc", 1):
                t.insert(table, {"id": number, "name": name})
        with db.transaction() as t:
            t.update(table, 3, name="d")
            node = t._node
            spec = node.forest.tables.spec(table)
            new = {(1,): None, (2,): {"id": 2, "name": "c"}, (4,): {"id": 4, "name": "a"}}
            old = read_locked(node, spec, list(new))
            versions = [(key, old[key], row) for key, row in new.items()]
            write_rows(node, spec, [versions[number] for number in order])
        rows = db.run(lambda t: t.query(select(table).order_by(table.c.id)))
        assert [tuple(row) for row in rows] == [(2, "c"), (3, "d"), (4, "a")]


def test_rows_with_a_composite_key_are_deleted_by_one_statement(store: Store) -> None:
    table = Table(
        "pairs",
        store.metadata,
        Column("a", Integer, primary_key=True),
        Column("b", String(5), primary_key=True),
        Column("c", Integer, unique=True),
        Column("other", ForeignKey("pairs.c")),
    )
    store.create_all()
    rows = [{"a": 1, "b": "x", "c": 1, "other": None}, {"a": 1, "b": "y", "c": 2, "other": 1}]
    insert_rows(store, table, rows)
    steps = WriteSet(store)
    with steps.statement(table):
        for row in rows:
            steps.delete(table, row)
    steps.commit()
    assert rows_of(store, table) == []


# -- random statements -----------------------------------------------------------------------------

IDS = st.sets(st.integers(1, 5), min_size=1, max_size=4)
MAYBE_ID = st.sampled_from([None, 1, 2, 3, 4, 5])
ROWS = st.lists(st.tuples(MAYBE_ID, MAYBE_ID), min_size=5, max_size=5)
STATEMENTS = st.lists(
    st.tuples(st.sampled_from(["insert", "update", "delete"]), IDS, ROWS), min_size=3, max_size=12
)
"""Kind, keys, and the values of the rows with those keys."""


def declared(metadata: MetaData, name: str, *, is_server: bool) -> Table:
    deferrable = UniqueConstraint("v", deferrable=True, initially="IMMEDIATE")
    return Table(
        name,
        metadata,
        Column("id", Integer, primary_key=True),
        Column("parent", ForeignKey(f"{name}.id")),
        Column("v", Integer),
        *([deferrable] if is_server else []),
    )


@pytest.fixture(scope="module", params=["memory", "postgres"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Store, Table, Table]]:
    is_server = request.param == "postgres"
    with opened(request.getfixturevalue("postgres_url") if is_server else None) as store:
        table = declared(store.metadata, "flushed", is_server=is_server)
        plain = declared(store.metadata, "plain", is_server=is_server)
        store.create_all()
        yield store, table, plain


@pytest.mark.long
@given(batches=st.lists(STATEMENTS, min_size=2, max_size=3))
def test_statements_that_plain_sql_accepts_are_accepted(
    pair: tuple[Store, Table, Table], batches: list[list[Any]]
) -> None:
    store, table, plain = pair
    with store.short() as connection:
        for each in (table, plain):
            connection.execute(delete(each))
    for batch in batches:
        write_set = WriteSet(store)
        seen: dict[int, Mapping[str, Any]] = {row["id"]: row for row in rows_of(store, plain)}
        with store.short() as connection:
            for kind, ids, values in batch:
                keys = sorted(n for n in ids if (n in seen) is (kind != "insert"))
                if not keys:
                    continue
                new = {
                    n: {"id": n, "parent": values[n - 1][0], "v": values[n - 1][1]} for n in keys
                }
                where = plain.c.id.in_(keys)
                connection.exec_driver_sql("SAVEPOINT step")
                try:
                    if kind == "insert":
                        connection.execute(insert(plain).values(list(new.values())))
                    elif kind == "delete":
                        connection.execute(delete(plain).where(where))
                    else:
                        now = {
                            name: case(
                                {n: literal(row[name], Integer) for n, row in new.items()},
                                value=plain.c.id,
                            )
                            for name in ("parent", "v")
                        }
                        connection.execute(update(plain).where(where).values(now))
                except IntegrityError:
                    connection.exec_driver_sql("ROLLBACK TO SAVEPOINT step")
                    continue
                with write_set.statement(table):
                    for n in keys:
                        if kind == "insert":
                            write_set.insert(table, new[n])
                        elif kind == "delete":
                            write_set.delete(table, seen.pop(n))
                        else:
                            write_set.update(table, seen[n], **new[n])
                        if kind != "delete":
                            seen[n] = new[n]
        write_set.commit()
        assert rows_of(store, table) == rows_of(store, plain)
