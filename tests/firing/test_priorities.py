"""Priorities: what each mode makes of them, whatever makes the rules due together."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import Deadlock, DefinitionError, SerializationConflict
from tests.databases import PATIENCE_S, place, until
from tests.firing.working import working
from tests.ledger import EPOCH, at, declare, event, open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

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
    ledger.db.wait_idle()
    spans.check()
    assert ledger.pending() == []


@pytest.mark.parametrize("mode", ["immediate", "deferred", "detached", "sequential"])
def test_rules_due_at_one_moment_of_the_clock_run_in_the_order_of_priorities(
    where: Place, mode: str
) -> None:
    clock = SimulatedClock(EPOCH)
    spans = Spans(open_ledger(where.open(clock=clock)))
    spans.rules(adb.every(60), mode)
    clock.advance(60)
    spans.ledger.db.wait_idle()
    spans.check()
    spans.noted.clear()
    clock.advance(60)
    spans.ledger.db.wait_idle()
    spans.check()


@pytest.mark.parametrize("mode", ["immediate", "deferred", "detached", "sequential"])
def test_rules_due_at_one_moment_of_a_stream_run_in_the_order_of_priorities(
    ledger: Ledger, mode: str
) -> None:
    spans = Spans(ledger)
    stream = declare(ledger.db)
    spans.rules(WAITS, mode)
    stream.feed([event("A", 1)], punctuation=at(60))
    ledger.db.wait_idle()
    spans.check()


WAITS = adb.seq(adb.event("A"), ~adb.event("B")).within(5)


class Moments:
    """Moments that complete what rules are on, of the clock or of a stream."""

    def __init__(self, where: Place, whose: str):
        self.clock = SimulatedClock(EPOCH)
        self.ledger = open_ledger(where.open(clock=self.clock))
        self.spans = Spans(self.ledger)
        self.on = adb.every(60) if whose == "clock" else WAITS
        self._stream = None if whose == "clock" else declare(self.ledger.db)
        self._passed_s = 0

    def log(self, coupling: str) -> None:
        """Define rules that write their names."""
        for name, priority in PRIORITIES.items():
            self.ledger.db.rule(on=self.on, name=name, coupling=coupling, priority=priority)(
                lambda t, o, name=name: self.ledger.write(t, name)
            )

    def go_on(self) -> None:
        """Let the next moment come."""
        db, begin_s = self.ledger.db, self._passed_s
        self._passed_s += 60
        self.clock.advance(60)
        if self._stream is not None:
            self._stream.feed([event("A", begin_s + 1)], punctuation=at(self._passed_s))
        db.wait_idle()


@pytest.fixture(params=["clock", "stream"])
def moments(request: pytest.FixtureRequest, where: Place) -> Moments:
    return Moments(where, request.param)


def test_exclusive_rules_of_work_that_fails_at_a_moment_run_in_the_order_of_priorities(
    moments: Moments,
) -> None:
    fails = [True, False]

    @moments.ledger.db.rule(on=moments.on)
    def work(t: Transaction, o: Occurrence) -> None:
        moments.ledger.db.signal("E")
        if fails.pop(0):
            raise ValueError("as told")

    moments.spans.rules(adb.event("E"), "exclusive")
    moments.go_on()
    moments.spans.check()
    moments.spans.noted.clear()
    moments.go_on()
    assert moments.spans.noted == []
    assert fails == []
    assert moments.ledger.pending() == []


@pytest.mark.parametrize("tries", [1, 3])
def test_exclusive_rules_that_a_moment_triggers_do_not_run_as_its_work_commits(
    moments: Moments, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments.log("exclusive")
    refused = refuse_commits(moments.ledger.db, monkeypatch, tries - 1)
    moments.go_on()
    assert refused == []
    assert moments.ledger.lines() == []
    assert moments.ledger.pending() == []
    assert moments.ledger.letters() == []


@pytest.mark.parametrize("mode", ["sequential", "detached"])
def test_rules_that_a_moment_triggers_run_once_though_its_work_is_tried_again(
    moments: Moments, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments.log(mode)
    refused = refuse_commits(moments.ledger.db, monkeypatch, 3)
    moments.go_on()
    assert refused == []
    assert moments.ledger.lines() == ORDER
    assert moments.ledger.db.admin.pending_firings() == []


def refuse_commits(
    db: adb.Database, monkeypatch: pytest.MonkeyPatch, times: int
) -> list[SerializationConflict]:
    """Let the next commits fail with errors that are retried; return the errors left."""
    left = [SerializationConflict("as told")] * times

    def trigger(point: str) -> None:
        if point == "before flush" and left:
            raise left.pop()

    monkeypatch.setattr(db._store, "trigger", trigger)
    return left


def test_sequential_rules_of_one_commit_run_in_the_order_of_priorities(ledger: Ledger) -> None:
    spans = Spans(ledger)
    for number, (name, priority) in enumerate(PRIORITIES.items()):
        spans.rule(name, adb.event(f"E{number}"), "sequential", priority)
    with ledger.db.transaction():
        for number in range(len(PRIORITIES)):
            ledger.db.signal(f"E{number}")
    ledger.db.wait_idle()
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
    ledger.db.wait_idle()
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
