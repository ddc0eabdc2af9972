"""Recording: what the engine does, held against the axioms; and the bounds of what is kept."""

from __future__ import annotations

import contextlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table, select
from sqlalchemy import update as sql_update

import activedb as adb
from activedb.errors import (
    ActiveDBError,
    ConfigurationError,
    Deadlock,
    LockTimeout,
    RowExists,
    RowNotFound,
    SerializationConflict,
)
from coupling.acta import (
    AbortEvent,
    BeginEvent,
    CommitEvent,
    DelegateEvent,
    History,
    ObjectOperation,
    SpawnEvent,
    SpawnMode,
    audit,
)
from tests.drawing import SCALE, SEED, Worlds

if TYPE_CHECKING:
    from pathlib import Path

    from activedb import Occurrence, Transaction
    from tests.databases import Place

ROWS = 5


class Ground:
    """Two tables and rules between them."""

    def __init__(self, db: adb.Database):
        self.db = db
        self.tables = [
            Table(name, db.metadata, Column("id", Integer, primary_key=True), Column("n", Integer))
            for name in ("left", "right")
        ]
        db.create_all()
        left, right = self.tables
        db.run(lambda t: [t.insert(x, {"id": i, "n": 0}) for x in (left, right) for i in range(4)])

    def rules(self) -> None:
        left, right = self.tables

        @self.db.rule(on=adb.updated(left), when=lambda t, o: o.new["n"] % 3 == 0, priority=2)
        def pass_on(t: Transaction, o: Occurrence) -> None:
            t.execute(sql_update(right).where(right.c.id == o.new["id"]).values(n=right.c.n + 1))

        @self.db.rule(on=adb.updated(left), on_abort="rule")
        def often_fails(t: Transaction, o: Occurrence) -> None:
            row = t.get(right, (o.new["id"] + 1) % 4, for_update=True)
            if row is not None:
                t.update(right, row["id"], n=row["n"] + 1)
            if o.new["n"] % 2:
                raise ValueError("no")

        @self.db.rule(on=adb.updated(right), coupling="deferred")
        def count(t: Transaction, o: Occurrence) -> None:
            t.query(select(left))
            if o.new["n"] % 4 == 1:
                t.update(right, o.new["id"], n=o.new["n"] + 1)

        @self.db.rule(on=adb.inserted(left), coupling="detached")
        def beside(t: Transaction, o: Occurrence) -> None:
            t.get(right, o.new["id"])


Plan = list[tuple[Any, ...]]


def plan(chance: random.Random, depth: int = 0) -> Plan:
    """Steps of one transaction, those of its children inside."""
    steps: Plan = []
    for _ in range(chance.randrange(1, 4)):
        what = chance.choice(["get", "update", "update", "insert", "delete", "query", "execute"])
        if depth < 2 and chance.random() < 0.4:
            children = [plan(chance, depth + 1) for _ in range(chance.randrange(1, 4))]
            steps.append((chance.choice(["parallel", "sequential"]), children))
        else:
            steps.append((what, chance.randrange(2), chance.randrange(ROWS), chance.randrange(9)))
    if depth and chance.random() < 0.2:
        steps.append(("abort",))
    return steps


def play(t: Transaction, steps: Plan, tables: list[Table]) -> None:
    for what, *more in steps:
        if what == "parallel":
            children = [t.spawn(play, steps, tables) for steps in more[0]]
            for child in children:
                with contextlib.suppress(adb.errors.TransactionAborted):
                    child.result()
        elif what == "sequential":
            for inner in more[0]:
                with t.subtransaction() as s:
                    play(s, inner, tables)
        elif what == "abort":
            t.abort("as planned")
        else:
            work(t, what, tables[more[0]], *more[1:])


def work(t: Transaction, what: str, table: Table, key: int, n: int) -> None:
    with contextlib.suppress(RowExists, RowNotFound):
        if what == "get":
            t.get(table, key)
        elif what == "update":
            t.update(table, key, n=n)
        elif what == "insert":
            t.insert(table, {"id": key, "n": n})
        elif what == "delete":
            t.delete(table, key)
        elif what == "query":
            t.query(select(table).where(table.c.n > n))
        else:
            t.execute(sql_update(table).where(table.c.id <= key).values(n=n))


