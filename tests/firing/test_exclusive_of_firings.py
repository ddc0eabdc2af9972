"""Exclusive rules of rules in top-level transactions, which other processes may take over."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import ConnectionLost, FiringsLeft, SerializationConflict
from activedb.store.system import pending_firings
from tests.databases import PATIENCE_S, Place, in_thread, until
from tests.drawing import drawn
from tests.firing.working import cut, working
from tests.ledger import EPOCH, Ledger, declare, event, open_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable

    from activedb import Occurrence, Transaction

MODES = ["detached", "sequential", "causal"]


@dataclass
class Process:
    """Process with a rule that triggers exclusive rules in its own top-level transaction.

    Attributes
    ----------
    events : list of int
        What the next tries signal, a contingency each.
    outcome : str
        How they end: "conflicts", "fails" or "commits".
    """

    where: Place
    mode: str
    events: list[int] = field(default_factory=list)
    outcome: str = "conflicts"
    has_contingency: bool = True
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A simulated clock restarts nothing that was given up for now.
        limits = {"retries_max": 0, "restarts_max": 1_000, "clock": SimulatedClock(EPOCH)}
        self.ledger = open_ledger(self.where.open(**limits, **self.settings))
        self.begun, self.go = threading.Event(), threading.Event()
        self.go.set()
        db = self.ledger.db

        @db.rule(on=adb.event("GO"), coupling=self.mode)
        def work(t: Transaction, o: Occurrence) -> None:
            for n in self.events:
                db.signal("TRY", n=n)
            self.begun.set()
            assert self.go.wait(PATIENCE_S)
            if self.outcome == "conflicts":
                raise SerializationConflict("in the way")
            if self.outcome == "fails":
                raise ValueError("no")
            self.ledger.write(t, "work")

        if self.has_contingency:

            @db.rule(on=adb.event("TRY"), coupling="exclusive")
            def contingency(t: Transaction, o: Occurrence) -> None:
                self.ledger.write(t, f"instead of {o.params['n']}")

    def start(self) -> None:
        """Trigger the rule; return when its tries are over for now."""
        self.ledger.db.run(lambda t: self.ledger.db.signal("GO"))
        self.settle()

    def take_over(self) -> None:
        """Take over what others have left; return when the tries are over for now."""
        self.ledger.db.recover()
        self.settle()

    def settle(self) -> None:
        if self.outcome == "conflicts":
            until(lambda: self.ledger.db._launcher.running == 0)
            with pytest.raises(FiringsLeft, match="in the way"):
                self.ledger.db.wait_idle(timeout=0)
        else:
            in_thread(self.ledger.db.wait_idle).result(PATIENCE_S)

    def die(self) -> None:
        self.ledger.db.close()


def check(ledger: Ledger, outcome: str, tried: Iterable[int]) -> None:
    """Look at what the work has left, if its tries have triggered contingencies `tried`."""
    expected = [f"instead of {n}" for n in sorted(tried)] if outcome == "fails" else ["work"]
    assert sorted(ledger.lines()) == expected
    assert ledger.pending() == []
    assert len(ledger.letters()) == (outcome == "fails")
    assert ledger.db.recover() == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("outcome", ["commits", "fails"])
@pytest.mark.parametrize("again", [True, False])
def test_exclusive_rule_of_a_firing_that_is_taken_over_is_decided_by_its_end(
    there: Place, mode: str, outcome: str, again: bool
) -> None:
    first = Process(there, mode, [1])
    first.start()
    first.die()
    second = Process(there, mode, [1] if again else [], outcome)
    second.take_over()
    check(second.ledger, outcome, {1})


@pytest.mark.parametrize("number", range(6))
def test_exclusive_rules_of_a_firing_are_decided_by_its_end_in_any_process(
    there: Place, number: int
) -> None:
    chance = drawn("exclusive rules of a firing", number)
    mode, outcome = chance.choice(MODES), chance.choice(["commits", "fails"])
    tried: set[int] = set()
    processes = chance.randint(2, 4)
    for n in range(processes):
        events = chance.sample(range(3), chance.randint(0, 3))
        is_last = n == processes - 1
        process = Process(there, mode, events, outcome if is_last else "conflicts")
        (process.take_over if n else process.start)()
        tried |= set(events)
        if not is_last:
            assert process.ledger.lines() == []
            process.die()
    check(process.ledger, outcome, tried)


def test_exclusive_rule_is_left_while_the_firing_that_triggered_it_is(there: Place) -> None:
    first = Process(there, "detached", [1])
    first.start()
    first.die()
    ledger = open_ledger(there.open())

    @ledger.db.rule(on=adb.event("TRY"), coupling="exclusive")
    def contingency(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "instead")

    assert ledger.db.recover() == 0
    assert [row["intent"] for row in ledger.pending()] == [False, True]


def test_exclusive_rule_of_a_firing_that_was_deleted_is_due(there: Place) -> None:
    first = Process(there, "detached", [1])
    first.start()
    first.die()
    second = Process(there, "detached", outcome="commits")
    with second.ledger.db._store.short() as connection:
        connection.execute(delete(pending_firings).where(~pending_firings.c.intent))
    second.take_over()
    assert second.ledger.lines() == ["instead of 1"]
    assert second.ledger.pending() == []


def test_exclusive_rule_unknown_to_who_ends_the_firing_is_due_for_others(there: Place) -> None:
    first = Process(there, "detached", [1])
    first.start()
    first.die()
    second = Process(there, "detached", [], "fails", has_contingency=False)
    second.take_over()
    assert [(row["intent"], row["holder"]) for row in second.ledger.pending()] == [(False, None)]
    third = Process(there, "detached", outcome="commits")
    third.take_over()
    assert third.ledger.lines() == ["instead of 1"]
    assert third.ledger.pending() == []


@pytest.mark.parametrize("outcome", ["commits", "fails"])
@pytest.mark.parametrize("late", ["commits", "fails"])
def test_exclusive_rules_of_a_lost_lease_are_decided_by_who_ends_the_firing(
    there: Place, outcome: str, late: str
) -> None:
    first = Process(there, "detached", [1], late)
    first.go.clear()
    first.ledger.db.run(lambda t: first.ledger.db.signal("GO"))
    assert first.begun.wait(PATIENCE_S)
    cut(first.ledger.db, "lease")
    second = Process(there, "detached", [2], outcome)
    second.take_over()
    first.go.set()
    first.settle()
    check(second.ledger, outcome, {1, 2})


def test_worker_runs_the_exclusive_rules_of_a_firing_that_another_process_left(
    there: Place,
) -> None:
    first = Process(there, "detached", [1])
    first.start()
    first.die()
    worker = Process(there, "detached", [], "fails", settings={"firings": "queue"})
    with working(worker.ledger.db, poll_s=0.1):
        until(lambda: worker.ledger.lines() == ["instead of 1"])
        until(lambda: worker.ledger.pending() == [])
    assert len(worker.ledger.letters()) == 1


def test_exclusive_rule_waits_while_the_letter_of_its_firing_cannot_be_written(
    where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(where, "detached", [1], "fails")
    db = process.ledger.db

    def lost(*args: object, **options: object) -> bool:
        raise ConnectionLost("the server is away")

    with monkeypatch.context() as away:
        away.setattr(db._launcher.journal, "move_to_dead_letters", lost)
        db.signal("GO")
        until(lambda: db._launcher.running == 0)
        with pytest.raises(FiringsLeft, match="the server is away"):
            db.wait_idle(timeout=0)
    assert [row["intent"] for row in process.ledger.pending()] == [False, True]
    process.outcome = "commits"  # but the rule has failed, and is not run again
    process.take_over()
    check(process.ledger, "fails", {1})


class Crash(BaseException):
    """Error that ends a stream's part at once."""


