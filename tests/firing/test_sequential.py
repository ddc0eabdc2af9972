"""Sequential rules: recorded by the triggering commit, started after it, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import SerializationConflict
from tests.databases import until
from tests.ledger import declare, event

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger


def listen(ledger: Ledger, on: str = "E", coupling: str = "sequential", name: str = "rule") -> None:
    """Define a rule that writes a line."""

    @ledger.db.rule(on=adb.event(on), coupling=coupling, name=name)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{name} {o.params.get('n')}")


def test_sequential_rule_begins_after_the_commit(ledger: Ledger) -> None:
    seen: list[object] = []

    @ledger.db.rule(on=adb.event("E"), coupling="sequential")
    def rule(t: Transaction, o: Occurrence) -> None:
        seen.append((t.parent, triggering.state, t.get(ledger.accounts, 1)))

    with ledger.db.transaction() as triggering:
        triggering.update(ledger.accounts, 1, balance=0)
        ledger.db.signal("E")
        ledger.db.wait_idle()
        assert seen == []
        assert ledger.pending() == []
    ledger.db.wait_idle()
    assert seen == [(None, adb.State.COMMITTED, {"id": 1, "balance": 0})]
    assert ledger.pending() == []


def test_sequential_rule_of_an_aborted_transaction_never_begins(ledger: Ledger) -> None:
    listen(ledger)
    with ledger.db.transaction() as t:
        ledger.db.signal("E", n=1)
        t.abort()
    ledger.db.wait_idle()
    assert ledger.lines() == []
    assert ledger.pending() == []


def test_sequential_rules_of_subtransactions_begin_when_all_superiors_have_committed(
    ledger: Ledger,
) -> None:
    listen(ledger)
    with ledger.db.transaction() as t:
        with t.subtransaction() as s, s.subtransaction():
            ledger.db.signal("E", n=1)
        with t.subtransaction() as s:
            with s.subtransaction():
                ledger.db.signal("E", n=2)
            s.abort()
        t.spawn(lambda s: ledger.db.signal("E", n=3)).result()
        with pytest.raises(ZeroDivisionError):
            t.spawn(lambda s: (ledger.db.signal("E", n=4), 1 / 0)).result()
        ledger.db.wait_idle()
        assert ledger.db.admin.row_counts()["log"] == 0
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == ["rule 1", "rule 3"]


def test_sequential_rule_fires_once_when_its_trigger_is_retried(ledger: Ledger) -> None:
    listen(ledger)
    tries: list[int] = []

    def work(t: Transaction) -> None:
        tries.append(1)
        ledger.db.signal("E", n=1)
        if len(tries) == 1:
            raise SerializationConflict("once more")

    ledger.db.run(work)
    ledger.db.wait_idle()
    assert (len(tries), ledger.lines()) == (2, ["rule 1"])


@pytest.mark.parametrize("coupling", ["immediate", "deferred", "detached", "sequential"])
def test_sequential_rule_of_a_rule_begins_when_that_has_committed(
    ledger: Ledger, coupling: str
) -> None:
    listen(ledger, on="F", name="second")

    @ledger.db.rule(on=adb.event("E"), coupling=coupling)
    def first(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "first")
        ledger.db.signal("F", n=1)

    ledger.db.signal("E")
    ledger.db.wait_idle()
    assert ledger.lines() == ["first", "second 1"]
    assert ledger.pending() == []


def test_sequential_rule_that_raises_goes_to_the_dead_letters_alone(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.event("E"), coupling="sequential")
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "undone")
        raise ValueError("no")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=0)
        ledger.db.signal("E")
    ledger.db.wait_idle()
    assert ledger.lines() == []
    assert ledger.balances()[1] == 0
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("rule rule", "ValueError")
    assert ledger.pending() == []


def test_occurrence_that_cannot_be_kept_is_a_dead_letter_of_the_commit(ledger: Ledger) -> None:
    listen(ledger)
    with ledger.db.transaction() as t:
        ledger.db.signal("E", n=object())
        t.abort()
    assert ledger.letters() == []
    with ledger.db.transaction():
        ledger.db.signal("E", n=object())
    ledger.db.wait_idle()
    (letter,) = ledger.letters()
    assert letter["source"] == "rule rule"
    assert ledger.lines() == []


def test_sequential_rules_of_a_stream_begin_when_its_part_has_committed(ledger: Ledger) -> None:
    listen(ledger, on="A")
    stream = declare(ledger.db, A=("n",))
    stream.feed([event("A", n, n=n) for n in range(5)])
    ledger.db.wait_idle()
    assert sorted(ledger.lines()) == [f"rule {n}" for n in range(5)]
    assert ledger.pending() == []


def test_sequential_rule_in_the_callers_transaction_waits_for_the_callers_commit(
    ledger: Ledger,
) -> None:
    listen(ledger)
    for ending in ("rollback", "commit"):
        with ledger.db.connection() as connection:
            with ledger.db.transaction(connection=connection):
                ledger.db.signal("E", n=ending)
            getattr(connection, ending)()
    until(lambda: ledger.lines() == ["rule commit"])  # the commit is noticed beside
