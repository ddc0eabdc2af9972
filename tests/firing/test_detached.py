"""Detached rules: on their own, exactly once, also after a crash."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import RuleFailed, SerializationConflict
from activedb.events import encode
from activedb.store.journals import Journal
from tests.databases import PATIENCE_S, in_thread, until
from tests.ledger import event, open_ledger

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


def listen(ledger: Ledger, name: str = "detached", on: str = "E") -> None:
    """Define a detached rule that writes a line."""

    @ledger.db.rule(on=adb.event(on), coupling="detached", name=name)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{name} {o.params.get('n')}")


def test_detached_rule_runs_as_a_top_level_transaction(ledger: Ledger) -> None:
    parents: list[object] = []
    ledger.db.rule(on=adb.event("E"), coupling="detached", name="r")(
        lambda t, o: parents.append((t.parent, t.rule))
    )
    ledger.db.signal("E")
    ledger.db.wait_idle()
    assert parents == [(None, "r")]
    assert ledger.pending() == []


def test_detached_rule_commits_although_the_triggering_transaction_aborts(ledger: Ledger) -> None:
    listen(ledger)
    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=0)
        ledger.db.signal("E", n=1)
        ledger.db.wait_idle()
        t.abort()
    assert ledger.lines() == ["detached 1"]
    assert ledger.balances() == {1: 10, 2: 20}


def test_detached_rule_does_not_wait_for_the_triggering_transaction(ledger: Ledger) -> None:
    listen(ledger)
    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=0)
        ledger.db.signal("E", n=1)
        ledger.db.wait_idle()
        assert ledger.db.admin.row_counts()["log"] == 1


@pytest.mark.long
def test_detached_rule_sees_committed_state_only(ledger: Ledger) -> None:
    seen: list[object] = []
    started = threading.Event()

    @ledger.db.rule(on=adb.updated(ledger.accounts), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        started.set()
        row = t.get(ledger.accounts, 1)
        assert row is not None
        seen.append((o.new["balance"], row["balance"]))

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=99)
        assert started.wait(PATIENCE_S)
        t.abort()
    ledger.db.wait_idle()
    assert seen == [(99, 10)]


def test_detached_rule_that_raises_goes_to_the_dead_letters_alone(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.event("E"), coupling="detached", on_abort="triggering")
    def stumble(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "undone")
        raise ValueError("stumbled")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=0)
        ledger.db.signal("E", n=7)
    ledger.db.wait_idle()
    assert ledger.balances()[1] == 0
    assert ledger.lines() == []
    (letter,) = ledger.letters()
    assert (letter["source"], letter["kind"], letter["error"]) == (
        "rule stumble",
        "rule",
        "ValueError",
    )
    assert "stumbled" in letter["reason"]
    assert letter["payload"]["params"] == {"n": 7}
    assert ledger.pending() == []
    assert ledger.db.recover() == 0


@pytest.mark.parametrize("message", ["a\0b", "half \ud800 of a pair", ""])
def test_detached_rule_with_an_unusual_message_reaches_the_dead_letters(
    ledger: Ledger, message: str
) -> None:
    @ledger.db.rule(on=adb.event("E"), coupling="detached")
    def stumble(t: Transaction, o: Occurrence) -> None:
        raise ValueError(message)

    ledger.db.signal("E")
    ledger.db.wait_idle()
    assert len(ledger.letters()) == 1
    assert ledger.pending() == []


def test_detached_rule_fires_once_when_its_trigger_is_retried(ledger: Ledger) -> None:
    listen(ledger)
    tries: list[int] = []

    def work(t: Transaction) -> None:
        tries.append(1)
        with t.subtransaction():
            ledger.db.signal("E", n=1)
        ledger.db.signal("E", n=2)
        if len(tries) < 3:
            raise SerializationConflict("again")

    ledger.db.run(work)
    ledger.db.wait_idle()
    assert len(tries) == 3
    assert sorted(ledger.lines()) == ["detached 1", "detached 2"]


def test_detached_rule_that_is_retried_takes_effect_once(ledger: Ledger) -> None:
    tries: list[int] = []

    @ledger.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        tries.append(1)
        ledger.write(t, "done")
        if len(tries) < 3:
            raise SerializationConflict("again")

    ledger.db.signal("E")
    ledger.db.wait_idle()
    assert len(tries) == 3
    assert ledger.lines() == ["done"]


def test_detached_rule_fires_once_per_event_and_rule(ledger: Ledger) -> None:
    listen(ledger, "one")
    listen(ledger, "two")
    with ledger.db.transaction():
        for n in range(3):
            ledger.db.signal("E", n=n)
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == [f"{r} {n}" for r in ("one", "two") for n in range(3)]


def test_detached_chain_with_long_names_runs_to_its_end(ledger: Ledger) -> None:
    """Firings are named after what triggered them, and names are bounded in the table."""
    steps = [f"{'a_rule_with_a_long_name_' * 5}{number}" for number in range(6)]

    def follow(number: int) -> None:
        @ledger.db.rule(on=adb.event(f"E{number}"), coupling="detached", name=steps[number])
        def rule(t: Transaction, o: Occurrence) -> None:
            ledger.write(t, f"step {number}")
            ledger.db.signal(f"E{number + 1}")

    for number in range(len(steps)):
        follow(number)
    ledger.db.signal("E0")
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == [f"step {n}" for n in range(len(steps))]
    assert ledger.letters() == []


def test_detached_rule_from_deep_inside_runs(ledger: Ledger) -> None:
    listen(ledger, "a_detached_rule", "BOTTOM")
    listen(ledger, "after_that", "AFTER")

    @ledger.db.rule(on=adb.event("DOWN"))
    def a_rule_with_a_rather_long_name_goes_down(t: Transaction, o: Occurrence) -> None:
        down = o.params["depth"] - 1
        ledger.db.signal(*(("DOWN",) if down else ("BOTTOM",)), depth=down)

    @ledger.db.rule(on=adb.event("BOTTOM"), coupling="detached")
    def once_more(t: Transaction, o: Occurrence) -> None:
        ledger.db.signal("AFTER", n=1)

    ledger.db.signal("DOWN", depth=20)
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == ["a_detached_rule None", "after_that 1"]
    assert ledger.letters() == []


def record(ledger: Ledger, firing: str, rule: str, n: int) -> None:
    """Leave behind what a process leaves that dies between the event and the firing."""
    Journal(ledger.db._store).record(
        [
            {
                "firing": firing,
                "run": "a-run-of-the-dead",
                "rule": rule,
                "occurrence": encode(event("E", 1, n=n)),
                "keep": False,
                "done": False,
            }
        ],
        held=False,
    )


def test_recover_runs_what_a_crash_left_pending_once(ledger: Ledger) -> None:
    listen(ledger)
    record(ledger, "f1", "detached", 1)
    record(ledger, "f2", "detached", 2)
    record(ledger, "f3", "rule of another program", 3)
    assert ledger.db.recover() == 2
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == ["detached 1", "detached 2"]
    assert [row["firing"] for row in ledger.pending()] == ["f3"]
    assert ledger.db.recover() == 0
    ledger.db.wait_idle()
    assert len(ledger.lines()) == 2


def test_recover_in_two_processes_at_once_runs_each_firing_once(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory belongs to one process")
    one = open_ledger(where.open(), {1: 0})
    two = open_ledger(where.open())
    for ledger in (one, two):
        listen(ledger)
    for n in range(10):
        record(one, f"f{n}", "detached", n)
    one.db.recover()
    two.db.recover()
    one.db.wait_idle()
    two.db.wait_idle()
    assert sorted(one.lines()) == sorted(f"detached {n}" for n in range(10))
    assert one.pending() == []
    assert one.letters() == []


def test_recover_after_a_restart_continues_in_the_new_process(where: Place) -> None:
    if where.is_memory:
        pytest.skip("memory keeps nothing")
    first = open_ledger(where.open())
    record(first, "f1", "detached", 1)
    first.db.close()
    second = open_ledger(where.open())
    listen(second)
    assert second.db.recover() == 1
    second.db.wait_idle()
    assert second.lines() == ["detached 1"]


def test_close_waits_for_detached_rules(where: Place) -> None:
    ledger = open_ledger(where.open())
    done: list[int] = []
    go = threading.Event()

    @ledger.db.rule(on=adb.event("E"), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        assert go.wait(PATIENCE_S)
        done.append(1)

    ledger.db.signal("E")
    closing = in_thread(ledger.db.close)
    until(lambda: ledger.db._closed)
    assert not closing.done()
    go.set()
    closing.result(PATIENCE_S)
    assert done == [1]


def test_detached_occurrence_keeps_rows_and_times(ledger: Ledger) -> None:
    seen: list[object] = []

    @ledger.db.rule(on=adb.updated(ledger.facts), coupling="detached")
    def rule(t: Transaction, o: Occurrence) -> None:
        seen.append((o.old, o.new, o.name))

    with ledger.db.transaction() as t:
        t.insert(ledger.facts, {"name": "x", "value": 1, "detail": {"a": [1, None, 2.5]}})
        t.update(ledger.facts, "x", value=2)
    ledger.db.wait_idle()
    detail = {"a": [1, None, 2.5]}
    assert seen == [
        (
            {"name": "x", "value": 1, "detail": detail},
            {"name": "x", "value": 2, "detail": detail},
            "facts",
        )
    ]


def test_event_in_a_transaction_that_has_to_abort_triggers_nothing(ledger: Ledger) -> None:
    ledger.db.rule(on=adb.event("E"), coupling="detached", name="detached")(
        lambda t, o: ledger.write(t, "ran")
    )
    ledger.db.rule(on=adb.event("CHECK"), name="check")(lambda t, o: 1 / 0)
    with pytest.raises(RuleFailed), ledger.db.transaction():
        with contextlib.suppress(RuleFailed):
            ledger.db.signal("CHECK")
        ledger.db.signal("E")
    ledger.db.wait_idle()
    assert ledger.lines() == []