@dataclass
class Feeder:
    """Process with a stream, each of whose events triggers a rule that triggers an exclusive one.

    Attributes
    ----------
    outcome : str
        How the rule ends: "conflicts", "fails" or "commits".
    crashes : bool
        True if the part of the stream does not commit.
    """

    where: Place
    mode: str
    outcome: str
    crashes: bool

    def __post_init__(self) -> None:
        limits = {"retries_max": 0, "restarts_max": 1_000, "clock": SimulatedClock(EPOCH)}
        self.ledger = open_ledger(self.where.open(**limits))
        db = self.ledger.db

        @db.rule(on=adb.event("A"), coupling="detached")
        def work(t: Transaction, o: Occurrence) -> None:
            if self.mode == "causal":
                db.signal("GO")
                assert self.has_tried.wait(PATIENCE_S)
            else:
                db.signal("TRY", n=1)
            self.end(t, "work")

        @db.rule(on=adb.event("GO"), coupling="causal")
        def rule(t: Transaction, o: Occurrence) -> None:
            db.signal("TRY", n=1)
            self.has_tried.set()

        @db.rule(on=adb.event("TRY"), coupling="exclusive")
        def contingency(t: Transaction, o: Occurrence) -> None:
            self.ledger.write(t, f"instead of {o.params['n']}")

        @db.rule(on=adb.event("B"))
        def stop(t: Transaction, o: Occurrence) -> None:
            until(lambda: db._launcher.running == 0)
            if self.crashes:
                raise Crash

        self.has_tried = threading.Event()
        self.stream = declare(db)

    def end(self, t: Transaction, line: str) -> None:
        if self.outcome == "conflicts":
            raise SerializationConflict("in the way")
        if self.outcome == "fails":
            raise ValueError("no")
        self.ledger.write(t, line)

    def feed(self) -> None:
        events = [event("A", 1), event("B", 2)]
        if self.crashes:
            with pytest.raises(Crash):
                self.stream.feed(events)
        else:
            self.ledger.db.recover()
            self.stream.feed(events)
            in_thread(self.ledger.db.wait_idle).result(PATIENCE_S)


