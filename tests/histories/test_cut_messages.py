"""The connection is cut at each message that a client sends, in turn: work is done exactly once."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, String, Table, func, select, text

import activedb as adb
from activedb.errors import ConnectionLost, TransactionAborted
from tests.histories.processes import Server
from tests.patience import PATIENCE_S
from tests.servers import fresh_database
from tests.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from activedb import Database, Transaction

MANY = 90
"""Rows that go by COPY and by arrays."""


@pytest.fixture
def wire(plain_postgres_url: str) -> Iterator[Wire]:
    """The way to an empty database on a server that listens on TCP."""
    with fresh_database(plain_postgres_url) as url, contextlib.closing(Wire(url)) as opened:
        yield opened


class World:
    """Tables in which each kind of work leaves a trace for each time that it is done."""

    def __init__(self, db: Database):
        self.db = db
        self.rows = self._table("rows", Column("n", Integer, nullable=False))
        self.many = self._table("many", Column("n", Integer, nullable=False))
        self.names = self._table("names", Column("name", String(20), unique=True))
        self.done = self._table("done", Column("what", String(40), nullable=False))
        db.create_all()
        with db.transaction() as t:
            for key in range(4):
                t.insert(self.rows, {"id": key, "n": 0})
            t.insert(self.names, {"id": 1, "name": "a"})
            t.insert(self.names, {"id": 2, "name": "b"})
        self.calls = 0

    def _table(self, name: str, *columns: Column[Any]) -> Table:
        key = Column("id", Integer, primary_key=True)
        return Table(name, self.db.metadata, key, *columns)

    def up(self, t: Transaction, key: int) -> None:
        row = t.get(self.rows, key, for_update=True)
        assert row is not None
        t.update(self.rows, key, n=row["n"] + 1)

    # -- kinds of work: each adds one to row 0, and whatever else it does can be counted ---------

    def few_rows(self, t: Transaction) -> None:
        self.up(t, 0)
        n = t.query(select(func.count()).select_from(self.done))[0][0]
        t.insert(self.done, {"id": n + 1, "what": "few"})

    def many_rows(self, t: Transaction) -> None:
        self.up(t, 0)
        there = [row.id for row in t.query(select(self.many.c.id))]
        for key in there:
            if key >= MANY:
                t.delete(self.many, key)
            else:
                t.update(self.many, key, n=self.calls)
        first = MANY if there else 0
        if not any(key >= MANY for key in there):
            for key in range(first, first + MANY):
                t.insert(self.many, {"id": key, "n": 0})

    def locking_reads(self, t: Transaction) -> None:
        self.up(t, 0)
        t.get_many(self.rows, [0, 1, 2])
        assert t.get(self.rows, 99) is None
        t.query(select(self.rows).where(self.rows.c.n >= 0).with_for_update())
        t.query(select(func.sum(self.rows.c.n)))

    def swapped(self, t: Transaction) -> None:
        """Swap two names in an order that the server accepts only step by step."""
        self.up(t, 0)
        names = {key: t.get(self.names, key)["name"] for key in (1, 2)}  # type: ignore[index]
        t.update(self.names, 1, name="between")
        t.update(self.names, 2, name=names[1])
        t.update(self.names, 1, name=names[2])

    def children(self, t: Transaction) -> None:
        self.up(t, 0)
        one, two = t.spawn(self.up, 1), t.spawn(self.up, 2)
        one.result()
        two.result()


WORKS = ("few_rows", "many_rows", "locking_reads", "swapped", "children")


def each_cut(wire: Wire, db: Database, work: Callable[[], None]) -> int:
    """Do `work` with a cut at each of its messages in turn; returns how many cuts there were.

    New connections are opened each time, so what is said on those is cut off, too.
    """
    cuts = 0
    for when in ("before", "after"):
        db._store.suspect()
        wire.count_anew()
        work()
        for number in worth_cutting(wire.sent):
            db._store.suspect()
            wire.count_anew(number, when)
            try:
                work()
            except BaseException as error:
                said = wire.sent[number] if number < len(wire.sent) else None
                error.add_note(f"cut {when} message {number}: {said!r}")
                raise
            cuts += wire.cuts
    wire.count_anew()
    return cuts


def worth_cutting(sent: list[str]) -> list[int]:
    """Places of messages, but for those that come again and again in one order, as rows do."""
    seen: Counter[tuple[str, ...]] = Counter()
    found = []
    for number in range(len(sent)):
        around = tuple(said[:20] for said in sent[max(0, number - 2) : number + 1])
        seen[around] += 1
        if seen[around] <= 2:
            found.append(number)
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", WORKS)
def test_connection_cut_at_any_message_of_a_transaction_leaves_it_done_once(
    wire: Wire, kind: str
) -> None:
    with adb.connect(wire.url, reconnect_pause_ms=1) as db:
        world = World(db)
        function = getattr(world, kind)

        def work() -> None:
            world.calls += 1
            db.run(function)
            assert found(wire, "SELECT n FROM rows WHERE id = 0") == [world.calls]

        assert each_cut(wire, db, work) > 10
        if kind == "few_rows":
            assert found(wire, "SELECT count(*) FROM done") == [world.calls]


@pytest.mark.long
@pytest.mark.parametrize("coupling", ["detached", "sequential", "causal", "exclusive"])
def test_connection_cut_at_any_message_leaves_each_firing_done_once(
    wire: Wire, coupling: Any
) -> None:
    with adb.connect(wire.url, reconnect_pause_ms=1) as db:
        world = World(db)

        @db.rule(on=adb.updated(world.rows), coupling=coupling)
        def note(t: Transaction, o: adb.Occurrence) -> None:
            t.insert(world.done, {"id": o.new["n"], "what": coupling})

        def triggered(t: Transaction) -> None:
            if coupling == "exclusive":
                t.update(world.rows, 0, n=world.calls)
                t.abort("as it should")
            world.up(t, 0)

        def work() -> None:
            world.calls += 1
            with contextlib.suppress(TransactionAborted):
                db.run(triggered)
            db.wait_idle()
            # Detached rules and intents are recorded in transactions of their own, cut off, too.
            ids = found(wire, "SELECT id FROM done ORDER BY id")
            assert ids == [*range(1, world.calls + 1)]
            assert found(wire, "SELECT firing FROM activedb_pending_firings WHERE NOT done") == []
            assert found(wire, "SELECT identity FROM activedb_dead_letters") == []

        assert each_cut(wire, db, work) > 10
        committed = 0 if coupling == "exclusive" else world.calls
        assert found(wire, "SELECT n FROM rows WHERE id = 0") == [committed]


@pytest.mark.parametrize("coupling", ["sequential", "causal"])
def test_firing_of_a_commit_whose_outcome_nobody_could_tell_runs_while_its_transaction_is_held(
    wire: Wire, coupling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with adb.connect(wire.url, reconnect_pause_ms=1) as db:
        world = World(db)

        @db.rule(on=adb.updated(world.rows), coupling=coupling)
        def note(t: Transaction, o: adb.Occurrence) -> None:
            t.insert(world.done, {"id": o.new["n"], "what": coupling})

        db.run(world.up, 0)
        db.wait_idle()
        with monkeypatch.context() as unknown:
            unknown.setattr(db._store, "outcome", lambda number: None)
            with pytest.raises(ConnectionLost), db.transaction() as t:
                world.up(t, 0)
                wire.cut_commit("after")
                someone_else_looks_and_commits(wire)
        assert t.state.value != "committed"
        db.wait_idle(PATIENCE_S)
        assert found(wire, "SELECT id FROM done ORDER BY id") == [1, 2]


@pytest.mark.long
def test_connection_cut_at_any_message_of_a_feed_leaves_each_event_processed_once(
    wire: Wire,
) -> None:
    with adb.connect(wire.url, reconnect_pause_ms=1) as db:
        world = World(db)
        ticks = db.stream("ticks", type="'TICK'", timestamp="at", types={"TICK": ("number",)})

        @db.rule(on=adb.event("TICK"))
        def note(t: Transaction, o: adb.Occurrence) -> None:
            world.up(t, 0)
            t.insert(world.done, {"id": o.params["number"], "what": "tick"})

        def work() -> None:
            world.calls += 1
            occurred = adb.occurrence("TICK", number=world.calls, timestamp=world.calls)
            ticks.feed([occurred], punctuation=world.calls + 1)
            assert found(wire, "SELECT n FROM rows WHERE id = 0") == [world.calls]
            assert found(wire, "SELECT identity FROM activedb_dead_letters") == []

        assert each_cut(wire, db, work) > 10


def someone_else_looks_and_commits(wire: Wire) -> None:
    """Look and commit as a program that watches the server does, at a moment of its own."""
    other = Server(wire.url)
    assert other.look(lambda connection: connection.scalar(text("SELECT 1"))) == 1


def found(wire: Wire, query: str) -> list[Any]:
    """Look with a separate connection, around the wire."""
    return list(Server(wire.server_url).look(lambda c: list(c.scalars(text(query)))))
