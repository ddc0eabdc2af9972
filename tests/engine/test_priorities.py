"""Priorities: what each mode makes of them, whatever makes the rules due together."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import Deadlock, DefinitionError
from tests.databases import PATIENCE_S, place, until
from tests.engine.ledger import EPOCH, at, declare, event, open_ledger
from tests.engine.working import working

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.engine.ledger import Ledger

MODES = ["immediate", "deferred", "detached", "sequential", "exclusive"]
PRIORITIES = {"none": None, "low": -3, "high": 7, "middle": 2}
ORDER = ["high", "middle", "low", "none"]


class Spans:
    """Rules that note their begin and end, and stay a while in between."""

    def __init__(self, ledger: Ledger):
        self.ledger = ledger
        self.noted: list[str] = []
        self._latch = threading.Lock()
        self._pause = threading.Event()

    def note(self, what: str) -> None:
        with self._latch:
            self.noted.append(what)

    def rule(self, name: str, on: object, coupling: str, priority: int | None) -> None:
        def act(t: Transaction, o: Occurrence) -> None:
            self.note(name)
            self._pause.wait(0.01)  # for one that does not wait for its turn
            self.note(f"{name} ends")

        self.ledger.db.rule(on=on, name=name, coupling=coupling, priority=priority)(act)

    def rules(self, on: object, coupling: str) -> None:
        for name, priority in PRIORITIES.items():
            self.rule(name, on, coupling, priority)

    def check(self) -> None:
        assert self.noted == [each for name in ORDER for each in (name, f"{name} ends")]


@pytest.mark.parametrize("mode", MODES)
def test_rules_that_one_event_triggers_run_in_the_order_of_priorities(
    ledger: Ledger, mode: str
) -> None:
    spans = Spans(ledger)
    spans.rules(adb.event("E"), mode)
    with ledger.db.transaction() as t:
        ledger.db.signal("E")
        if mode == "exclusive":
            t.abort()
    ledger.db.join()
    spans.check()
    assert ledger.pending() == []


@pytest.mark.parametrize("mode", ["immediate", "deferred", "detached", "sequential"])
def test_rules_due_at_one_moment_of_the_clock_run_in_the_order_of_priorities(
    where: Place, mode: str
) -> None:
    clock = SimulatedClock(EPOCH)
    spans = Spans(open_ledger(where.open(clock=clock)))
    spans.rules(adb.every(60), mode)
    spans.ledger.db.join()  # all have been told the time from which on they are due
    clock.advance(60)
    spans.ledger.db.join()
    spans.check()
    spans.noted.clear()
    clock.advance(60)
    spans.ledger.db.join()
    spans.check()


@pytest.mark.parametrize("mode", ["immediate", "deferred", "detached"])
def test_rules_due_at_one_moment_of_a_stream_run_in_the_order_of_priorities(
    ledger: Ledger, mode: str
) -> None:
    spans = Spans(ledger)
    stream = declare(ledger.db)
    waits = adb.seq(adb.event("A"), ~adb.event("B")).within(5)
    spans.rules(waits, mode)
    ledger.db.feed(stream, [event("A", 1)], punctuation=at(60))
    ledger.db.join()
    spans.check()


def test_sequential_rules_of_one_commit_run_in_the_order_of_priorities(ledger: Ledger) -> None:
    spans = Spans(ledger)
    for number, (name, priority) in enumerate(PRIORITIES.items()):
        spans.rule(name, adb.event(f"E{number}"), "sequential", priority)
    with ledger.db.transaction():
        for number in range(len(PRIORITIES)):
            ledger.db.signal(f"E{number}")
    ledger.db.join()
    spans.check()


@pytest.mark.parametrize("mode", ["detached", "sequential", "exclusive"])
def test_rules_of_one_priority_run_in_parallel(ledger: Ledger, mode: str) -> None:
    meet = threading.Barrier(2, timeout=PATIENCE_S)
    for name in ("one", "two"):
        ledger.db.rule(on=adb.event("E"), name=name, coupling=mode, priority=5)(
            lambda t, o: meet.wait()
        )
    ledger.db.rule(on=adb.event("E"), name="last", coupling=mode)(
        lambda t, o: ledger.write(t, "last")
    )
    with ledger.db.transaction() as t:
        ledger.db.signal("E")
        if mode == "exclusive":
            t.abort()
    ledger.db.join()
    assert ledger.lines() == ["last"]
    assert ledger.letters() == []


def test_rule_that_is_started_again_keeps_its_turn(where: Place) -> None:
    clock = SimulatedClock(EPOCH)
    ledger = open_ledger(where.open(clock=clock, retries_max=0))
    failures = [Deadlock("as told")] * 2

    @ledger.db.rule(on=adb.event("E"), coupling="detached", priority=1)
    def first(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "first")
        if failures:
            raise failures.pop()

    ledger.db.rule(on=adb.event("E"), coupling="detached", name="second")(
        lambda t, o: ledger.write(t, "second")
    )
    ledger.db.signal("E")
    while ledger.pending():
        until(lambda: clock.waiting or not ledger.pending())
        clock.advance(60)
    assert ledger.lines() == ["first", "second"]


@pytest.mark.parametrize("mode", ["detached", "sequential", "exclusive"])
def test_workers_keep_to_the_order_of_priorities(postgres_url: str, mode: str) -> None:
    with place(postgres_url) as there:
        clerk = open_ledger(there.open(firings="queue"))
        Spans(clerk).rules(adb.event("E"), mode)
        with clerk.db.transaction() as t:
            clerk.db.signal("E")
            if mode == "exclusive":
                t.abort()
        worker = Spans(open_ledger(there.open(threads=4, restart_pause_ms=20)))
        worker.rules(adb.event("E"), mode)
        with working(worker.ledger.db):
            until(lambda: not clerk.pending())
        worker.check()


def test_priority_of_a_causal_rule_is_refused(ledger: Ledger) -> None:
    with pytest.raises(DefinitionError, match="priority= means nothing with coupling='causal'"):
        ledger.db.rule(on=adb.event("E"), name="r", coupling="causal", priority=1)(
            lambda t, o: None
        )
    ledger.db.rule(on=adb.event("E"), name="r", coupling="sequential", priority=1)(
        lambda t, o: None
    )
    with pytest.raises(DefinitionError, match="priority= means nothing"):
        ledger.db.rules.change("r", coupling="causal")
