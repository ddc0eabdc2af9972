"""Recorded firings end: nothing has to be called for that, whatever keeps them from it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import (
    ConnectionLost,
    Deadlock,
    FiringsLeft,
    LockTimeout,
    SerializationConflict,
)
from activedb.events import encode
from tests.databases import until
from tests.ledger import EPOCH, declare, event, open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

SYSTEMIC = [
    Deadlock("as told"),
    LockTimeout("as told"),
    SerializationConflict("as told"),
    ConnectionLost("as told"),
]
MODES = ["detached", "sequential", "causal", "exclusive"]


def drive(clock: SimulatedClock, reached: Callable[[], Any], step_s: float = 60) -> None:
    """Let the clock go on whenever a thread waits for it, until a state is reached."""
    while True:
        until(lambda: reached() or clock.waiting)
        if reached():
            return
        clock.advance(step_s)


def trigger(ledger: Ledger, mode: str) -> None:
    """Raise E in a transaction that ends as the mode needs it."""
    with ledger.db.transaction() as t:
        ledger.db.signal("E")
        if mode == "exclusive":
            t.abort()


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", SYSTEMIC, ids=lambda error: type(error).__name__)
def test_firing_that_used_up_its_retries_is_tried_again_by_itself(
    where: Place, mode: str, error: Exception
) -> None:
    clock = SimulatedClock(EPOCH)
    ledger = open_ledger(where.open(clock=clock, retries_max=0))
    failures = [error] * 3

    @ledger.db.rule(on=adb.event("E"), coupling=mode)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "done")
        if failures:
            raise failures.pop()

    trigger(ledger, mode)
    drive(clock, lambda: not ledger.pending())
    assert ledger.lines() == ["done"]
    assert ledger.letters() == []


def test_join_waits_until_firings_whose_recording_was_cut_off_have_been_looked_for(
    where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(where.open(clock=SimulatedClock(EPOCH)))
    ledger.db.rule(on=adb.event("E"), coupling="detached", name="rule")(
        lambda t, o: ledger.write(t, "done")
    )
    journal = ledger.db._launcher.journal
    record = journal.record

    def cut_off(rows: Any, **how: Any) -> Any:
        record(rows, **how)
        raise ConnectionLost("the answer was not heard")

    def away() -> Any:
        raise ConnectionLost("the server is away")

    with monkeypatch.context() as lost:
        lost.setattr(journal, "record", cut_off)
        lost.setattr(journal, "held", away)
        with pytest.raises(ConnectionLost), ledger.db.transaction():
            ledger.db.signal("E")
        with pytest.raises(FiringsLeft, match="look for firings"):
            ledger.db.wait_idle(timeout=0)
    ledger.db.wait_idle()
    assert ledger.lines() == ["done"]
    assert ledger.pending() == []


def test_firing_that_ends_while_recover_looks_for_it_is_started_once(
    where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(where.open(clock=SimulatedClock(EPOCH), retries_max=0))
    failures = [Deadlock("as told")]

    @ledger.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "done")
        if failures:
            raise failures.pop()

    trigger(ledger, "detached")
    until(lambda: ledger.db._launcher.running == 0)
    held = ledger.db._launcher.journal.held
    go_on = threading.Event()
    run = ledger.db._launcher._run

    def run_later(firing: Any) -> None:
        go_on.wait()  # so its row is still there when recover() reads
        run(firing)

    def held_then_ended() -> Any:
        rows = held()
        go_on.set()
        until(lambda: ledger.db._launcher.running == 0)
        return rows

    monkeypatch.setattr(ledger.db._launcher, "_run", run_later)
    monkeypatch.setattr(ledger.db._launcher.journal, "held", held_then_ended)
    assert ledger.db.recover() == 1
    ledger.db.wait_idle()
    assert ledger.lines() == ["done"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("error", SYSTEMIC, ids=lambda error: type(error).__name__)
def test_firing_that_never_succeeds_ends_as_a_dead_letter_with_the_reason(
    where: Place, mode: str, error: Exception
) -> None:
    clock = SimulatedClock(EPOCH)
    ledger = open_ledger(where.open(clock=clock, retries_max=0, restarts_max=3))
    tries: list[int] = []

    @ledger.db.rule(on=adb.event("E"), coupling=mode)
    def rule(t: Transaction, o: Occurrence) -> None:
        tries.append(1)
        raise error

    trigger(ledger, mode)
    drive(clock, lambda: not ledger.pending())
    (letter,) = ledger.letters()
    assert letter["error"] == type(error).__name__
    assert "as told" in letter["reason"]
    assert "3 times" in letter["reason"]
    assert len(tries) == (5 if mode == "causal" else 4)
    ledger.db.wait_idle()


def record_in_line(ledger: Ledger, *rules: str) -> None:
    """Record firings that are due together, in the order of their priorities, for any process."""
    rows = [
        {
            "firing": f"a-run#{rule}",
            "run": "a-run",
            "rule": rule,
            "occurrence": encode(event("E", 1)) | {"turn": ["a-line", -number]},
            "keep": False,
            "done": False,
        }
        for number, rule in enumerate(rules)
    ]
    ledger.db._launcher.journal.record(rows, held=False)


@pytest.mark.parametrize("error", SYSTEMIC, ids=lambda error: type(error).__name__)
def test_firing_behind_a_higher_priority_runs_though_looks_for_that_one_fail(
    where: Place, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimulatedClock(EPOCH)
    ledger = open_ledger(where.open(clock=clock, restarts_max=3))
    ledger.db.rule(on=adb.event("E"), coupling="detached", name="lo")(
        lambda t, o: ledger.write(t, "lo")
    )
    record_in_line(ledger, "not defined here", "lo")
    assert ledger.db.recover() == 1
    journal = ledger.db._launcher.journal
    pending, errors = journal.pending, [error] * 3

    def failing(**how: Any) -> Any:
        if errors:
            raise errors.pop()
        return pending(**how)

    monkeypatch.setattr(journal, "pending", failing)
    drive(clock, lambda: [row["rule"] for row in ledger.pending()] == ["not defined here"])
    assert errors == []
    assert ledger.lines() == ["lo"]


def test_restarts_of_a_firing_are_spread_over_time_though_a_stream_is_fed_meanwhile(
    where: Place,
) -> None:
    clock = SimulatedClock(EPOCH)
    ledger = open_ledger(where.open(clock=clock, retries_max=0, restarts_max=3))
    tries: list[int] = []
    is_blocked = True

    @ledger.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        tries.append(1)
        if is_blocked:
            raise SerializationConflict("as told")
        ledger.write(t, "done")

    stream = declare(ledger.db)
    ledger.db.signal("E")
    for second in range(10):
        stream.feed([event("A", second)])
    until(lambda: ledger.db._launcher.running == 0)
    assert len(tries) == 1
    is_blocked = False
    drive(clock, lambda: not ledger.pending())
    assert ledger.lines() == ["done"]
    assert ledger.letters() == []


def test_firing_is_not_started_before_a_higher_priority_though_a_stream_is_fed_meanwhile(
    where: Place,
) -> None:
    ledger = open_ledger(where.open(clock=SimulatedClock(EPOCH), restarts_max=3))
    ledger.db.rule(on=adb.event("E"), coupling="detached", name="lo")(
        lambda t, o: ledger.write(t, "lo")
    )
    record_in_line(ledger, "not defined here", "lo")
    stream = declare(ledger.db)
    assert ledger.db.recover() == 1
    for second in range(10):
        stream.feed([event("A", second)])
    assert ledger.lines() == []


def test_recover_restarts_waiting_firings_at_once(where: Place) -> None:
    ledger = open_ledger(where.open(clock=SimulatedClock(EPOCH), retries_max=0))
    failures = [Deadlock("as told")]

    @ledger.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "done")
        if failures:
            raise failures.pop()

    trigger(ledger, "detached")
    until(lambda: ledger.db._launcher.running == 0)
    assert ledger.db.recover() == 1
    ledger.db.wait_idle()
    assert ledger.lines() == ["done"]


def test_looks_for_firings_go_on_after_recover_has_found_none(where: Place) -> None:
    """A commit whose answer was lost may reach the database later than the next look."""
    clock = SimulatedClock(EPOCH)
    ledger = open_ledger(where.open(clock=clock))
    ledger.db.rule(on=adb.event("E"), coupling="detached", name="lo")(
        lambda t, o: ledger.write(t, "lo")
    )
    launcher = ledger.db._launcher
    launcher.look()
    assert ledger.db.recover() == 0
    row = {
        "firing": "a-run#lo",
        "run": "a-run",
        "rule": "lo",
        "occurrence": encode(event("E", 1)),
        "keep": False,
        "done": False,
    }
    launcher.journal.record([row])
    drive(clock, lambda: not ledger.pending())
    assert ledger.lines() == ["lo"]