def kinds(history: History) -> set[str]:
    found: set[str] = set()
    for event in history.events:
        if isinstance(event, ObjectOperation):
            found.add(event.kind.value)
        elif isinstance(event, SpawnEvent):
            found.add(event.mode.value)
        else:
            found.add(type(event).__name__)
    return found


@pytest.mark.long
def test_recording_of_random_forests_and_rules_obeys_the_axioms(where: Place) -> None:
    ground = Ground(where.open(recording="full", threads=6, retries_max=2, lock_timeout_ms=5_000))
    db = ground.db
    ground.rules()
    expected = (Deadlock, LockTimeout, SerializationConflict, ActiveDBError)

    def run(steps: Plan) -> None:
        with contextlib.suppress(*expected):
            db.run(lambda t: play(t, steps, ground.tables))

    seldom = (
        "BeginEvent",
        "CommitEvent",
        "AbortEvent",
        "DelegateEvent",
        "read",
        "write",
        "insert",
        "delete",
    )
    wanted = dict.fromkeys((*seldom, "spawn_imm", "spawn_def"), 1)
    worlds = Worlds(1, "recording", where.is_memory, **wanted)
    for chance in worlds:
        plans = [plan(chance) for _ in range(60 * SCALE)]
        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(run, steps) for steps in plans]:
                done.result()
        db.wait_idle()
        history = db.admin.history()
        worlds.met.update(kinds(history))
    violations = audit(history)
    assert violations == [], "\n".join([f"seed {SEED}", *map(str, violations), *history.lines()])
    counts = db.admin.counters()
    for kind, mode in (("transactions", None), ("subtransactions", True)):
        children = {
            e.child for e in history.events if isinstance(e, SpawnEvent) and e.mode.is_child
        }
        for outcome, event in (("committed", CommitEvent), ("aborted", AbortEvent)):
            ends = [e for e in history.events if isinstance(e, event)]
            mine = [e for e in ends if (e.by in children) == bool(mode)]
            assert len(mine) == counts.get(f"{kind}_{outcome}", 0)


def test_recording_tells_events_in_their_order_with_keys_and_modes(where: Place) -> None:
    ground = Ground(where.open(recording="full"))
    left, right = ground.tables

    @ground.db.rule(on=adb.inserted(left), coupling="deferred")
    def rule(t: Transaction, o: Occurrence) -> None:
        t.delete(right, 1)

    before = len(ground.db.admin.history())
    with ground.db.transaction() as t:
        t.insert(left, {"id": 9, "n": 1})
        with t.subtransaction() as s:
            s.query(select(right))
        with t.subtransaction() as aborted:
            aborted.update(left, 9, n=2)
            aborted.abort("no")
    events = ground.db.admin.history().events[before:]
    a, b, c, d = (t.id, s.id, aborted.id, aborted.id + 1)
    shown = [
        (type(e).__name__, e.by)
        if not isinstance(e, ObjectOperation)
        else (e.kind.value, e.by, e.object)
        for e in events
    ]
    assert shown == [
        ("BeginEvent", a),
        ("read", a, ("left", "9")),
        ("insert", a, ("left", "9")),
        ("SpawnEvent", a),
        ("read", b, ("right",)),
        ("DelegateEvent", b),
        ("CommitEvent", b),
        ("SpawnEvent", a),
        ("read", c, ("left", "9")),
        ("write", c, ("left", "9")),
        ("AbortEvent", c),
        ("SpawnEvent", a),
        ("read", d, ("right", "1")),
        ("delete", d, ("right", "1")),
        ("DelegateEvent", d),
        ("CommitEvent", d),
        ("CommitEvent", a),
    ]
    spawns = [e for e in events if isinstance(e, SpawnEvent)]
    assert [(e.child, e.mode, e.parent) for e in spawns] == [
        (b, SpawnMode.IMMEDIATE, a),
        (c, SpawnMode.IMMEDIATE, a),
        (d, SpawnMode.DEFERRED, a),
    ]


