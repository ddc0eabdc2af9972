"""Workers: processes that share the firings which others have recorded."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

import activedb as adb
from activedb.clock import SimulatedClock
from activedb.errors import (
    ConfigurationError,
    FiringsLeft,
    SerializationConflict,
    TransactionStateError,
)
from activedb.events import encode
from activedb.store.journals import Repeated
from coupling.acta import audit
from tests.databases import PATIENCE_S, Place, in_thread, until
from tests.firing.working import cut, listen, working
from tests.ledger import EPOCH, Ledger, declare, event, open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction


# -- queued firings ------------------------------------------------------------------------


@pytest.mark.parametrize("coupling", ["detached", "sequential", "exclusive"])
def test_queued_firing_is_run_by_a_worker_and_not_by_who_recorded_it(
    there: Place, coupling: str
) -> None:
    clerk, worker = open_ledger(there.open(firings="queue")), open_ledger(there.open())
    listen(clerk, coupling)
    listen(worker, coupling)
    with clerk.db.transaction() as t:
        clerk.db.signal("E", n=1)
        if coupling == "exclusive":
            t.abort()
    clerk.db.wait_idle()
    assert clerk.db.recover() == 0
    assert clerk.lines() == []
    assert [row["holder"] for row in clerk.pending()] == [None]
    with working(worker.db):
        until(lambda: worker.lines() == ["rule 1"])
    assert worker.pending() == []
    assert clerk.db.admin.counters().get("rules_fired", 0) == 0
    assert worker.db.admin.counters()["rules_fired"] == 1


def test_queued_causal_rule_runs_beside_what_triggered_it(there: Place) -> None:
    clerk = open_ledger(there.open(firings="queue"))
    listen(clerk, "causal")
    with clerk.db.transaction():
        clerk.db.signal("E", n=1)
    clerk.db.wait_idle()
    assert clerk.lines() == ["rule 1"]
    assert clerk.pending() == []


def test_queued_firings_of_a_stream_are_recorded_with_its_batch(there: Place) -> None:
    clerk, worker = open_ledger(there.open(firings="queue")), open_ledger(there.open())
    for ledger in (clerk, worker):

        @ledger.db.rule(on=adb.event("A"), coupling="detached", name="rule")
        def rule(t: Transaction, o: Occurrence, ledger: Ledger = ledger) -> None:
            ledger.write(t, f"rule {o.params['n']}")

    stream = declare(clerk.db, A=("n",))
    stream.feed([event("A", n, n=n) for n in range(5)])
    assert clerk.lines() == []
    rows = clerk.pending()
    assert [(row["done"], row["holder"], row["keep"]) for row in rows] == [(False, None, False)] * 5
    assert all(row["run"].startswith(Repeated.STREAM.prefix) for row in rows)
    with working(worker.db):
        until(lambda: len(worker.lines()) == 5)
    assert sorted(worker.lines()) == [f"rule {n}" for n in range(5)]
    assert worker.pending() == []
    stream.feed([])
    assert clerk.pending() == []


def test_worker_leaves_firings_of_rules_that_it_does_not_have(there: Place) -> None:
    clerk, worker = open_ledger(there.open(firings="queue")), open_ledger(there.open())
    listen(clerk)
    with working(worker.db):
        clerk.db.signal("E", n=1)
        listen_to_other(clerk)
        listen_to_other(worker)
        clerk.db.signal("OTHER", n=2)
        until(lambda: worker.lines() == ["other 2"])
        assert [row["holder"] for row in clerk.pending()] == [None]
        listen(worker)
        clerk.db.signal("OTHER", n=3)  # a hint, so that it looks
        until(lambda: sorted(worker.lines()) == ["other 2", "other 3", "rule 1"])


def listen_to_other(ledger: Ledger) -> None:
    """Define a rule on another event."""

    @ledger.db.rule(on=adb.event("OTHER"), coupling="detached")
    def other(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"other {o.params['n']}")


# -- hints ---------------------------------------------------------------------------------


def test_idle_worker_is_woken_up_at_once(there: Place) -> None:
    clerk, worker = open_ledger(there.open(firings="queue")), open_ledger(there.open())
    listen(clerk)
    listen(worker)
    with working(worker.db):
        for n in range(3):  # it may have been busy to begin with, but not each time
            clerk.db.signal("E", n=n)
            until(lambda n=n: len(worker.lines()) == n + 1)  # type: ignore[misc]


def test_worker_listens_again_when_its_connection_is_lost(there: Place) -> None:
    clerk, worker = open_ledger(there.open(firings="queue")), open_ledger(there.open())
    listen(clerk)
    listen(worker)
    with working(worker.db):
        clerk.db.signal("E", n=1)
        until(lambda: worker.lines() == ["rule 1"])
        cut(worker.db, "listens")
        for n in (2, 3):
            clerk.db.signal("E", n=n)
            until(lambda n=n: len(worker.lines()) == n)  # type: ignore[misc]


def test_firing_whose_hint_is_lost_is_found_by_looking(there: Place) -> None:
    clerk, worker = open_ledger(there.open()), open_ledger(there.open())
    listen(worker)
    with working(worker.db, poll_s=0.1):
        statement = text(
            "INSERT INTO activedb_pending_firings (firing, run, rule, occurrence, keep, done) "
            "VALUES ('f', 'r', 'rule', :o, false, false)"
        )
        with clerk.db._store.short() as connection:  # notifies no process
            connection.execute(statement, {"o": json.dumps(encode(event("E", 1, n=1)))})
        until(lambda: worker.lines() == ["rule 1"])


# -- leases --------------------------------------------------------------------------------


def test_recover_leaves_what_a_living_process_runs(there: Place) -> None:
    ours, other = open_ledger(there.open()), open_ledger(there.open())
    go = threading.Event()

    @ours.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        assert go.wait(PATIENCE_S)
        ours.write(t, "ours")

    listen(other)
    ours.db.signal("E")
    assert other.db.recover() == 0
    go.set()
    ours.db.wait_idle()
    assert ours.lines() == ["ours"]


def test_firing_of_a_lost_lease_takes_effect_once(there: Place) -> None:
    ours, other = open_ledger(there.open()), open_ledger(there.open())
    go = threading.Event()

    @ours.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        assert go.wait(PATIENCE_S)
        ours.write(t, "ours")

    listen(other)
    ours.db.signal("E", n=1)
    cut(ours.db, "lease")
    assert other.db.recover() == 1
    other.db.wait_idle()
    go.set()
    ours.db.wait_idle()
    assert ours.lines() == ["rule 1"]
    assert ours.pending() == []
    assert ours.letters() == []


def test_process_whose_lease_was_lost_has_it_again_with_its_next_firing(there: Place) -> None:
    ours, other = open_ledger(there.open()), open_ledger(there.open())
    go = threading.Event()

    @ours.db.rule(on=adb.event("E"), coupling="detached", name="rule")
    def waits(t: Transaction, o: Occurrence) -> None:
        assert go.wait(PATIENCE_S)
        ours.write(t, f"ours {o.params['n']}")

    listen(other)
    ours.db.signal("E", n=1)
    cut(ours.db, "lease")
    ours.db.signal("E", n=2)
    assert other.db.recover() == 0
    go.set()
    ours.db.wait_idle()
    assert sorted(ours.lines()) == ["ours 1", "ours 2"]


def test_transaction_whose_exclusive_rule_was_started_elsewhere_does_not_commit(
    there: Place,
) -> None:
    ours, other = open_ledger(there.open(), {1: 10}), open_ledger(there.open())
    listen(ours, "exclusive")
    listen(other, "exclusive")
    with pytest.raises(SerializationConflict, match="taken for dead"), ours.db.transaction() as t:
        t.update(ours.accounts, 1, balance=11)
        ours.db.signal("E", n=1)
        cut(ours.db, "lease")
        assert other.db.recover() == 1
        other.db.wait_idle()
    ours.db.wait_idle()
    assert (ours.lines(), ours.balances()) == (["rule 1"], {1: 10})


def test_firing_that_was_given_up_for_now_is_tried_again_when_asked(there: Place) -> None:
    settings = {"lock_timeout_ms": 400, "retries_max": 0, "clock": SimulatedClock(EPOCH)}
    ours = open_ledger(there.open(**settings), {1: 10})
    tried = threading.Event()

    @ours.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        tried.set()
        t.update(ours.accounts, 1, balance=11)

    with ours.db.transaction() as t:
        t.update(ours.accounts, 1, balance=12)
        ours.db.signal("E")
        until(lambda: ours.db._launcher.running == 0)  # as join() refuses to wait for it
        with pytest.raises(FiringsLeft, match="LockTimeout"):
            ours.db.wait_idle()
        assert tried.is_set()
    assert ours.balances() == {1: 12}
    assert ours.db.recover() == 1
    ours.db.wait_idle()
    assert ours.balances() == {1: 11}
    assert ours.db.recover() == 0


# -- beginning and end -------------------------------------------------------------------


def test_worker_told_to_stop_ends_what_it_runs_first(there: Place) -> None:
    clerk, worker = open_ledger(there.open(firings="queue")), open_ledger(there.open())
    listen(clerk)
    begun, go, stop = threading.Event(), threading.Event(), threading.Event()

    @worker.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        begun.set()
        assert go.wait(PATIENCE_S)
        worker.write(t, "done")

    clerk.db.signal("E")
    said: list[tuple[int, int]] = []
    end = in_thread(
        lambda: worker.db.run_worker(
            stop, on_progress=lambda taken, runs: said.append((taken, runs))
        )
    )
    assert begun.wait(PATIENCE_S)
    stop.set()
    until(lambda: said[-1:] == [(1, 1)])
    assert not end.done()
    go.set()
    assert end.result(PATIENCE_S) == 1
    assert worker.lines() == ["done"]


def test_worker_goes_on_when_connections_were_lost(there: Place) -> None:
    clerk, worker = open_ledger(there.open(firings="queue")), open_ledger(there.open())
    listen(clerk)
    listen(worker)
    with working(worker.db, poll_s=0.1):
        clerk.db.signal("E", n=1)
        until(lambda: worker.lines() == ["rule 1"])
        cut(worker.db, "listens")
        cut(worker.db, "lease")
        clerk.db.signal("E", n=2)
        until(lambda: worker.lines() == ["rule 1", "rule 2"])


# -- what makes no sense -------------------------------------------------------------------


def test_worker_in_memory_is_refused() -> None:
    with (
        adb.connect("memory://") as db,
        pytest.raises(ConfigurationError, match="belongs to one process"),
    ):
        db.run_worker()


def test_firings_in_memory_run_here_though_others_should_run_them() -> None:
    with adb.connect("memory://", firings="queue") as db:
        ledger = open_ledger(db)
        for coupling in ("detached", "sequential"):
            db.rule(on=adb.event("E"), coupling=coupling, name=coupling)(
                lambda t, o: ledger.write(t, "ran")
            )
        db.signal("E")
        db.wait_idle()
        assert ledger.lines() == ["ran", "ran"]


def test_worker_inside_a_transaction_or_twice_is_refused(there: Place) -> None:
    db = there.open()
    with db.transaction(), pytest.raises(TransactionStateError, match="run the worker outside"):
        db.run_worker()
    with working(db):
        until(lambda: db._worker._latch.locked())
        with pytest.raises(TransactionStateError, match="already running a worker"):
            db.run_worker()


@pytest.mark.parametrize("poll_s", [0, -1, float("nan"), float("inf"), "1", True])
def test_worker_with_a_senseless_pause_is_refused(there: Place, poll_s: Any) -> None:
    with pytest.raises(ConfigurationError, match="poll_s"):
        there.open().run_worker(poll_s=poll_s)


# -- a caller's transaction ----------------------------------------------------------------


@pytest.mark.parametrize("coupling", ["detached", "exclusive", "sequential"])
def test_rule_triggered_in_a_callers_transaction_runs_when_that_has_ended(
    where: Place, coupling: str
) -> None:
    ledger = open_ledger(where.open())
    listen(ledger, coupling)
    with ledger.db.connection() as connection:
        with ledger.db.transaction(connection=connection):
            ledger.db.signal("E", n=1)
        if coupling == "exclusive":
            connection.rollback()
        else:
            connection.commit()
    until(lambda: ledger.lines() == ["rule 1"])  # a commit is noticed beside
    ledger.db.wait_idle()
    assert ledger.pending() == []


def test_firing_that_cannot_be_read_becomes_a_letter(where: Place) -> None:
    ledger = open_ledger(where.open())
    listen(ledger)
    row = {"run": "r", "rule": "rule", "keep": False, "done": False}
    rows = [
        {**row, "firing": "a", "occurrence": {"name": "no time"}},
        {**row, "firing": "b", "occurrence": encode(event("E", 1, n=1))},
    ]
    ledger.db._launcher.journal.record(rows, held=False)
    assert ledger.db.recover() == 1
    ledger.db.wait_idle()
    assert ledger.lines() == ["rule 1"]
    (letter,) = ledger.letters()
    assert (letter["source"], letter["identity"]) == ("rule rule", "a")
    assert letter["payload"] == {"name": "no time"}
    assert "not an encoded occurrence" in letter["reason"]
    assert ledger.pending() == []


def test_rule_triggered_in_a_callers_transaction_with_what_cannot_be_kept_becomes_a_letter(
    where: Place,
) -> None:
    ledger = open_ledger(where.open())
    listen(ledger)
    with ledger.db.connection() as connection:
        with ledger.db.transaction(connection=connection):
            ledger.db.signal("E", n=object())
        connection.commit()
    ledger.db.wait_idle()
    (letter,) = ledger.letters()
    assert letter["source"] == "rule rule"


def test_worker_beside_who_triggers_begins_sequential_rules_after_the_triggering_commit(
    there: Place,
) -> None:
    ledger = open_ledger(there.open(firings="queue", recording="full"))
    listen(ledger, "sequential")
    detached, points = ledger.db._launcher, []

    def trigger(point: str) -> None:
        if point == "after commit":
            points.append(point)
            if len(points) == 1:  # the row is there, and the transaction has not ended here
                until(lambda: detached.restarts.waiting() or not ledger.pending())

    with working(ledger.db):
        ledger.db._store.trigger = trigger
        ledger.db.signal("E", n=1)
        until(lambda: not ledger.pending())
    assert ledger.lines() == ["rule 1"]
    assert audit(ledger.db.admin.history()) == []
