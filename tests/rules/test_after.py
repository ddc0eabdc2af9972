"""Rules that come after others, whatever their priorities."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import DefinitionError
from tests.databases import PATIENCE_S
from tests.rules import actions
from tests.rules.listing import listed, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Database, Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

M = actions.__name__


def listening(db: Database, ran: list[str], name: str, on: Any = None, **options: Any) -> None:
    def act(t: Transaction, o: Occurrence) -> None:
        ran.append(name)

    db.rule(on=adb.event("E") if on is None else on, name=name, **options)(act)


@pytest.mark.parametrize("coupling", ["immediate", "deferred"])
def test_rule_after_others_starts_when_they_have_ended(ledger: Ledger, coupling: str) -> None:
    ran: list[str] = []
    listening(ledger.db, ran, "last", after=["second"], priority=9, coupling=coupling)
    listening(ledger.db, ran, "second", after=("first",), coupling=coupling)
    listening(ledger.db, ran, "first", coupling=coupling)
    listening(ledger.db, ran, "middle", priority=5, coupling=coupling)
    ledger.db.signal("E")
    assert ran == ["first", "second", "last", "middle"]


def test_rules_that_another_one_comes_after_still_run_in_parallel(ledger: Ledger) -> None:
    meet = threading.Barrier(2, timeout=PATIENCE_S)
    ran: list[str] = []
    for name in ("a", "b"):
        ledger.db.rule(on=adb.event("E"), name=name)(lambda t, o: meet.wait())
    listening(ledger.db, ran, "c", after=["a", "b"])
    ledger.db.signal("E")
    assert ran == ["c"]


def test_rule_after_one_that_was_not_triggered_does_not_wait(ledger: Ledger) -> None:
    ran: list[str] = []
    listening(ledger.db, ran, "second", after=["first", "nobody of this name"])
    listening(ledger.db, ran, "first", on=adb.event("OTHER"))
    ledger.db.signal("E")
    assert ran == ["second"]


def test_rule_after_one_that_fails_alone_runs_all_the_same(ledger: Ledger) -> None:
    ran: list[str] = []

    @ledger.db.rule(on=adb.event("E"), on_abort="rule")
    def fails(t: Transaction, o: Occurrence) -> None:
        ran.append("fails")
        raise ValueError("no")

    listening(ledger.db, ran, "second", after=["fails"], priority=3)
    ledger.db.signal("E")
    assert ran == ["fails", "second"]


def test_rule_after_an_action_that_was_deferred_waits_for_that_in_its_cycle(
    ledger: Ledger,
) -> None:
    ran: list[str] = []
    listening(
        ledger.db, ran, "first", when=lambda t, o: True, condition_action="deferred", priority=-1
    )
    listening(ledger.db, ran, "second", after=["first"], coupling="deferred", priority=3)
    ledger.db.signal("E")
    assert ran == ["first", "second"]


def test_cycle_of_rules_after_each_other_is_refused_and_the_catalog_is_as_before(
    ledger: Ledger,
) -> None:
    db, ran = ledger.db, list[str]()
    listening(db, ran, "a", after=["b"])
    listening(db, ran, "b", after=["c"])
    before = db.rules.list()
    message = "after= makes rules wait for each other: .* after .* after .* after .*; leave one"
    data = {"c": {"on": {"event": "E"}, "do": f"{M}:note", "after": ["a"]}}
    refused: list[Callable[[], Any]] = [
        lambda: listening(db, ran, "c", after=["a"]),
        lambda: db.rules.create(lambda t, o: None, on=adb.event("E"), name="c", after=["a"]),
        lambda: db.rules.load(data, modules=[actions]),
    ]
    for define in refused:
        with pytest.raises(DefinitionError, match=f"rule c: {message}"):
            define()
        with db.transaction():
            with pytest.raises(DefinitionError, match=f"rule c: {message}"):
                define()
            assert db.rules.list() == before
    assert db.rules.list() == before
    assert listed(db) == stored(db)
    listening(db, ran, "c")
    with pytest.raises(DefinitionError, match=f"rule c: {message}"):
        db.rules.change("c", after=["a"])
    assert db.rules["c"].version == 1
    db.signal("E")
    assert ran == ["c", "b", "a"]


def test_rule_that_would_wait_for_a_set_oriented_one_is_refused(ledger: Ledger) -> None:
    """Set-oriented immediate rules run after the others, so nothing can wait for them."""
    db, ran = ledger.db, list[str]()
    listening(db, ran, "set", set_oriented=True)
    listening(db, ran, "other set", set_oriented=True, after=["set", "later"])
    before = db.rules.list()
    message = "rule {}: after= names the set-oriented rule {}, which runs after all that is not"
    with pytest.raises(DefinitionError, match=message.format("row", "set")):
        listening(db, ran, "row", after=["set"])
    listening(db, ran, "later")
    listening(db, ran, "row", after=["later"])
    with pytest.raises(DefinitionError, match=message.format("row", "later")):
        db.rules.change("later", set_oriented=True)
    with pytest.raises(DefinitionError, match=message.format("other set", "set")):
        db.rules.change("other set", set_oriented=False)
    assert db.rules.list()[:2] == before
    db.signal("E")
    assert ran == ["later", "row", "set", "other set"]
    for name in ("set", "row"):
        db.rules.delete(name)
    listening(db, ran, "deferred set", set_oriented=True, coupling="deferred")
    listening(db, ran, "deferred row", after=["deferred set"], coupling="deferred")
    ran.clear()
    db.signal("E")
    assert ran == ["later", "other set", "deferred set", "deferred row"]


def test_cycle_that_two_transactions_make_together_fails_what_triggers_it(where: Place) -> None:
    """Neither of them can see it, so it is reported when the rules are triggered together."""
    db, ran = where.open(), list[str]()
    listening(db, ran, "a")
    listening(db, ran, "b")
    with db.transaction():
        db.rules.change("a", after=["b"])
        thread = threading.Thread(target=lambda: db.rules.change("b", after=["a"]))
        thread.start()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    with pytest.raises(DefinitionError, match=r"triggered together in .* wait for each other"):
        db.signal("E")
    assert ran == []
    db.rules.change("b", after=[])
    db.signal("E")
    assert ran == ["b", "a"]


def test_after_is_changed_and_listed_like_the_other_fields(ledger: Ledger) -> None:
    db, ran = ledger.db, list[str]()
    listening(db, ran, "a")
    listening(db, ran, "b", after={"a"})
    assert db.rules["b"].after == ("a",)
    with db.transaction():
        assert db.rules.change("b", after=[]).version == 2
        assert db.rules.change("a", after=["b"]).after == ("b",)
        db.signal("E")
    assert ran == ["b", "a"]
    assert db.rules.change("a", after=["b"]).version == 2
