"""Recorded spawns: their modes, priorities, cycles and groups; firings and their tries."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import SerializationConflict
from coupling.acta import (
    AbortEvent,
    BeginEvent,
    CommitEvent,
    Event,
    History,
    SpawnEvent,
    SpawnMode,
    audit,
)
from tests.databases import PATIENCE_S
from tests.ledger import Ledger, open_ledger

if TYPE_CHECKING:
    from pathlib import Path

    from activedb import Occurrence, Transaction
    from tests.databases import Place


@pytest.fixture
def recorded(where: Place) -> Ledger:
    """Accounts 1 and 2, of a database that records everything."""
    return open_ledger(where.open(recording="full", threads=6), {1: 10, 2: 20})


def listen(ledger: Ledger, name: str, on: str, raises: str = "", **options: Any) -> None:
    """Define a rule that writes a line and may raise an event."""

    @ledger.db.rule(on=adb.event(on), name=name, **options)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, name)
        if raises:
            ledger.db.signal(raises)


def audited(ledger: Ledger) -> tuple[Event, ...]:
    """The events so far, which are legal."""
    history = ledger.db.admin.history()
    assert audit(history) == [], "\n".join(history.lines())
    return history.events


def spawns(events: tuple[Event, ...], mode: SpawnMode) -> list[SpawnEvent]:
    """The spawns of one mode."""
    return [e for e in events if isinstance(e, SpawnEvent) and e.mode is mode]


def test_spawns_of_immediate_rules_tell_their_priority_and_the_event(recorded: Ledger) -> None:
    listen(recorded, "high", "E", priority=7)
    listen(recorded, "low", "E")
    with recorded.db.transaction() as t:
        recorded.db.signal("E")
        with t.subtransaction():
            pass
        recorded.db.signal("E")
    mine = [s for s in spawns(audited(recorded), SpawnMode.IMMEDIATE) if s.by == t.id]
    shown = [(s.priority, s.group, s.cycle) for s in mine]
    assert shown == [
        (7, 1, None),
        (None, 1, None),
        (None, None, None),
        (7, 2, None),
        (None, 2, None),
    ]


def test_spawns_of_deferred_rules_tell_their_priority_and_cycle(recorded: Ledger) -> None:
    listen(recorded, "first", "E", "F", coupling="deferred", priority=-1)
    listen(recorded, "second", "E", coupling="deferred")
    listen(recorded, "third", "F", "G", coupling="deferred", priority=9)
    listen(recorded, "last", "G", coupling="deferred")
    with recorded.db.transaction() as t:
        recorded.db.signal("E")
    mine = spawns(audited(recorded), SpawnMode.DEFERRED)
    assert {s.by for s in mine} == {t.id}
    shown = [(s.priority, s.cycle, s.group) for s in mine]
    assert shown == [(-1, 0, None), (None, 0, None), (9, 1, None), (None, 2, None)]


def test_child_that_runs_beside_rules_has_no_place_among_their_priorities(
    recorded: Ledger,
) -> None:
    beside, ruled = threading.Event(), threading.Event()

    @recorded.db.rule(on=adb.event("E"), priority=3)
    def rule(t: Transaction, o: Occurrence) -> None:
        recorded.write(t, "before")
        ruled.set()
        assert beside.wait(PATIENCE_S)
        recorded.write(t, "after")

    def child(s: Transaction) -> None:
        assert ruled.wait(PATIENCE_S)
        s.update(recorded.accounts, 1, balance=0)
        beside.set()

    with recorded.db.transaction() as t:
        t.spawn(child)
        recorded.db.signal("E")
    audited(recorded)


@pytest.mark.parametrize("coupling", ["detached", "sequential", "causal"])
def test_firing_is_spawned_where_its_event_was_raised_and_begins_later(
    recorded: Ledger, coupling: str
) -> None:
    listen(recorded, "rule", "E", coupling=coupling)
    with recorded.db.transaction() as t, t.subtransaction() as s:
        recorded.db.signal("E")
    recorded.db.wait_idle()
    events = audited(recorded)
    (spawn,) = spawns(events, SpawnMode[coupling.upper()])
    assert (spawn.by, spawn.parent) == (s.id, None)
    begin = events.index(BeginEvent(spawn.child))
    assert events.index(spawn) < begin
    assert CommitEvent(spawn.child) in events
    if coupling == "sequential":
        assert events.index(CommitEvent(t.id)) < begin
    elif coupling == "causal":
        assert events.index(CommitEvent(t.id)) < events.index(CommitEvent(spawn.child))


def test_exclusive_firing_is_spawned_where_its_event_was_raised(recorded: Ledger) -> None:
    listen(recorded, "rule", "E", coupling="exclusive")
    with recorded.db.transaction() as t:
        with t.subtransaction() as s:
            recorded.db.signal("E")
        t.abort()
    recorded.db.wait_idle()
    events = audited(recorded)
    (spawn,) = spawns(events, SpawnMode.EXCLUSIVE)
    assert spawn.by == s.id
    assert events.index(AbortEvent(t.id)) < events.index(BeginEvent(spawn.child))


def test_action_that_runs_detached_is_spawned_by_the_rules_transaction(recorded: Ledger) -> None:
    listen(recorded, "rule", "E", when=lambda t, o: True, condition_action="detached")
    with recorded.db.transaction() as t:
        recorded.db.signal("E")
    recorded.db.wait_idle()
    events = audited(recorded)
    (condition,) = spawns(events, SpawnMode.IMMEDIATE)
    (action,) = spawns(events, SpawnMode.DETACHED)
    assert (condition.by, action.by) == (t.id, condition.child)
    assert CommitEvent(action.child) in events


def test_firing_of_a_transaction_that_aborts_is_only_a_promise(recorded: Ledger) -> None:
    listen(recorded, "rule", "E", coupling="sequential")
    with recorded.db.transaction() as t:
        recorded.db.signal("E")
        t.abort()
    recorded.db.wait_idle()
    events = audited(recorded)
    (spawn,) = spawns(events, SpawnMode.SEQUENTIAL)
    assert spawn.child < 0
    assert [e for e in events if e.by == spawn.child] == []


def test_each_try_of_a_firing_is_spawned_by_the_same_event(recorded: Ledger) -> None:
    tries: list[int] = []

    @recorded.db.rule(on=adb.event("E"), coupling="sequential")
    def rule(t: Transaction, o: Occurrence) -> None:
        tries.append(t.id)
        if len(tries) < 3:
            raise SerializationConflict("once more")

    with recorded.db.transaction() as t:
        recorded.db.signal("E")
    recorded.db.wait_idle()
    events = audited(recorded)
    found = spawns(events, SpawnMode.SEQUENTIAL)
    assert [(s.by, s.child) for s in found] == [(t.id, id) for id in tries]
    ends = [e for e in events if e.by in tries and isinstance(e, CommitEvent | AbortEvent)]
    assert ends == [AbortEvent(tries[0]), AbortEvent(tries[1]), CommitEvent(tries[2])]


def test_firing_spawned_by_a_retried_transaction_belongs_to_the_try_that_committed(
    recorded: Ledger,
) -> None:
    listen(recorded, "rule", "E", coupling="sequential")
    tries: list[int] = []

    def work(t: Transaction) -> None:
        tries.append(t.id)
        recorded.db.signal("E")
        if len(tries) == 1:
            raise SerializationConflict("once more")

    recorded.db.run(work)
    recorded.db.wait_idle()
    aborted, committed = spawns(audited(recorded), SpawnMode.SEQUENTIAL)
    assert (aborted.by, committed.by) == tuple(tries)
    assert aborted.child < 0 < committed.child


def test_sampling_keeps_a_sampled_transaction_together_with_its_firings() -> None:
    with adb.connect("memory://", recording="sampled", recording_one_in=4) as db:
        ledger = open_ledger(db)  # the first, which is recorded
        listen(ledger, "first", "E", "F", coupling="sequential")
        listen(ledger, "second", "F", coupling="sequential")
        before = len(db.admin.history())
        runs: list[int] = []
        for _ in range(12):
            with db.transaction() as t:
                db.signal("E")
            db.wait_idle()
            runs.append(t.id)
        events = audited(ledger)[before:]
    found = spawns(events, SpawnMode.SEQUENTIAL)
    begun = {e.by for e in events if isinstance(e, BeginEvent)}
    assert {s.by for s in found} & set(runs)
    assert {s.child for s in found} <= begun
    assert min(s.child for s in found) > 0


def test_transaction_dropped_for_room_leaves_its_firing_as_one_that_begins() -> None:
    with adb.connect("memory://", recording="full", recording_events_max=25) as db:
        ledger = open_ledger(db, {1: 10})
        go = threading.Event()
        firings: list[int] = []

        @db.rule(on=adb.event("E"), coupling="detached")
        def rule(t: Transaction, o: Occurrence) -> None:
            firings.append(t.id)
            assert go.wait(PATIENCE_S)
            ledger.write(t, "late")

        with db.transaction() as triggering:
            db.signal("E")
        for n in range(20):
            with db.transaction() as t:
                t.update(ledger.accounts, 1, balance=n)
        go.set()
        db.wait_idle()
        events = audited(ledger)
    assert triggering.id not in {e.by for e in events}
    assert not any(isinstance(e, SpawnEvent) for e in events)
    assert [e for e in events if isinstance(e, BeginEvent) and e.by in firings] == [
        BeginEvent(*firings)
    ]


def test_history_with_promises_is_read_as_it_was_written(recorded: Ledger, tmp_path: Path) -> None:
    listen(recorded, "rule", "E", coupling="sequential")
    listen(recorded, "beside", "E", priority=2)
    with recorded.db.transaction() as t:
        recorded.db.signal("E")
        t.abort()
    recorded.db.wait_idle()
    history = recorded.db.admin.history()
    history.write(tmp_path / "h.jsonl")
    assert History.read(tmp_path / "h.jsonl") == history