@pytest.mark.parametrize("mode", ["detached", "causal"])
@pytest.mark.parametrize("outcome", ["commits", "fails"])
@pytest.mark.parametrize("before", ["conflicts", "fails"])
def test_exclusive_rule_of_a_rule_of_an_unfinished_batch_is_decided_by_its_end(
    there: Place, mode: str, outcome: str, before: str
) -> None:
    first = Feeder(there, mode, before, crashes=True)
    first.feed()
    first.ledger.db.close()
    second = Feeder(there, mode, outcome, crashes=False)
    second.feed()
    is_over = before == "fails"  # the rule has a dead letter, and does not run again
    failed = is_over or outcome == "fails"
    assert second.ledger.lines() == (["instead of 1"] if failed else ["work"])
    assert len(second.ledger.letters()) == failed
    assert second.ledger.pending() == []


@pytest.mark.parametrize("outcome", ["commits", "fails"])
def test_exclusive_rule_of_a_causal_rule_of_a_firing_is_decided_by_its_end(
    there: Place, outcome: str
) -> None:
    def opened(outcome: str) -> Ledger:
        limits = {"retries_max": 0, "restarts_max": 1_000, "clock": SimulatedClock(EPOCH)}
        ledger = open_ledger(there.open(**limits))
        db, has_tried = ledger.db, threading.Event()

        @db.rule(on=adb.event("START"), coupling="detached")
        def work(t: Transaction, o: Occurrence) -> None:
            db.signal("GO")
            assert has_tried.wait(PATIENCE_S)
            if outcome == "conflicts":
                raise SerializationConflict("in the way")
            if outcome == "fails":
                raise ValueError("no")

        @db.rule(on=adb.event("GO"), coupling="causal")
        def rule(t: Transaction, o: Occurrence) -> None:
            db.signal("TRY")
            ledger.write(t, "rule")
            has_tried.set()

        @db.rule(on=adb.event("TRY"), coupling="exclusive")
        def contingency(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, "instead")

        return ledger

    first = opened("conflicts")
    first.db.signal("START")
    until(lambda: first.db._launcher.running == 0)
    first.db.close()
    second = opened(outcome)
    second.db.recover()
    in_thread(second.db.wait_idle).result(PATIENCE_S)
    assert second.lines() == (["rule"] if outcome == "commits" else ["instead"])
    assert second.pending() == []
