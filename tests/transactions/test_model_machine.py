"""A state machine: blocks of transactions opened, used and left in any order, beside the model.

Two top-level transactions are open at a time, each with a table of its own so that they never
wait for each other, each with a line of subtransactions. The model is `tests.transactions.model`,
written from the rules of DESIGN section 5 alone.
"""

from __future__ import annotations

import contextvars
import os
from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Column, Integer, String, Table, delete, func, insert, select
from sqlalchemy import update as sql_update

from activedb import State
from activedb.errors import RowExists, RowNotFound, TransactionAborted, TransactionStateError
from tests.databases import place
from tests.transactions.model import Model, Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import activedb as adb
    from activedb import Transaction

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
LANES = st.sampled_from([0, 1])
KEYS = st.integers(0, 3)
NUMBERS = st.none() | st.integers(-3, 3)
WRITES = st.sampled_from(["put", "put", "insert", "update", "delete"])
DEPTH_MAX = 8


class OnPurposeError(Exception):
    """Raised inside a transaction that is to end so."""


class Lane:
    """One table, and the open transactions on it, outermost first, with those of the model."""

    def __init__(self, db: adb.Database, table: Table):
        self.db = db
        self.table = table
        self.context = contextvars.copy_context()
        self.model = Model({0: (0, "row")})
        self.open: list[tuple[Transaction, Node]] = []
        self.ended: list[Transaction] = []

    def do(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call something as the program of this lane."""
        return self.context.run(call, *args)

    @property
    def t(self) -> Transaction:
        """The innermost open transaction."""
        return self.open[-1][0]

    @property
    def node(self) -> Node:
        """The same in the model."""
        return self.open[-1][1]

    @property
    def seen(self) -> dict[int, int | None]:
        """Return what the model says the innermost transaction sees: numbers by key."""
        return {key: n for key, (n, _) in self.model.scan(self.node).items()}

    def write(self, key: int, number: int | None, *, gone: bool = False) -> None:
        """Write a version in the model; a row is a pair, so that None can be in it."""
        self.model.write(self.node, key, None if gone else (number, "row"))


class Machine(RuleBasedStateMachine):
    """Made for one kind of store by `machine_on`."""

    tables: tuple[adb.Database, list[Table]]

    def __init__(self) -> None:
        super().__init__()
        db, tables = self.tables
        with db.transaction() as t:
            for table in tables:
                t.execute(delete(table))
                t.insert(table, {"id": 0, "n": 0, "text": "row"})
        self.lanes = [Lane(db, table) for table in tables]

    # -- blocks ----------------------------------------------------------------------------

    @rule(lane=LANES, key=KEYS, number=NUMBERS)
    def open_another_and_write(self, lane: int, key: int, number: int | None) -> None:
        """Begin a transaction and write in it, which is the common case."""
        self.begin(lane)
        self.write_one(self.lanes[lane], key, number, "put")

    @rule(lane=LANES)
    def open_another(self, lane: int) -> None:
        self.begin(lane)

    def begin(self, lane: int) -> None:
        """Begin a top-level transaction, or a child of the innermost open one."""
        on = self.lanes[lane]
        if len(on.open) > DEPTH_MAX:
            return
        parent = on.node if on.open else None
        t = on.do(on.t.subtransaction if on.open else on.db.transaction)
        on.do(t.__enter__)
        on.open.append((t, on.model.begin(parent)))

    @rule(lane=LANES)
    def commit(self, lane: int) -> None:
        on = self.lanes[lane]
        if not on.open:
            return
        t, node = on.open.pop()
        assert not on.do(t.__exit__, None, None, None)
        assert t.state is State.COMMITTED
        on.model.commit(node)
        on.ended.append(t)

    @rule(lane=LANES, depth=st.integers(0, DEPTH_MAX), kind=st.sampled_from(["abort", "raise"]))
    def leave_by_an_error(self, lane: int, depth: int, kind: str) -> None:
        """Abort the transaction at some depth, or raise through all blocks down to it."""
        on = self._opened(lane)
        depth %= len(on.open)
        target = on.open[depth][0]
        error: Exception = OnPurposeError()
        if kind == "abort":
            with pytest.raises(TransactionAborted) as caught:
                on.do(target.abort)
            error = caught.value
        while len(on.open) > depth:
            t, node = on.open.pop()
            swallowed = on.do(t.__exit__, type(error), error, error.__traceback__)
            assert bool(swallowed) == (kind == "abort" and t is target)
            assert t.state is State.ABORTED
            on.model.abort(node)
            on.ended.append(t)

    def _opened(self, lane: int) -> Lane:
        """A lane in which a transaction is open."""
        if not self.lanes[lane].open:
            self.begin(lane)
        return self.lanes[lane]

    # -- rows ------------------------------------------------------------------------------

    @rule(
        lane=LANES, key=KEYS, number=NUMBERS, what=st.sampled_from(["insert", "update", "delete"])
    )
    def write(self, lane: int, key: int, number: int | None, what: str) -> None:
        self.write_one(self._opened(lane), key, number, what)

    def write_one(self, on: Lane, key: int, number: int | None, what: str) -> None:
        """Write in the innermost transaction, or be refused."""
        is_there = key in on.seen
        if what == "put":
            what = "update" if is_there else "insert"
        refused = RowExists if what == "insert" else RowNotFound
        calls: dict[str, Callable[[], Any]] = {
            "insert": lambda: on.t.insert(on.table, {"id": key, "n": number, "text": "row"}),
            "update": lambda: on.t.update(on.table, key, n=number),
            "delete": lambda: on.t.delete(on.table, key),
        }
        if is_there == (what == "insert"):
            with pytest.raises(refused):
                on.do(calls[what])
        else:
            on.do(calls[what])
            on.write(key, number, gone=what == "delete")

    @rule(lane=LANES, key=KEYS, for_update=st.booleans())
    def read(self, lane: int, key: int, for_update: bool) -> None:
        on = self._opened(lane)
        row = on.do(lambda: on.t.get(on.table, key, for_update=for_update))
        expected = on.model.read(on.node, key)
        assert (None if row is None else (row["n"], row["text"])) == expected

    @rule(lane=LANES, limit=st.integers(-3, 3))
    def scan(self, lane: int, limit: int) -> None:
        """All rows, an aggregate over them, and one over those that meet a condition."""
        on = self._opened(lane)
        c, seen = on.table.c, on.seen
        rows = on.do(on.t.query, select(c.id, c.n).order_by(c.id))
        assert [tuple(row) for row in rows] == sorted(seen.items())
        numbers = [n for n in seen.values() if n is not None]
        chosen = [n for n in numbers if n >= limit]
        whole = select(func.count(), func.count(c.n), func.sum(c.n), func.max(c.n))
        [row] = on.do(on.t.query, whole)
        total, highest = (sum(numbers), max(numbers)) if numbers else (None, None)
        assert tuple(row) == (len(seen), len(numbers), total, highest)
        [row] = on.do(on.t.query, select(func.count()).where(c.n >= limit))
        assert tuple(row) == (len(chosen),)

    @rule(lane=LANES, limit=st.integers(-3, 3), what=st.sampled_from(["update", "delete", "copy"]))
    def write_where(self, lane: int, limit: int, what: str) -> None:
        on = self._opened(lane)
        c = on.table.c
        hit = {key: n for key, n in on.seen.items() if n is not None and n == limit}
        if what == "update":
            statement: Any = sql_update(on.table).where(c.n == limit).values(n=c.n + 1)
        elif what == "delete":
            statement = delete(on.table).where(c.n == limit)
        else:
            chosen = select(c.id + 10, c.n, c.text).where(c.n == limit, c.id < 10)
            statement = insert(on.table).from_select(["id", "n", "text"], chosen)
            hit = {key: n for key, n in hit.items() if key < 10}
            if any(key + 10 in on.seen for key in hit):
                with pytest.raises(RowExists):
                    on.do(on.t.execute, statement)
                return  # and no row of it is there, as the next scan checks
        assert on.do(on.t.execute, statement) == len(hit)
        for key, n in hit.items():
            if what == "copy":
                on.write(key + 10, n)
            else:
                on.write(key, n + 1, gone=what == "delete")

    @rule(lane=LANES, key=KEYS, which=st.integers(0, 20))
    def use_an_ended_one(self, lane: int, key: int, which: int) -> None:
        on = self.lanes[lane]
        if on.ended:
            t = on.ended[which % len(on.ended)]
            with pytest.raises((TransactionStateError, TransactionAborted, OnPurposeError)):
                on.do(t.get, on.table, key)

    # -- always ----------------------------------------------------------------------------

    @invariant()
    def committed_rows_are_those_of_the_model(self) -> None:
        for lane in self.lanes:
            if not lane.open:
                with lane.db.transaction() as t:
                    rows = t.query(select(lane.table))
                    found = {row.id: (row.n, row.text) for row in rows}
                assert found == lane.model.committed

    def teardown(self) -> None:
        for lane in self.lanes:
            while lane.open:
                t, _ = lane.open.pop()
                lane.do(t.__exit__, OnPurposeError, OnPurposeError(), None)
        assert not self.tables[0]._forest.locks.snapshot().transactions


@pytest.fixture(scope="module")
def databases(postgres_url: str) -> Iterator[dict[str, tuple[adb.Database, list[Table]]]]:
    """One database of each kind for all examples; each example starts by emptying the tables."""
    with place(None) as memory, place(postgres_url) as postgres:
        opened = {}
        for name, where in (("memory", memory), ("postgres", postgres)):
            db = where.open()
            tables = [
                Table(
                    f"lane_{number}",
                    db.metadata,
                    Column("id", Integer, primary_key=True, autoincrement=False),
                    Column("n", Integer),
                    Column("text", String(5)),
                )
                for number in range(2)
            ]
            db.create_all()
            opened[name] = (db, tables)
        yield opened


@pytest.mark.long
@pytest.mark.parametrize(("kind", "examples"), [("memory", 100), ("postgres", 40)])
def test_blocks_of_transactions_agree_with_the_model(
    databases: dict[str, tuple[adb.Database, list[Table]]], kind: str, examples: int
) -> None:
    machine = type("MachineHere", (Machine,), {"tables": databases[kind]})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples * SCALE,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