def test_recording_of_a_live_hierarchy_waits_until_it_has_ended(where: Place) -> None:
    ground = Ground(where.open(recording="full"))
    before = ground.db.admin.history()
    with ground.db.transaction() as t:
        t.get(ground.tables[0], 1)
        assert ground.db.admin.history() == before
    assert [e.by for e in ground.db.admin.history().events[len(before) :]] == [t.id] * 3


def test_recording_that_is_off_says_so_when_asked() -> None:
    with adb.connect("memory://") as db, pytest.raises(ConfigurationError, match="recording='full"):
        db.admin.history()


def test_recording_sampled_keeps_one_in_so_many_hierarchies_whole() -> None:
    with adb.connect("memory://", recording="sampled", recording_one_in=3) as db:
        ground = Ground(db)  # the first, which is recorded
        for key in range(4):
            with db.transaction() as t:
                t.spawn(lambda s, key: s.update(ground.tables[0], key, n=1), key)
        history = db.admin.history()
    begun = [event.by for event in history.events if isinstance(event, BeginEvent)]
    assert len(begun) == 2
    assert audit(history) == []
    spawned = [e for e in history.events if isinstance(e, SpawnEvent)]
    assert [e.by for e in spawned] == begun[1:]


def test_recording_beyond_its_bound_drops_the_oldest_hierarchies_whole() -> None:
    with adb.connect("memory://", recording="full", recording_events_max=60) as db:
        ground = Ground(db)
        for number in range(40):
            with db.transaction() as t:
                t.update(ground.tables[0], number % 4, n=number)
        history, counts = db.admin.history(), db.admin.counters()
    assert 50 < len(history) <= 60
    assert audit(history) == []
    assert history.events[-1] == CommitEvent(t.id)
    assert counts["hierarchies_recorded"] == 41
    kept = len([event for event in history.events if isinstance(event, BeginEvent)])
    assert counts["hierarchies_dropped"] == 41 - kept


def test_recording_of_one_hierarchy_too_large_drops_it_and_goes_on() -> None:
    with adb.connect("memory://", recording="full", recording_events_max=20) as db:
        ground = Ground(db)
        with db.transaction() as large:
            for number in range(20):
                large.update(ground.tables[0], number % 4, n=number)
        with db.transaction() as small:
            small.get(ground.tables[0], 1)
        assert {event.by for event in db.admin.history().events} == {small.id}
        assert db.admin.counters()["hierarchies_dropped"] == 2  # that of the first rows, too


def test_recording_written_to_a_file_is_what_audit_reads(tmp_path: Path) -> None:
    with adb.connect("memory://", recording="full") as db:
        Ground(db)
        history = db.admin.history()
        history.write(tmp_path / "h.jsonl")
    assert History.read(tmp_path / "h.jsonl") == history
    assert len(history) > 10


def test_recording_asked_for_while_transactions_run_is_always_legal() -> None:
    with adb.connect("memory://", recording="full", recording_events_max=500) as db:
        ground = Ground(db)
        ground.rules()
        stop = threading.Event()

        def work_on(seed: int) -> None:
            chance = random.Random(seed)
            while not stop.is_set():
                steps = plan(chance)
                with contextlib.suppress(ActiveDBError):
                    db.run(play, steps, ground.tables)

        with ThreadPoolExecutor(2) as threads:
            running = [threads.submit(work_on, SEED + number) for number in range(2)]
            try:
                for _ in range(20):
                    history = db.admin.history()
                    assert (
                        len(history) <= 500 + len(history) // 2
                    )  # a DelegateEvent brings a CommitEvent
                    assert audit(history) == [], "\n".join([f"seed {SEED}", *history.lines()])
            finally:
                stop.set()
            for done in running:
                done.result()


def test_recorded_history_with_a_lost_delegation_is_no_longer_legal() -> None:
    with adb.connect("memory://", recording="full") as db:
        ground = Ground(db)
        with db.transaction() as t:
            t.spawn(lambda s: s.update(ground.tables[0], 1, n=1))
        events = db.admin.history().events
    (lost,) = [event for event in events if isinstance(event, DelegateEvent)]
    assert {v.axiom for v in audit(History(tuple(e for e in events if e is not lost)))} == {24}
