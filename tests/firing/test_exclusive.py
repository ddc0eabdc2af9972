"""Exclusive rules take effect if, and only if, the transaction that triggered them fails."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import (
    ConnectionLost,
    ConstraintViolation,
    FiringsLeft,
    SerializationConflict,
    StoreError,
)
from tests.databases import PATIENCE_S, in_thread, until
from tests.ledger import EPOCH, declare, event, open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


@pytest.fixture
def ledger(ledger: Ledger) -> Ledger:
    """Return a ledger with an exclusive rule that writes a line."""
    listen(ledger)
    return ledger


def listen(ledger: Ledger) -> None:
    """Define the rule."""

    @ledger.db.rule(on=adb.event("E"), coupling="exclusive")
    def contingency(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"instead of {o.params.get('n')}")


def test_exclusive_rule_does_not_run_when_its_trigger_commits(ledger: Ledger) -> None:
    with ledger.db.transaction() as t:
        ledger.db.signal("E", n=1)
        (row,) = ledger.pending()
        assert row["intent"]
        assert ledger.db.admin.pending_firings() == []
        t.update(ledger.accounts, 1, balance=0)
    ledger.db.wait_idle()
    assert ledger.lines() == []
    assert ledger.pending() == []


def test_exclusive_rule_runs_when_its_trigger_aborts(ledger: Ledger) -> None:
    with ledger.db.transaction() as t:
        ledger.db.signal("E", n=1)
        t.abort()
    with pytest.raises(ZeroDivisionError):
        ledger.db.run(lambda t: (ledger.db.signal("E", n=2), 1 / 0))
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == ["instead of 1", "instead of 2"]
    assert ledger.pending() == []


def test_exclusive_rule_runs_when_the_commit_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConstraintViolation), ledger.db.transaction() as t:
        ledger.db.signal("E", n=1)
        t.insert(ledger.facts, {"name": "a", "value": 1})
        t.insert(ledger.facts, {"name": "b", "value": 1})
    ledger.db.wait_idle()
    assert ledger.lines() == ["instead of 1"]
    assert ledger.known() == {}


def test_exclusive_rule_of_an_aborted_subtransaction_runs_when_the_work_is_over(
    ledger: Ledger,
) -> None:
    with ledger.db.transaction() as t:
        with t.subtransaction() as s:
            ledger.db.signal("E", n="aborted")
            s.abort()
        with t.subtransaction():
            ledger.db.signal("E", n="committed")
        ledger.db.wait_idle()
        assert ledger.db.admin.row_counts()["log"] == 0
    ledger.db.wait_idle()
    assert ledger.lines() == ["instead of aborted"]
    assert ledger.pending() == []


def test_exclusive_rule_of_a_rule_below_runs_though_its_superiors_triggered_nothing(
    ledger: Ledger,
) -> None:
    def fail(s: Transaction) -> None:
        s.spawn(lambda child: ledger.db.signal("E", n=1)).result()
        raise ValueError("no")

    with ledger.db.transaction() as t, pytest.raises(ValueError, match="no"):
        t.spawn(fail).result()
    ledger.db.wait_idle()
    assert ledger.lines() == ["instead of 1"]
    assert ledger.pending() == []


def test_exclusive_rule_does_not_run_when_a_retry_succeeds(ledger: Ledger) -> None:
    tries: list[int] = []

    def work(t: Transaction) -> None:
        tries.append(1)
        if len(tries) != 2:
            ledger.db.signal("E", n=1)
        if len(tries) == 1:
            ledger.db.signal("E", n="in the first try only")
        if len(tries) < 3:
            raise SerializationConflict("once more")

    ledger.db.run(work)
    ledger.db.wait_idle()
    assert len(tries) == 3
    assert ledger.lines() == []
    assert ledger.pending() == []


def test_intent_stays_recorded_when_another_one_at_its_event_could_not_be(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, tries = ledger.db, list[int]()

    def fail(firings: object) -> None:
        raise StoreError("the server is away")

    def work(t: Transaction) -> None:
        tries.append(1)
        if len(tries) == 1:
            db.signal("E", n=1)
            raise SerializationConflict("once more")
        if len(tries) == 2:
            define = db.rule(on=adb.event("E"), coupling="exclusive", name="second")
            in_thread(define, lambda t, o: None).result(PATIENCE_S)
            with monkeypatch.context() as away, suppress(StoreError):
                away.setattr(db._launcher.journal, "intend", fail)
                db.signal("E", n=1)

    db.run(work)
    db.wait_idle()
    assert len(tries) == 2
    assert ledger.lines() == []
    assert ledger.pending() == []


def test_exclusive_rule_runs_once_when_all_tries_fail(ledger: Ledger) -> None:
    def work(t: Transaction) -> None:
        ledger.db.signal("E", n=1)
        raise SerializationConflict("once more")

    with pytest.raises(SerializationConflict):
        ledger.db.run(work)
    ledger.db.wait_idle()
    assert ledger.lines() == ["instead of 1"]
    assert ledger.pending() == []


def test_exclusive_rule_that_raises_goes_to_the_dead_letters(ledger: Ledger) -> None:
    ledger.db.rules.change("contingency", action=lambda t, o: 1 / 0)
    with ledger.db.transaction() as t:
        ledger.db.signal("E")
        t.abort()
    ledger.db.wait_idle()
    assert [letter["error"] for letter in ledger.letters()] == ["ZeroDivisionError"]
    assert ledger.pending() == []


@pytest.mark.parametrize("coupling", ["immediate", "deferred", "detached", "sequential", "causal"])
@pytest.mark.parametrize("fails", [False, True])
def test_exclusive_rule_of_a_rule_runs_if_that_fails(
    ledger: Ledger, coupling: str, fails: bool
) -> None:
    @ledger.db.rule(on=adb.event("D"), coupling=coupling, on_abort="rule")
    def first(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("E", n="first")
        ledger.write(t, "first")
        if fails:
            raise ValueError("no")

    with ledger.db.transaction():
        ledger.db.signal("D")
    ledger.db.wait_idle()
    assert ledger.lines() == (["instead of first"] if fails else ["first"])
    assert ledger.pending() == []


def test_exclusive_rule_of_a_causal_rule_runs_if_what_triggered_that_aborts(
    ledger: Ledger,
) -> None:
    @ledger.db.rule(on=adb.event("D"), coupling="causal")
    def first(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("E", n="first")

    with ledger.db.transaction() as t:
        ledger.db.signal("D")
        until(lambda: len(ledger.pending()) == 1)
        t.abort()
    ledger.db.wait_idle()
    assert ledger.lines() == ["instead of first"]
    assert ledger.pending() == []


def test_exclusive_rule_in_the_callers_transaction_follows_the_caller(ledger: Ledger) -> None:
    for ending in ("rollback", "commit"):
        with ledger.db.connection() as connection:
            with ledger.db.transaction(connection=connection):
                ledger.db.signal("E", n=ending)
            getattr(connection, ending)()
    until(lambda: ledger.pending() == [])  # the commit is noticed beside
    ledger.db.wait_idle()
    assert ledger.lines() == ["instead of rollback"]


def test_exclusive_rule_of_a_stream_runs_for_the_events_that_fail(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.event("A"))
    def work(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("E", n=o.params["n"])
        if o.params["n"] == 2:
            raise ValueError("no")

    declare(ledger.db, A=("n",)).feed([event("A", n, n=n) for n in range(4)])
    ledger.db.wait_idle()
    assert ledger.lines() == ["instead of 2"]
    assert ledger.pending() == []


@pytest.mark.parametrize("by", ["itself", "recover"])
def test_exclusive_rule_that_could_not_fall_due_does_so_later(
    where: Place, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    clock = SimulatedClock(EPOCH)
    ledger = open_ledger(where.open(clock=clock))
    listen(ledger)

    def lost(names: object) -> object:
        raise ConnectionLost("the server is away")

    with monkeypatch.context() as away:
        away.setattr(ledger.db._launcher.journal, "activate_intents", lost)
        with ledger.db.transaction() as t:
            ledger.db.signal("E", n=1)
            t.abort()
        with pytest.raises(FiringsLeft, match="the server is away"):
            ledger.db.wait_idle(timeout=0)
    assert ledger.lines() == []
    assert [row["intent"] for row in ledger.pending()] == [True]
    if by == "itself":
        clock.advance(1)
    else:
        ledger.db.recover()
    ledger.db.wait_idle()
    assert ledger.lines() == ["instead of 1"]
    assert ledger.pending() == []
