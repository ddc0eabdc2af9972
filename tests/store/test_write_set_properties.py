"""Random write sets, flushed set by set, against the same steps in plain SQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from activedb.errors import ConstraintViolation
from activedb.store.flush import _bulk
from activedb.store.session import Store
from tests.store.flushing import WriteSet, opened, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

IDS = st.integers(0, 4)
MAYBE_ID = st.sampled_from([None, 0, 1, 2, 3, 4])
NAMES = st.sampled_from([None, "a", "b", "c"])
PERSON = st.fixed_dictionaries({"name": NAMES}, optional={"boss": MAYBE_ID, "n": IDS})
PET = st.fixed_dictionaries({"chip": NAMES}, optional={"owner": MAYBE_ID, "friend": MAYBE_ID})
GOES = st.sampled_from([False, False, True])
STEP = st.tuples(st.just("people"), IDS, GOES, PERSON) | st.tuples(st.just("pets"), IDS, GOES, PET)
STEPS = st.lists(STEP, min_size=8, max_size=30)
"""Table, key, and whether a row that is there goes; one that is not there is inserted."""


def tables(metadata: MetaData, suffix: str) -> dict[str, Table]:
    """People, some of them others' bosses, and their pets."""
    people = Table(
        f"people{suffix}",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("name", String(5), unique=True),
        Column("boss", ForeignKey(f"people{suffix}.id")),
        Column("n", Integer),
    )
    pets = Table(
        f"pets{suffix}",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("chip", String(5), unique=True),
        Column("owner", ForeignKey(f"people{suffix}.id")),
        Column("friend", ForeignKey(f"pets{suffix}.id")),
    )
    return {"people": people, "pets": pets}


@dataclass
class Twins:
    """The same tables twice: one pair for flushes, one for plain statements.

    `undeclared` is the first pair without the declarations of its constraints.
    """

    store: Store
    flushed: dict[str, Table]
    plain: dict[str, Table]
    undeclared: dict[str, Table]

    def clear(self) -> None:
        with self.store.short() as connection:
            for pair in (self.flushed, self.plain):
                connection.execute(update(pair["pets"]).values(friend=None))
                connection.execute(delete(pair["pets"]))
                connection.execute(update(pair["people"]).values(boss=None))
                connection.execute(delete(pair["people"]))

    def rows(self, pair: dict[str, Table]) -> list[list[dict[str, Any]]]:
        return [rows_of(self.store, pair[name]) for name in ("people", "pets")]


@pytest.fixture(scope="module", params=["memory", "postgres"])
def twins(request: pytest.FixtureRequest) -> Iterator[Twins]:
    url = None if request.param == "memory" else request.getfixturevalue("postgres_url")
    with opened(url) as store:
        flushed = tables(store.metadata, "_f")
        bare = MetaData()
        undeclared = {
            name: Table(
                table.name,
                bare,
                *(Column(c.name, c.type, primary_key=c.primary_key) for c in table.columns),
            )
            for name, table in flushed.items()
        }
        pair = Twins(store, flushed, tables(store.metadata, "_p"), undeclared)
        store.create_all()
        yield pair


class Steps:
    """Steps that plain SQL has accepted, and the write set of the same ones."""

    def __init__(self, twins: Twins, connection: Connection, *, declared: bool = True):
        self._twins = twins
        self._flushed = twins.flushed if declared else twins.undeclared
        self._connection = connection
        self.write_set = WriteSet(twins.store)

    def take(self, name: str, key: int, goes: bool, values: dict[str, Any]) -> bool:
        """Do a step; False if a constraint refuses it, and it is left out."""
        table, flushed = self._twins.plain[name], self._flushed[name]
        where = and_(table.c.id == key)
        old = self._connection.execute(select(table).where(where)).mappings().first()
        self._connection.exec_driver_sql("SAVEPOINT step")
        try:
            if old is None:
                self._connection.execute(insert(table), {"id": key, **values})
            elif goes:
                self._connection.execute(delete(table).where(where))
            else:
                self._connection.execute(update(table).where(where).values(values))
        except IntegrityError:
            self._connection.exec_driver_sql("ROLLBACK TO SAVEPOINT step")
            self._refused = (flushed, key, goes, values, old)
            return False
        self._add(flushed, key, goes, values, old)
        return True

    def add_refused(self) -> None:
        """Put the step that was refused last behind the others."""
        self._add(*self._refused)

    def _add(self, table: Table, key: int, goes: bool, values: dict[str, Any], old: Any) -> None:
        if old is None:
            self.write_set.insert(table, {"id": key, **values})
        elif goes:
            self.write_set.delete(table, dict(old))
        else:
            self.write_set.update(table, dict(old), **values)


@pytest.mark.long
@given(committed=STEPS, steps=STEPS, in_bulk=st.booleans(), declared=st.booleans())
def test_write_set_leaves_the_same_rows_as_its_steps_in_plain_sql(
    twins: Twins, committed: list[Any], steps: list[Any], in_bulk: bool, declared: bool
) -> None:
    twins.clear()
    with pytest.MonkeyPatch.context() as patch:
        if in_bulk:
            patch.setattr(_bulk, "COPY_ROWS_MIN", 1)
            patch.setattr(_bulk, "UNNEST_ROWS_MIN", 1)
        for batch in (committed, steps):
            with twins.store.short() as connection:
                done = Steps(twins, connection, declared=declared)
                for step in batch:
                    done.take(*step)
            done.write_set.commit()
            assert twins.rows(twins.flushed) == twins.rows(twins.plain)


@pytest.mark.long
@given(committed=STEPS, steps=STEPS)
def test_write_set_that_ends_in_a_refused_step_is_refused_whole(
    twins: Twins, committed: list[Any], steps: list[Any]
) -> None:
    twins.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_bulk, "COPY_ROWS_MIN", 1)
        patch.setattr(_bulk, "UNNEST_ROWS_MIN", 1)
        with twins.store.short() as connection:
            done = Steps(twins, connection)
            for step in committed:
                done.take(*step)
        done.write_set.commit()
        before = twins.rows(twins.flushed)
        with twins.store.short() as connection:
            done = Steps(twins, connection)
            if all(done.take(*step) for step in steps):
                return
        done.add_refused()
        with pytest.raises(ConstraintViolation) as caught:
            done.write_set.commit()
        assert caught.value.key
        assert caught.value.table in {str(table.name) for table in twins.flushed.values()}
        assert twins.rows(twins.flushed) == before
