"""Deletes that change other rows, by ON DELETE CASCADE, SET NULL and SET DEFAULT."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, delete, insert, text, update
from sqlalchemy.exc import IntegrityError

from activedb.store.flush import _bulk
from activedb.store.session import Store
from tests.store.flushing import WriteSet, insert_rows, opened, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sqlalchemy import Connection

MANY = 200
ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT")


def family(store: Store, action: str) -> tuple[Table, Table]:
    """Parents 1 and 2, and a child 1 of parent 1."""
    parents = Table("parents", store.metadata, Column("id", Integer, primary_key=True))
    children = Table(
        "children",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("parent", ForeignKey("parents.id", ondelete=action), server_default=text("2")),
        Column("n", Integer),
    )
    store.create_all()
    insert_rows(store, parents, [{"id": 1}, {"id": 2}])
    insert_rows(store, children, [{"id": 1, "parent": 1, "n": 0}])
    return parents, children


@pytest.mark.parametrize("action", ACTIONS)
def test_child_that_is_moved_before_its_parent_is_deleted_stays(store: Store, action: str) -> None:
    parents, children = family(store, action)
    steps = WriteSet(store)
    steps.update(children, {"id": 1, "parent": 1, "n": 0}, parent=2)
    steps.delete(parents, {"id": 1}).commit()
    assert rows_of(store, parents) == [{"id": 2}]
    assert rows_of(store, children) == [{"id": 1, "parent": 2, "n": 0}]


def test_many_children_that_are_moved_before_their_parents_are_deleted_stay(store: Store) -> None:
    parents, children = family(store, "CASCADE")
    rows = [{"id": n, "parent": n, "n": 0} for n in range(3, MANY)]
    insert_rows(store, parents, [{"id": n} for n in range(3, MANY)])
    insert_rows(store, children, rows)
    steps = WriteSet(store)
    for row in rows:
        steps.update(children, row, parent=2)
        steps.insert(parents, {"id": MANY + row["id"]})
    for row in rows:
        steps.delete(parents, {"id": row["id"]})
    steps.commit()
    assert rows_of(store, children)[1:] == [{**row, "parent": 2} for row in rows]
    assert len(rows_of(store, parents)) == MANY - 1


def test_key_that_is_deleted_and_inserted_again_has_no_children(store: Store) -> None:
    parents, children = family(store, "CASCADE")
    steps = WriteSet(store).delete(parents, {"id": 1}).insert(parents, {"id": 1})
    steps.commit()
    assert rows_of(store, parents) == [{"id": 1}, {"id": 2}]
    assert rows_of(store, children) == []


def test_child_of_an_undeclared_foreign_key_stays(store: Store) -> None:
    with store.short() as connection:
        connection.execute(text("CREATE TABLE z (id INTEGER PRIMARY KEY)"))
        connection.execute(
            text(
                "CREATE TABLE a (id INTEGER PRIMARY KEY, z INTEGER REFERENCES z ON DELETE CASCADE)"
            )
        )
        connection.execute(text("INSERT INTO z VALUES (1), (2)"))
        connection.execute(text("INSERT INTO a VALUES (1, 1)"))
    z = Table("z", store.metadata, Column("id", Integer, primary_key=True))
    a = Table("a", store.metadata, Column("id", Integer, primary_key=True), Column("z", Integer))
    WriteSet(store).update(a, {"id": 1, "z": 1}, z=2).delete(z, {"id": 1}).commit()
    assert rows_of(store, a) == [{"id": 1, "z": 2}]


def test_parent_and_child_of_an_undeclared_foreign_key_are_written(store: Store) -> None:
    with store.short() as connection:
        connection.execute(text("CREATE TABLE z (id INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE a (id INTEGER PRIMARY KEY, z INTEGER REFERENCES z)"))
    z = Table("z", store.metadata, Column("id", Integer, primary_key=True))
    a = Table("a", store.metadata, Column("id", Integer, primary_key=True), Column("z", Integer))
    WriteSet(store).insert(z, {"id": 1}).insert(a, {"id": 1, "z": 1}).commit()
    assert rows_of(store, a) == [{"id": 1, "z": 1}]
    WriteSet(store).delete(a, {"id": 1, "z": 1}).delete(z, {"id": 1}).commit()
    assert rows_of(store, z) == []


# -- random steps ----------------------------------------------------------------------------------

IDS = st.integers(0, 3)
MAYBE_ID = st.sampled_from([None, 0, 1, 2, 3])
NAMES = ("tops", "middles", "lows")
STEP = st.tuples(st.sampled_from(NAMES), IDS, st.booleans(), MAYBE_ID, MAYBE_ID)
STEPS = st.lists(STEP, min_size=4, max_size=20)
"""Table, key, whether a row that is there goes, and the rows that it refers to otherwise."""


def tables(metadata: MetaData, suffix: str, action: str) -> dict[str, Table]:
    """Three levels; the lowest refers to rows of its own table, too."""

    def key() -> Column[Any]:
        return Column("id", Integer, primary_key=True)

    def reference(name: str, table: str) -> Column[Any]:
        target = ForeignKey(f"{table}{suffix}.id", ondelete=action)
        return Column(name, target, server_default=text("0"))

    tops = Table(f"tops{suffix}", metadata, key(), Column("a", Integer), Column("b", Integer))
    middles = Table(
        f"middles{suffix}", metadata, key(), reference("a", "tops"), Column("b", Integer)
    )
    lows = Table(
        f"lows{suffix}", metadata, key(), reference("a", "middles"), reference("b", "lows")
    )
    return dict(zip(NAMES, (tops, middles, lows), strict=True))


@dataclass
class Twins:
    """The same tables twice: one set for flushes, one for plain statements."""

    store: Store
    flushed: dict[str, Table]
    plain: dict[str, Table]

    def clear(self) -> None:
        with self.store.short() as connection:
            for each in (self.flushed, self.plain):
                for table in reversed(each.values()):
                    connection.execute(update(table).values(a=None, b=None))
                    connection.execute(delete(table))

    def rows(self, each: dict[str, Table]) -> dict[str, list[dict[str, Any]]]:
        return {name: rows_of(self.store, table) for name, table in each.items()}


@pytest.fixture(scope="module", params=["memory", "postgres"])
def all_twins(request: pytest.FixtureRequest) -> Iterator[dict[str, Twins]]:
    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    with opened(url) as store:
        found = {}
        for number, action in enumerate(ACTIONS):
            flushed = tables(store.metadata, f"_f{number}", action)
            plain = tables(store.metadata, f"_p{number}", action)
            found[action] = Twins(store, flushed, plain)
        store.create_all()
        yield found


@dataclass
class Steps:
    """Steps that plain SQL has accepted, and the write set of the same ones.

    `seen` are the rows as a transaction sees them: without the effects of cascades.
    """

    twins: Twins
    connection: Connection
    seen: dict[tuple[str, int], Mapping[str, Any]]
    write_set: WriteSet = field(init=False)

    def __post_init__(self) -> None:
        self.write_set = WriteSet(self.twins.store)

    def take(self, name: str, key: int, goes: bool, a: int | None, b: int | None) -> None:
        """Do a step, unless a constraint refuses it."""
        table, flushed = self.twins.plain[name], self.twins.flushed[name]
        old, new = self.seen.get((name, key)), {"id": key, "a": a, "b": b}
        changed = {} if old is None else {n: v for n, v in new.items() if v != old[n]}
        self.connection.exec_driver_sql("SAVEPOINT step")
        try:
            if old is None:
                self.connection.execute(insert(table), new)
            elif goes:
                self.connection.execute(delete(table).where(table.c.id == key))
            elif changed:
                statement = update(table).where(table.c.id == key)
                self.connection.execute(statement.values(changed))
        except IntegrityError:
            self.connection.exec_driver_sql("ROLLBACK TO SAVEPOINT step")
            return
        if old is None:
            self.write_set.insert(flushed, new)
        elif goes:
            self.write_set.delete(flushed, old)
        elif changed:
            self.write_set.update(flushed, old, **changed)
        if old is not None and goes:
            del self.seen[name, key]
        else:
            self.seen[name, key] = new


@pytest.mark.long
@given(
    action=st.sampled_from(ACTIONS),
    batches=st.lists(STEPS, min_size=2, max_size=3),
    in_bulk=st.booleans(),
)
def test_deletes_change_the_same_rows_as_in_plain_sql(
    all_twins: dict[str, Twins], action: str, batches: list[list[Any]], in_bulk: bool
) -> None:
    twins = all_twins[action]
    twins.clear()
    with pytest.MonkeyPatch.context() as patch:
        if in_bulk:
            patch.setattr(_bulk, "COPY_ROWS_MIN", 1)
            patch.setattr(_bulk, "UNNEST_ROWS_MIN", 1)
        for batch in batches:
            rows = twins.rows(twins.plain)
            seen: dict[tuple[str, int], Mapping[str, Any]] = {
                (name, row["id"]): row for name in rows for row in rows[name]
            }
            with twins.store.short() as connection:
                done = Steps(twins, connection, seen)
                for step in batch:
                    done.take(*step)
            done.write_set.commit()
            assert twins.rows(twins.flushed) == twins.rows(twins.plain)
