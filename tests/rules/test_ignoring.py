"""Events inside `with db.rules.ignoring(…)` do not trigger some rules."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import DefinitionError, TransactionCancelled, TransactionStateError
from tests.databases import PATIENCE_S, in_thread

if TYPE_CHECKING:
    from activedb import Database, Occurrence, Transaction
    from tests.ledger import Ledger


@pytest.fixture
def notes(db: Database) -> list[str]:
    """Return what rules `r` and `q`, both on A, and the deferred `d` on A have noted."""
    heard: list[str] = []
    for name, coupling in (("r", "immediate"), ("q", "immediate"), ("d", "deferred")):

        def action(t: Transaction, o: Occurrence, *, me: str) -> None:
            heard.append(me)

        db.rule(on=adb.event("A"), name=name, coupling=coupling, params={"me": name})(action)
    return heard


def test_ignored_rules_are_not_triggered_inside_the_block_alone(
    db: Database, notes: list[str]
) -> None:
    with db.transaction():
        with db.rules.ignoring("r", "d"):
            db.signal("A")
            assert notes == ["q"]
        db.signal("A")
        assert sorted(notes) == ["q", "q", "r"]
    assert sorted(notes) == ["d", "q", "q", "r"]
    assert not db._catalog.drafts


def test_ignoring_holds_for_inferiors_on_all_threads_not_for_other_transactions(
    db: Database, notes: list[str]
) -> None:
    with db.transaction() as t, db.rules.ignoring("q", "d"):
        with t.subtransaction():
            db.signal("A")
        t.spawn(lambda s: db.signal("A")).result()
        assert notes == ["r", "r"]
        in_thread(db.signal, "A").result(PATIENCE_S)
        assert sorted(notes) == ["d", "q", "r", "r", "r"]


def test_ignoring_of_a_subtransaction_ends_with_its_block(db: Database, notes: list[str]) -> None:
    with db.transaction() as t:
        with t.subtransaction(), db.rules.ignoring("r", "d"):
            db.signal("A")
        assert notes == ["q"]
        with db.rules.ignoring("q"), db.rules.ignoring("r", "d"):
            db.signal("A")
        assert notes == ["q"]
        db.signal("A")
    assert sorted(notes) == ["d", "q", "q", "r"]


def test_ignoring_in_a_parallel_child_is_not_for_its_siblings(
    db: Database, notes: list[str]
) -> None:
    inside, done = threading.Event(), threading.Event()

    def quiet(s: Transaction) -> None:
        with db.rules.ignoring("r", "q", "d"):
            inside.set()
            assert done.wait(PATIENCE_S)
            db.signal("A")

    def loud(s: Transaction) -> None:
        assert inside.wait(PATIENCE_S)
        db.signal("A")
        done.set()

    with db.transaction() as t:
        children = [t.spawn(quiet), t.spawn(loud)]
        for child in children:
            child.result()
    assert sorted(notes) == ["d", "q", "r"]


def test_row_changes_do_not_trigger_ignored_rules_in_rules_either(ledger: Ledger) -> None:
    db = ledger.db
    ran: list[str] = []

    @db.rule(on=adb.updated(ledger.accounts))
    def outer(t: Transaction, o: Occurrence) -> None:
        ran.append("outer")
        t.insert(ledger.facts, {"name": str(o.new["balance"]), "value": o.new["balance"]})

    db.rule(on=adb.inserted(ledger.facts), name="inner")(lambda t, o: ran.append("inner"))
    with db.transaction() as t:
        with db.rules.ignoring("inner"):
            t.update(ledger.accounts, 1, balance=1)
        assert ran == ["outer"]
        t.update(ledger.accounts, 1, balance=2)
    assert ran == ["outer", "outer", "inner"]


def test_sequence_of_an_ignored_rule_does_not_know_what_it_was_not_shown(db: Database) -> None:
    ran: list[int] = []
    db.rule(on=adb.seq(adb.event("A"), adb.event("B")), name="ab")(
        lambda t, o: ran.append(o.parts["A"].params["n"])
    )
    with db.transaction():
        with db.rules.ignoring("ab"):
            db.signal("A", n=1, timestamp=1)
        db.signal("B", timestamp=2)
        db.signal("A", n=2, timestamp=3)
        db.signal("B", timestamp=4)
    assert ran == [2]


def test_ignoring_of_an_unknown_rule_is_refused(db: Database, notes: list[str]) -> None:
    db.rule(on=adb.event("B"), name="overdraft")(lambda t, o: None)
    with db.transaction():
        with (
            pytest.raises(DefinitionError, match="no rule named 'overdraftt'; did you mean"),
            db.rules.ignoring("r", "overdraftt"),
        ):
            raise AssertionError("the block must not run")
        db.signal("A")
    assert "r" in notes
    assert not db._catalog.drafts


def test_ignoring_outside_a_transaction_is_refused(db: Database, notes: list[str]) -> None:
    with (
        pytest.raises(TransactionStateError, match="open one on this thread"),
        db.rules.ignoring("r"),
    ):
        raise AssertionError("the block must not run")


def test_ignoring_leaves_nothing_behind_when_its_transaction_aborts_inside(
    db: Database, notes: list[str]
) -> None:
    with db.transaction() as t, db.rules.ignoring("r"):
        t.abort()
    with db.transaction() as t:
        with t.subtransaction() as s, db.rules.ignoring("r"):
            s.abort()
        with pytest.raises(TransactionCancelled), t.subtransaction(), db.rules.ignoring("r"):
            t.cancel()
            db.signal("A")
        t.abort()
    assert not db._catalog.drafts
    db.signal("A")
    assert sorted(notes) == ["d", "q", "r"]


def test_change_made_inside_a_block_stays_when_the_block_ends(
    db: Database, notes: list[str]
) -> None:
    with db.transaction():
        with db.rules.ignoring("q"):
            db.rules.disable("r")
        assert not db.rules["r"].enabled
        db.signal("A")
    assert sorted(notes) == ["d", "q"]
