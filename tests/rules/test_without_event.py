"""Rules without event: evaluated when what their condition reads changes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import func, select

import activedb as adb
from activedb.errors import DefinitionError
from tests.rules import actions

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger

M = actions.__name__
ALL_OF_ACCOUNTS = "ANY(INSERT accounts, UPDATE accounts, DELETE accounts)"


def asking() -> tuple[list[str], Callable[[Transaction, Occurrence], bool]]:
    """A condition that notes what it is asked about, and is false."""
    asked: list[str] = []

    def when(t: Transaction, o: Occurrence) -> bool:
        asked.append(" ".join(o.key))
        return False

    return asked, when


def test_rule_without_event_is_evaluated_when_its_tables_change(ledger: Ledger) -> None:
    asked, when = asking()
    ledger.db.rule(when=when, reads=[ledger.accounts], name="r")(lambda t, o: None)
    with ledger.db.transaction() as t:
        t.insert(ledger.accounts, {"id": 3})
        t.update(ledger.accounts, 3, balance=5)
        t.delete(ledger.accounts, 3)
        ledger.write(t, "another table")
    assert asked == ["insert accounts", "update accounts", "delete accounts"]
    assert repr(ledger.db.rules["r"].on) == ALL_OF_ACCOUNTS
    assert ledger.db.rules["r"].rule.without_event


def test_rule_without_event_that_reads_columns_hears_their_updates_only(ledger: Ledger) -> None:
    asked, when = asking()
    reads = [ledger.facts.c.value, "accounts.balance"]
    ledger.db.rule(when=when, reads=reads, name="r")(lambda t, o: None)
    with ledger.db.transaction() as t:
        t.insert(ledger.facts, {"name": "a", "value": 1})
        t.update(ledger.facts, "a", detail={"x": 1})
        t.update(ledger.facts, "a", value=1)
        t.update(ledger.facts, "a", value=2)
        t.update(ledger.accounts, 1, balance=1)
    assert asked == ["insert facts", "update facts", "update accounts"]


def test_rule_without_event_acts_as_soon_as_its_condition_becomes_true(ledger: Ledger) -> None:
    a = ledger.accounts
    total = select(func.sum(a.c.balance))

    @ledger.db.rule(when=lambda t, o: t.query(total)[0][0] > 40, reads=[a.c.balance])
    def too_much(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"{t.query(total)[0][0]}")

    with ledger.db.transaction() as t:
        t.update(a, 1, balance=20)
        t.update(a, 2, balance=21)
    assert ledger.lines() == ["41"]


def enough(t: Transaction, o: Occurrence, *, table: object) -> bool:
    """A condition whose source shows what it reads, once the parameter is known."""
    return t.get(table, 1) is not None


def test_rule_without_event_reads_what_its_source_says(ledger: Ledger) -> None:
    accounts, facts = ledger.accounts, ledger.facts

    def when(t: Transaction, o: Occurrence) -> bool:
        rows = t.query(select(facts.c.value).where(facts.c.name == "limit"))
        return bool(rows) and t.get(accounts, 1) is not None

    ledger.db.rule(when=when, name="r")(lambda t, o: None)
    ledger.db.rule(when=enough, name="p", params={"table": accounts})(lambda t, o: None)
    told = repr(ledger.db.rules["r"].on)
    assert "INSERT accounts, UPDATE accounts, DELETE accounts" in told
    assert "INSERT facts, UPDATE facts(" in told
    assert "detail" not in told
    assert repr(ledger.db.rules["p"].on) == ALL_OF_ACCOUNTS


def opaque(t: Transaction, o: Occurrence) -> bool:
    """A condition whose source does not tell what it reads."""
    return t.get(o.params["table"], 1) is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "rule r: without on= it needs a condition, when="),
        ({"when": opaque}, r"rule r: .*source does not tell.*write reads=\[table, …\], or on="),
        ({"when": len}, "rule r: .*source does not tell"),
        ({"when": lambda t, o: True}, "rule r: the condition reads no table"),
        ({"when": opaque, "reads": []}, "rule r: the condition reads no table"),
        ({"when": opaque, "reads": "accounts"}, "rule r: reads= takes a list"),
        ({"when": 3}, "rule r: "),
        ({"when": 3, "reads": ["accounts"]}, "rule r: "),
    ],
)
def test_rule_without_event_of_which_nobody_tells_what_it_reads_is_refused(
    in_memory: Ledger, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DefinitionError, match=message):
        in_memory.db.rule(name="r", **options)(lambda t, o: None)
    assert len(in_memory.db.rules) == 0
    in_memory.db.rule(name="r", when=opaque, reads=["accounts"])(lambda t, o: None)


def test_rule_without_event_about_a_table_that_is_not_there_is_refused(ledger: Ledger) -> None:
    with pytest.raises(DefinitionError, match="rule r: the database has no table nowhere"):
        ledger.db.rules.create(
            lambda t, o: None, name="r", when=lambda t, o: True, reads=["nowhere"]
        )
    assert len(ledger.db.rules) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"reads": ["accounts.balence"]},
        {"on": adb.event("E"), "reads": ["accounts.id", "accounts.balence"]},
        {"on": adb.event("E"), "writes": ["accounts.balence"]},
    ],
)
def test_column_that_its_table_lacks_is_refused_when_the_rule_is_defined(
    in_memory: Ledger, options: dict[str, Any]
) -> None:
    message = "rule r: table accounts has no column 'balence'; did you mean 'balance'?"
    given = {"name": "r", "when": lambda t, o: True, **options}
    db = in_memory.db
    with pytest.raises(DefinitionError, match=re.escape(message)):
        db.rule(**given)(lambda t, o: None)
    with pytest.raises(DefinitionError, match=re.escape(message)):
        db.rules.create(lambda t, o: None, **given)
    with db.transaction() as t:
        with pytest.raises(DefinitionError, match=re.escape(message)):
            db.rules.create(lambda t, o: None, **given)
        t.update(in_memory.accounts, 1, balance=1)
    assert len(db.rules) == 0
    assert in_memory.balances()[1] == 1


def test_column_that_its_table_lacks_is_refused_in_data(in_memory: Ledger) -> None:
    data = {"do": f"{M}:note", "when": f"{M}:is_poor", "reads": ["accounts.balence"]}
    with pytest.raises(DefinitionError, match="rule r: table accounts has no column 'balence'"):
        in_memory.db.rules.load({"r": data}, modules=[actions])
    assert len(in_memory.db.rules) == 0


def test_column_of_a_table_that_is_not_declared_yet_is_not_checked(in_memory: Ledger) -> None:
    options: dict[str, Any] = {
        "when": lambda t, o: True,
        "reads": ["later.balance"],
        "writes": ["later.total"],
    }
    in_memory.db.rule(name="r", **options)(lambda t, o: None)
    in_memory.db.rules.create(lambda t, o: None, name="s", on=adb.event("E"), **options)
    assert [rule.name for rule in in_memory.db.rules] == ["r", "s"]


def test_rule_without_event_listens_anew_when_its_condition_is_changed(ledger: Ledger) -> None:
    db, accounts, facts = ledger.db, ledger.accounts, ledger.facts
    db.rule(name="r", when=lambda t, o: t.get(accounts, 1) is not None)(lambda t, o: None)
    on = db.rules["r"].on
    assert db.rules.change("r", priority=3).on is on
    assert db.rules["r"].rule.without_event
    changed = db.rules.change("r", when=lambda t, o: t.get(facts, "a") is not None)
    assert changed.on.keys == {(kind, "facts") for kind in ("insert", "update", "delete")}
    assert changed.rule.without_event
    fixed = db.rules.change("r", on=adb.event("E"))
    assert not fixed.rule.without_event
    assert db.rules.change("r", when=lambda t, o: True).on == adb.event("E")


@pytest.mark.parametrize("coupling", ["immediate", "deferred", "detached", "sequential"])
def test_rule_without_event_runs_in_any_coupling_mode(in_memory: Ledger, coupling: str) -> None:
    db, a = in_memory.db, in_memory.accounts

    @db.rule(when=lambda t, o: t.get(a, 1)["balance"] > 50, coupling=coupling)
    def rule(t: Transaction, o: Occurrence) -> None:
        in_memory.write(t, "acted")

    for balance in (50, 51):
        with db.transaction() as t:
            t.update(a, 1, balance=balance)
        db.wait_idle()
    assert in_memory.lines() == ["acted"]


def test_rule_without_event_and_set_oriented_is_asked_once_for_a_statement(ledger: Ledger) -> None:
    db, a = ledger.db, ledger.accounts
    asked: list[int] = []

    def when(t: Transaction, o: Any) -> bool:
        asked.append(len(o.rows))
        return False

    db.rule(name="r", when=when, reads=[a], set_oriented=True)(lambda t, o: None)
    with db.transaction() as t:
        t.execute(a.update().values(balance=0))
    assert asked == [2]


def test_rule_without_event_comes_from_data(in_memory: Ledger) -> None:
    actions.noted.clear()
    data = {"do": f"{M}:note", "when": f"{M}:is_poor", "reads": ["accounts.balance"]}
    in_memory.db.rules.load({"r": data}, modules=[actions])
    with in_memory.db.transaction() as t:
        t.update(in_memory.accounts, 1, balance=3)
        t.update(in_memory.accounts, 2, balance=30)
    assert actions.noted == ["accounts"]
    with pytest.raises(DefinitionError, match=r"rule s: without on=.*write reads="):
        in_memory.db.rules.load({"s": {"do": f"{M}:note", "when": f"{M}:peeks"}}, modules=[actions])
