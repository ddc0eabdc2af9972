"""Rules that change while the program runs, inside transactions and outside."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import DefinitionError, RuleSignatureError
from activedb.transactions import TransactionNode, current_transaction
from tests.databases import PATIENCE_S, in_thread, lock_waits, until
from tests.rules import actions
from tests.rules.listing import listed, row, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Database, Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger


class Boom(Exception):
    """Raised by tests to abort."""


def heard(db: Database, name: str = "r", event: str = "A") -> list[str]:
    """Define a rule that notes when it runs; returns its notes."""
    notes: list[str] = []
    db.rule(on=adb.event(event), name=name)(lambda t, o: notes.append(name))
    return notes


def fires(db: Database, notes: list[str], event: str = "A") -> bool:
    """Return whether an event triggers the rule with these notes."""
    before = len(notes)
    db.signal(event)
    return len(notes) > before


def test_rule_defined_by_code_has_version_one_and_a_row(db: Database) -> None:
    heard(db)
    assert listed(db) == stored(db) == {"r": (1, True, None)}
    kept = row(db, "r")
    assert (kept["coupling"], kept["on_abort"], kept["event"]) == ("immediate", "triggering", "A")
    assert kept["changed_at"].utcoffset() == timedelta(0)
    assert db.rules["r"].on is db.rules["r"].rule.on
    assert "r" in db.rules
    assert "q" not in db.rules
    assert 3 not in db.rules
    assert len(db.rules) == 1


def test_change_outside_a_transaction_is_there_at_once_and_kept(db: Database) -> None:
    notes = heard(db)
    assert fires(db, notes)
    assert db.rules.disable("r").version == 2
    assert not fires(db, notes)
    db.rules.enable("r")
    assert fires(db, notes)
    changed = db.rules.change("r", priority=7, on_abort="rule")
    assert (changed.version, changed.priority, changed.on_abort) == (4, 7, "rule")
    assert listed(db) == stored(db) == {"r": (4, True, 7)}
    assert row(db, "r")["on_abort"] == "rule"
    assert fires(db, notes)
    db.rules.delete("r")
    assert listed(db) == stored(db) == {}
    assert not fires(db, notes)


def test_change_to_what_is_there_already_is_no_new_version(db: Database) -> None:
    heard(db)
    before = db.rules["r"]
    assert db.rules.enable("r") is before
    assert db.rules.change("r", priority=None, coupling="immediate") is before
    assert db.rules.change("r") is before
    assert stored(db) == {"r": (1, True, None)}


def test_change_in_a_transaction_is_seen_by_it_alone_until_it_commits(db: Database) -> None:
    notes = heard(db)
    with db.transaction() as t:
        db.rules.disable("r")
        assert listed(db) == {"r": (2, False, None)}
        assert not fires(db, notes)
        with t.subtransaction():
            assert not fires(db, notes)
        assert in_thread(listed, db).result(PATIENCE_S) == {"r": (1, True, None)}
        assert in_thread(fires, db, notes).result(PATIENCE_S)
        assert t.spawn(lambda s: listed(db)).result() == {"r": (2, False, None)}
    assert not fires(db, notes)
    assert listed(db) == stored(db) == {"r": (2, False, None)}


@pytest.mark.parametrize("change", ["create", "change", "disable", "delete", "load"])
def test_change_is_undone_by_the_abort_of_its_transaction(db: Database, change: str) -> None:
    notes = heard(db)
    before, rows = db.rules.list(), stored(db)

    def act() -> None:
        match change:
            case "create":
                db.rules.create(lambda t, o: None, on=adb.event("A"), name="more")
            case "change":
                db.rules.change("r", priority=1)
            case "disable":
                db.rules.disable("r")
            case "delete":
                db.rules.delete("r")
            case _:
                more = {"more": {"on": {"event": "A"}, "do": "m:note"}}
                db.rules.load(more, modules={"m": actions})

    with pytest.raises(Boom), db.transaction():
        act()
        assert db.rules.list() != before
        raise Boom
    assert db.rules.list() == before
    assert stored(db) == rows
    assert fires(db, notes)


def test_abort_of_a_subtransaction_undoes_its_changes_alone(db: Database) -> None:
    heard(db, "a"), heard(db, "b")
    with db.transaction() as t:
        db.rules.change("a", priority=1)
        with pytest.raises(Boom), t.subtransaction() as s:
            db.rules.disable("a")
            db.rules.disable("b")
            with s.subtransaction():
                db.rules.change("b", priority=5)
            assert listed(db) == {"a": (3, False, 1), "b": (3, False, 5)}
            raise Boom
        assert listed(db) == {"a": (2, True, 1), "b": (1, True, None)}
        with t.subtransaction():
            db.rules.disable("b")
        assert listed(db) == {"a": (2, True, 1), "b": (2, False, None)}
    assert listed(db) == stored(db) == {"a": (2, True, 1), "b": (2, False, None)}


def test_last_change_of_a_transaction_counts_and_the_nearest_of_its_line(db: Database) -> None:
    notes = heard(db)
    with db.transaction() as t:
        db.rules.change("r", priority=1)
        assert fires(db, notes)
        db.rules.disable("r")
        assert not fires(db, notes)
        db.rules.enable("r")
        with pytest.raises(Boom), t.subtransaction() as s:
            db.rules.change("r", on=adb.event("B"))
            assert not fires(db, notes)
            with s.subtransaction():
                db.rules.disable("r")
                assert not fires(db, notes, "B")
            assert not fires(db, notes, "B")
            raise Boom
        assert fires(db, notes)
        assert not fires(db, notes, "B")
    assert stored(db) == {"r": (4, True, 1)}


def test_rule_can_change_the_rules_in_its_own_transaction(db: Database) -> None:
    notes: list[str] = []

    @db.rule(on=adb.event("A"))
    def once(t: Transaction, o: Occurrence) -> None:
        notes.append("once")
        db.rules.disable("once")

    db.signal("A")
    db.signal("A")
    assert notes == ["once"]
    assert stored(db) == {"once": (2, False, None)}
    db.rules.enable("once")
    with db.transaction():
        db.signal("A")
        db.signal("A")
    assert notes == ["once", "once"]


def test_declared_effects_of_a_rule_survive_its_changes(ledger: Ledger) -> None:
    db = ledger.db
    created = db.rules.create(
        lambda t, o: None, on=adb.event("A"), name="r", writes=[ledger.accounts], raises=["B"]
    )
    assert created.rule.declared.raises == frozenset({"B"})
    assert created.rule.declared.writes
    db.rules.change("r", priority=3)
    assert db.rules["r"].rule.declared == created.rule.declared


def test_rule_created_in_a_transaction_acts_in_it_and_from_its_commit_on(db: Database) -> None:
    notes: list[str] = []
    with db.transaction():
        db.rules.create(lambda t, o: notes.append("new"), on=adb.event("A"), name="new")
        db.signal("A")
        in_thread(db.signal, "A").result(PATIENCE_S)
        assert notes == ["new"]
    db.signal("A")
    assert notes == ["new", "new"]


def test_rules_of_equal_standing_keep_the_order_of_their_definition(db: Database) -> None:
    for name in "abc":
        heard(db, name)
    assert list(listed(db)) == ["a", "b", "c"]
    with db.transaction():
        db.rules.disable("a")
        db.rules.change("b", on_abort="rule")
        heard(db, "d")
        assert list(listed(db)) == ["a", "b", "c", "d"]
        db.rules.enable("a")
        t = current_transaction()
        names = [s.rule.name for s in db._catalog.listening_to(("event", "A"), t)]
        assert names == ["a", "b", "c", "d"]
    assert [s.rule.name for s in db._catalog.listening_to(("event", "A"))] == ["a", "b", "c", "d"]


def test_rule_on_another_event_listens_to_that_one_alone(db: Database) -> None:
    notes = heard(db)
    db.rules.change("r", on=adb.event("B"))
    assert not fires(db, notes, "A")
    assert fires(db, notes, "B")
    with pytest.raises(Boom), db.transaction():
        db.rules.change("r", on=adb.event("C"))
        assert not fires(db, notes, "B")
        assert fires(db, notes, "C")
        raise Boom
    assert fires(db, notes, "B")


def test_sequence_of_a_rule_goes_on_over_a_change_of_priority_not_over_disable(
    db: Database,
) -> None:
    notes: list[int] = []
    db.rule(on=adb.seq(adb.event("A"), adb.event("B")), name="ab")(
        lambda t, o: notes.append(o.parts["A"].params["n"])
    )
    db.signal("A", n=1, timestamp=1)
    db.rules.change("ab", priority=3)
    db.signal("B", timestamp=2)
    assert notes == [1]
    db.rules.disable("ab")
    db.signal("A", n=2, timestamp=3)
    db.rules.enable("ab")
    db.signal("B", timestamp=4)
    assert notes == [1]
    db.signal("A", n=3, timestamp=5)
    db.signal("B", timestamp=6)
    assert notes == [1, 3]


def test_change_of_the_same_rule_waits_for_the_end_of_the_other_one(db: Database) -> None:
    heard(db)
    waits = lock_waits(db)
    with db.transaction():
        db.rules.change("r", priority=1)
        other = in_thread(db.rules.disable, "r")
        until(lambda: lock_waits(db) > waits)
        assert not other.done()
    assert other.result(PATIENCE_S).version == 3
    assert listed(db) == stored(db) == {"r": (3, False, 1)}


def test_change_after_a_commit_that_is_not_applied_yet_waits_for_it(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard(db)
    catalog, reached, gate = db._catalog, threading.Event(), threading.Event()
    ended = catalog.ended

    def late(t: TransactionNode) -> None:
        reached.set()
        assert gate.wait(PATIENCE_S)
        ended(t)

    monkeypatch.setattr(catalog, "ended", late)
    first = in_thread(db.rules.change, "r")
    assert first.result(PATIENCE_S).version == 1  # no change, nothing to apply
    first = in_thread(lambda: db.rules.change("r", priority=1))
    assert reached.wait(PATIENCE_S)
    assert stored(db) == {"r": (2, True, 1)}  # committed, its locks are released
    second = in_thread(db.rules.disable, "r")
    until(lambda: len(catalog._latch._waiters))  # type: ignore[attr-defined]  # of a Condition
    assert not second.done()
    gate.set()
    assert (first.result(PATIENCE_S).version, second.result(PATIENCE_S).version) == (2, 3)
    assert listed(db) == stored(db) == {"r": (3, False, 1)}


def test_detached_firing_of_a_rule_that_is_deleted_still_runs(ledger: Ledger) -> None:
    db = ledger.db

    @db.rule(on=adb.event("A"), coupling="detached")
    def late(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "late")

    with db.transaction():
        db.signal("A")
        db.rules.delete("late")
    db.wait_idle()
    assert ledger.lines() == ["late"]


def test_rule_changed_in_a_batch_is_changed_for_the_rest_of_the_batch(ledger: Ledger) -> None:
    db = ledger.db
    stream = db.stream("s", type="k", timestamp="t", types={"A": ()})

    @db.rule(on=adb.event("A"))
    def once(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, str(o.timestamp))
        db.rules.disable("once")

    stream.feed([adb.occurrence("A", timestamp=n) for n in (1, 2, 3)])
    assert ledger.lines() == ["1"]


def test_changes_over_a_callers_connection_follow_the_callers_end(where: Place) -> None:
    db = where.open()
    notes = heard(db)
    with db.connection() as connection:
        with db.transaction(connection=connection):
            db.rules.disable("r")
            assert not fires(db, notes)
        connection.rollback()
        assert listed(db) == {"r": (1, True, None)}
        with db.transaction(connection=connection):
            db.rules.disable("r")
        connection.commit()
    until(lambda: listed(db) == {"r": (2, False, None)})
    assert stored(db) == listed(db)


@pytest.mark.parametrize(
    "act",
    [
        lambda db: db.rules["overdrafts"],
        lambda db: db.rules.enable("overdrafts"),
        lambda db: db.rules.disable("overdrafts"),
        lambda db: db.rules.change("overdrafts", priority=1),
        lambda db: db.rules.delete("overdrafts"),
    ],
)
def test_unknown_rule_is_refused_with_the_nearest_names(
    db: Database, act: Callable[[Database], object]
) -> None:
    with pytest.raises(DefinitionError, match="no rule named 'overdrafts'; there are none"):
        act(db)
    heard(db, "overdraft"), heard(db, "unlike")
    with pytest.raises(DefinitionError, match="did you mean 'overdraft'"):
        act(db)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"coupling": "eventually"}, "rule r: coupling='eventually' is not one of"),
        ({"priority": "high"}, "rule r: priority takes an integer"),
        ({"priority": 2**63}, "rule r: priority has at most 64 bits"),
        ({"on": "EXIT"}, "rule r: on= takes an event expression"),
        ({"on": ~adb.event("A")}, "rule r: "),
        ({"on_abort": "all"}, "rule r: on_abort='all' is not one of"),
        ({"action": lambda t: None}, "rule r: the action"),
        ({"when": 3}, "rule r: the condition"),
        ({"params": {"limit": 3}}, "rule r: neither the action nor the condition takes"),
        ({"set_oriented": True, "coupling": "detached"}, "rule r: set_oriented=True goes together"),
        ({"condition_action": "later"}, "rule r: condition_action='later' is not one of"),
        ({"condition_action": "deferred"}, "rule r: condition_action='deferred' says when the"),
        ({"after": "s"}, "rule r: after= takes a list of rules' names, not 's'"),
        ({"after": [3]}, "rule r: after= takes names of rules, not 3"),
        ({"after": ["r"]}, "rule r: after= makes rules wait for each other: r after r"),
        ({"after": ["s"], "coupling": "detached"}, "rule r: after= is about rules that are"),
        ({"on": None}, "rule r: without on= it needs a condition"),
        ({"prioritty": 3}, "rule r: 'prioritty' is nothing .* did you mean 'priority'"),
        ({"name": "q"}, "rule r: 'name' is nothing that can be changed"),
    ],
)
def test_change_without_meaning_leaves_the_catalog_as_it_was(
    in_memory: Ledger, fields: dict[str, object], message: str
) -> None:
    db = in_memory.db
    notes = heard(db)
    before = db.rules.list()
    with pytest.raises((DefinitionError, RuleSignatureError), match=message):
        db.rules.change("r", **fields)
    with db.transaction():
        with pytest.raises((DefinitionError, RuleSignatureError), match=message):
            db.rules.change("r", **fields)
        assert db.rules.list() == before
    assert db.rules.list() == before
    assert stored(db) == {"r": (1, True, None)}
    assert fires(db, notes)


def test_two_rules_with_one_name_are_refused(db: Database) -> None:
    notes = heard(db)
    before = db.rules.list()
    with pytest.raises(DefinitionError, match="there is a rule named 'r' already"):
        db.rules.create(lambda t, o: None, on=adb.event("B"), name="r")
    assert db.rules.list() == before
    assert stored(db) == {"r": (1, True, None)}
    assert fires(db, notes)


@pytest.mark.parametrize("name", ["x" * 201, "a\0b"])
def test_rule_whose_name_cannot_be_kept_is_refused(db: Database, name: str) -> None:
    with pytest.raises(DefinitionError, match="a name has at most 195 characters, and no NUL"):
        heard(db, name)
    assert listed(db) == stored(db) == {}


def test_rule_bound_to_a_dropped_table_is_refused(ledger: Ledger) -> None:
    db = ledger.db
    db.rule(on=adb.inserted(ledger.facts), name="old")(lambda t, o: None)
    db.rule(on=adb.event("A"), name="r")(lambda t, o: None)
    db.rules.disable("old")
    with db.connection() as connection:
        connection.exec_driver_sql("DROP TABLE facts")
        connection.commit()
    before, rows = db.rules.list(), stored(db)
    acts: tuple[Callable[[], object], ...] = (
        lambda: db.rules.enable("old"),
        lambda: db.rules.change("r", on=adb.updated(ledger.facts)),
        lambda: db.rules.create(lambda t, o: None, on=adb.deleted(ledger.facts), name="new"),
    )
    for act in acts:
        with pytest.raises(DefinitionError, match=r"rule (old|r|new): .* no table facts.*dropped"):
            act()
        assert db.rules.list() == before
    assert stored(db) == rows
