"""Begin, commit and abort of transactions as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import ConnectionLost, LockTimeout, RuleFailed, SerializationConflict
from tests.databases import until
from tests.ledger import open_ledger
from tests.nodes import node_of

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


def test_began_runs_before_the_block_in_its_transaction(ledger: Ledger) -> None:
    db = ledger.db
    ran_in: list[int] = []
    db.rule(on=adb.began(), name="hello")(lambda t, o: ran_in.append(node_of(t).top.id))
    with db.transaction() as t:
        assert ran_in == [t.id]
    assert db.run(lambda t: t.id) == ran_in[1]
    db.signal("X")
    assert len(ran_in) == 3


def test_began_that_fails_keeps_the_block_from_running(ledger: Ledger) -> None:
    db = ledger.db

    @db.rule(on=adb.began())
    def closed(t: adb.Transaction, o: adb.Occurrence) -> None:
        raise ValueError("closed today")

    with pytest.raises(RuleFailed, match="closed today"), db.transaction():
        pytest.fail("it must not begin")
    with pytest.raises(RuleFailed, match="closed today"):
        db.run(lambda t: pytest.fail("it must not begin"))
    db.rules.disable("closed")
    with db.transaction() as t:
        ledger.write(t, "open")
    assert ledger.lines() == ["open"]


def test_committing_runs_at_the_commit_point_and_before_deferred_rules(ledger: Ledger) -> None:
    db = ledger.db

    @db.rule(on=adb.inserted(ledger.facts), coupling="deferred")
    def fact(t: adb.Transaction, o: adb.Occurrence) -> None:
        ledger.write(t, "deferred by the block")

    @db.rule(on=adb.committing())
    def check(t: adb.Transaction, o: adb.Occurrence) -> None:
        ledger.write(t, "committing")

    @db.rule(on=adb.committing(), coupling="sequential")
    def later(t: adb.Transaction, o: adb.Occurrence) -> None:
        ledger.write(t, "committed")

    with db.transaction() as t:
        t.insert(ledger.facts, {"name": "a", "value": 1})
        ledger.write(t, "block")
        with t.subtransaction():
            pass  # its commit is none of the top-level transaction
    db.wait_idle()
    # Reading the lines begins transactions that commit, too.
    db.rules.disable("check")
    db.rules.disable("later")
    assert ledger.lines() == ["block", "committing", "deferred by the block", "committed"]


def test_committing_that_fails_aborts_and_aborted_is_told_afterwards(ledger: Ledger) -> None:
    db = ledger.db
    aborted: list[adb.Occurrence] = []

    @db.rule(on=adb.committing(where=lambda o: bool(db.rules["refuse"].enabled)))
    def refuse(t: adb.Transaction, o: adb.Occurrence) -> None:
        raise ValueError("not today")

    @db.rule(on=adb.aborted())
    def note(t: adb.Transaction, o: adb.Occurrence) -> None:
        ledger.write(t, "aborted")
        aborted.append(o)

    with pytest.raises(RuleFailed, match="not today"), db.transaction() as t:
        ledger.write(t, "lost")
    db.wait_idle()
    db.rules.disable("refuse")
    assert ledger.lines() == ["aborted"]
    assert [o.key for o in aborted] == [("transaction", "abort")]


def test_aborted_of_a_run_is_told_once_after_its_last_try(ledger: Ledger) -> None:
    db = ledger.db
    told: list[str] = []
    tries: list[int] = []
    db.rule(on=adb.aborted(), name="note")(lambda t, o: told.append(o.name))

    def work(t: adb.Transaction) -> None:
        tries.append(t.id)
        raise SerializationConflict("once more")

    with pytest.raises(SerializationConflict):
        db.run(work)
    until(lambda: told == ["abort"])
    db.wait_idle()
    assert len(tries) > 1
    assert told == ["abort"]


def test_rules_in_transactions_of_their_own_raise_no_transaction_events(ledger: Ledger) -> None:
    db = ledger.db

    @db.rule(on=adb.committing(), coupling="detached")
    def echo(t: adb.Transaction, o: adb.Occurrence) -> None:
        ledger.write(t, "echo")

    with db.transaction():
        pass
    db.wait_idle()
    db.rules.disable("echo")
    assert ledger.lines() == ["echo"]


ALL_MODES = ("immediate", "deferred", "detached", "sequential", "causal")


def abort_one(ledger: Ledger) -> None:
    """Abort a transaction, and wait for what that triggers."""
    with ledger.db.transaction() as t:
        t.abort("on purpose")
    ledger.db.wait_idle()


def sources(ledger: Ledger) -> list[tuple[str, str]]:
    """Sources and errors of the dead letters."""
    return sorted((x.source, x.error) for x in ledger.db.dead_letters)


@pytest.mark.parametrize("on_abort", ["rule", "triggering"])
@pytest.mark.parametrize("coupling", ALL_MODES)
def test_rule_on_aborted_that_raises_becomes_a_dead_letter_and_all_others_run(
    ledger: Ledger, coupling: str, on_abort: str
) -> None:
    @ledger.db.rule(on=adb.aborted(), coupling=coupling, on_abort=on_abort)
    def fails(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "undone")
        raise ValueError("boom")

    for mode in ALL_MODES:
        ledger.db.rule(on=adb.aborted(), coupling=mode, name=mode)(
            lambda t, o, mode=mode: ledger.write(t, mode)
        )
    abort_one(ledger)
    assert sources(ledger) == [("rule fails", "ValueError")]
    assert sorted(ledger.lines()) == sorted(ALL_MODES)


def test_dead_letter_of_a_rule_on_aborted_can_be_retried(ledger: Ledger) -> None:
    broken = [True]

    @ledger.db.rule(on=adb.aborted())
    def mends(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, o.params["transaction"])
        if broken:
            raise ValueError("boom")

    with ledger.db.transaction() as t:
        name = node_of(t).hierarchy.run.name
        t.abort()
    ledger.db.wait_idle()
    broken.clear()
    (retried,) = ledger.db.dead_letters.retry_all()
    assert (retried.outcome, ledger.lines(), sources(ledger)) == ("done", [name], [])


def test_detector_that_cannot_take_an_abort_leaves_a_dead_letter_and_all_others_see_it(
    ledger: Ledger,
) -> None:
    def never(o: Occurrence) -> bool:
        return bool(1 / 0)

    ledger.db.rule(on=adb.aborted(where=never), name="fails")(lambda t, o: None)
    for name, pattern in (
        ("before", adb.seq(adb.event("E"), adb.aborted())),
        ("after", adb.seq(adb.aborted(), adb.event("E"))),
    ):
        ledger.db.rule(on=pattern, name=name)(lambda t, o, name=name: ledger.write(t, name))
    ledger.db.signal("E")
    abort_one(ledger)
    ledger.db.signal("E")
    assert sources(ledger) == [("rule fails", "ZeroDivisionError")]
    assert ledger.lines() == ["before", "after"]


def restarted(where: Place, **settings: Any) -> Ledger:
    """A ledger that begins given up work again at once."""
    pauses = {"retry_pause_ms": 0, "restart_pause_ms": 0.1, "restart_pause_ms_max": 0.1}
    return open_ledger(where.open(**pauses, **settings))


def define_beside(ledger: Ledger) -> None:
    """Define a rule on an abort in each mode that another failing rule concerns in another way."""
    for mode in ("detached", "sequential", "exclusive"):
        ledger.db.rule(on=adb.aborted(), coupling=mode, name=mode)(
            lambda t, o, mode=mode: ledger.write(t, mode)
        )
    ledger.db.rule(on=adb.seq(adb.aborted(), adb.event("E")), name="pattern")(
        lambda t, o: ledger.write(t, "pattern")
    )


@pytest.mark.parametrize("on_abort", ["rule", "triggering"])
@pytest.mark.parametrize("error", [LockTimeout, SerializationConflict, ConnectionLost])
def test_rule_on_aborted_that_others_stop_runs_again_until_it_has_taken_effect_once(
    where: Place, error: type[Exception], on_abort: str
) -> None:
    ledger = restarted(where, retries_max=1, restarts_max=3)
    define_beside(ledger)
    tries: list[str] = []

    @ledger.db.rule(on=adb.aborted(), on_abort=on_abort)
    def stopped(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "ran")
        tries.append("")
        if len(tries) < 8:  # which is the last one
            raise error("busy")

    abort_one(ledger)
    ledger.db.signal("E")
    assert sorted(ledger.lines()) == ["detached", "pattern", "ran", "sequential"]
    assert (len(tries), sources(ledger), ledger.pending()) == (8, [], [])


def test_rule_on_aborted_that_others_always_stop_becomes_a_dead_letter_with_its_transaction(
    where: Place,
) -> None:
    ledger = restarted(where, retries_max=1, restarts_max=3)
    define_beside(ledger)
    tries: list[str] = []

    @ledger.db.rule(on=adb.aborted(), on_abort="rule")
    def stopped(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "never")
        tries.append("")
        raise LockTimeout("busy")

    abort_one(ledger)
    assert sorted(ledger.lines()) == ["detached", "exclusive"]
    names = ("pattern", "sequential", "stopped")
    assert sources(ledger) == [(f"rule {name}", "LockTimeout") for name in names]
    assert (len(tries), ledger.pending()) == (8, [])


def test_rules_on_aborted_whose_commit_is_refused_become_dead_letters(ledger: Ledger) -> None:
    with ledger.db.transaction() as t:
        t.insert(ledger.facts, {"name": "there", "value": 1})

    @ledger.db.rule(on=adb.aborted())
    def again(t: Transaction, o: Occurrence) -> None:
        t.insert(ledger.facts, {"name": "again", "value": 1})

    abort_one(ledger)
    assert [source for source, _ in sources(ledger)] == ["rule again"]


def test_error_of_work_in_the_background_is_logged(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    ledger.db._launcher.run_in_background("this work", lambda: 1 // 0)  # type: ignore[arg-type]
    ledger.db.wait_idle()
    assert [record.getMessage() for record in caplog.records] == ["this work has failed"]


def test_dead_letter_of_no_firing_is_written_once_that_is_possible(
    where: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, failures = restarted(where), [LockTimeout("busy"), ConnectionLost("away")]
    add = ledger.db._launcher.journal.add_dead_letter

    def add_later(letter: Any) -> None:
        if failures:
            raise failures.pop()
        add(letter)

    monkeypatch.setattr(ledger.db._launcher.journal, "add_dead_letter", add_later)
    ledger.db.rule(on=adb.aborted(), name="refused")(
        lambda t, o: t.insert(ledger.facts, {"name": None, "value": 1})
    )
    abort_one(ledger)
    assert [source for source, _ in sources(ledger)] == ["rule refused"]
