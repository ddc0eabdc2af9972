"""Begin, commit and abort of transactions as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import RuleFailed
from tests.databases import until
from tests.nodes import node_of

if TYPE_CHECKING:
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
        raise adb_errors.SerializationConflict("once more")

    from activedb import errors as adb_errors

    with pytest.raises(adb_errors.SerializationConflict):
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
