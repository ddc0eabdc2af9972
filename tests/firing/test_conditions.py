"""Conditions only read: every way of writing in one is refused, and the rule fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete as sql_delete
from sqlalchemy import insert as sql_insert
from sqlalchemy import select
from sqlalchemy import update as sql_update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import activedb as adb
from activedb.errors import ConditionWrites, RuleFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from activedb import Occurrence, Transaction
    from tests.databases import Place
    from tests.ledger import Ledger

WRITES: dict[str, Callable[[Ledger, Transaction], Any]] = {
    "insert": lambda ledger, t: t.insert(ledger.accounts, {"id": 9}),
    "insert of what is there": lambda ledger, t: t.insert(ledger.accounts, {"id": 1}),
    "update": lambda ledger, t: t.update(ledger.accounts, 2, balance=0),
    "update of nothing": lambda ledger, t: t.update(ledger.accounts, 77, balance=0),
    "delete": lambda ledger, t: t.delete(ledger.accounts, 2),
    "update statement": lambda ledger, t: t.execute(sql_update(ledger.accounts).values(balance=0)),
    "delete statement": lambda ledger, t: t.execute(sql_delete(ledger.accounts)),
    "insert statement": lambda ledger, t: t.execute(sql_insert(ledger.accounts), {"id": 9}),
    "in a subtransaction": lambda ledger, t: _in_subtransaction(ledger, t),
    "in a parallel child": lambda ledger, t: t.spawn(
        lambda s: s.update(ledger.accounts, 2, balance=0)
    ).result(),
    "in a transaction of its own": lambda ledger, t: ledger.db.run(
        lambda top: top.update(ledger.accounts, 2, balance=0)
    ),
    "in a block of its own": lambda ledger, t: _in_block(ledger),
    "in a rule that it triggers": lambda ledger, t: ledger.db.signal("INNER"),
    "enable": lambda ledger, t: ledger.db.rules.enable("inner"),
    "disable": lambda ledger, t: ledger.db.rules.disable("inner"),
    "change": lambda ledger, t: ledger.db.rules.change("inner", priority=3),
    "delete a rule": lambda ledger, t: ledger.db.rules.delete("inner"),
    "create a rule": lambda ledger, t: ledger.db.rules.create(
        lambda t, o: None, on=adb.event("X"), name="new"
    ),
    "load rules": lambda ledger, t: ledger.db.rules.load({}),
    "refresh": lambda ledger, t: ledger.db.rules.refresh(),
}


def _in_subtransaction(ledger: Ledger, t: Transaction) -> None:
    with t.subtransaction() as s:
        s.update(ledger.accounts, 2, balance=0)


def _in_block(ledger: Ledger) -> None:
    with ledger.db.transaction() as top:
        top.insert(ledger.log, {"text": "no"})


def _inner(ledger: Ledger) -> None:
    @ledger.db.rule(on=adb.event("INNER"))
    def inner(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "inner")


@pytest.mark.parametrize(
    ("way", "coupling"),
    [*((way, "immediate") for way in WRITES), ("insert", "deferred"), ("enable", "deferred")],
)
def test_condition_that_writes_is_refused_and_the_rule_fails(
    ledger: Ledger, way: str, coupling: str
) -> None:
    _inner(ledger)

    def writes(t: Transaction, o: Occurrence) -> bool:
        WRITES[way](ledger, t)
        return True

    @ledger.db.rule(on=adb.updated(ledger.accounts), when=writes, coupling=coupling)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "acted")

    def work(t: Transaction) -> None:
        t.update(ledger.accounts, 1, balance=11)

    with pytest.raises(RuleFailed) as failed:
        ledger.db.run(work)
    cause: BaseException | None = failed.value.__cause__
    while isinstance(cause, RuleFailed):
        cause = cause.__cause__
    assert isinstance(cause, ConditionWrites)
    assert cause.rule == "rule"
    assert "rule rule: its condition" in str(cause)
    assert "move that into the action" in str(cause)
    assert ledger.balances() == {1: 10, 2: 20}
    assert ledger.lines() == []
    assert [(r.name, r.enabled, r.priority) for r in ledger.db.rules] == [
        ("inner", True, None),
        ("rule", True, None),
    ]


def test_flush_of_a_watched_session_in_a_condition_is_refused(where: Place) -> None:
    class Base(DeclarativeBase):
        pass

    class Item(Base):
        __tablename__ = "items"
        id: Mapped[int] = mapped_column(primary_key=True)

    db = where.open()
    items = Base.metadata.tables["items"].to_metadata(db.metadata)
    db.create_all()
    db.watch(Session)

    def flushes(t: Transaction, o: Occurrence) -> bool:
        with db.connection() as connection, Session(connection) as session:
            session.add(Item(id=1))
            session.flush()
        return True

    db.rule(on=adb.event("GO"), when=flushes, name="rule", coupling="detached")(lambda t, o: None)
    db.signal("GO")
    db.wait_idle()
    (letter,) = db.dead_letters.list()
    assert letter.error == "ConditionWrites"
    assert "makes a flush of a watched session" in letter.reason
    with db.transaction() as t:
        assert t.query(select(items)) == []


def test_condition_that_swallows_the_refusal_has_written_nothing(ledger: Ledger) -> None:
    def tries(t: Transaction, o: Occurrence) -> bool:
        with pytest.raises(ConditionWrites):
            t.update(ledger.accounts, 2, balance=0)
        return True

    @ledger.db.rule(on=adb.updated(ledger.accounts), when=tries)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "acted")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=11)
    assert ledger.balances() == {1: 11, 2: 20}
    assert ledger.lines() == ["acted"]


def test_condition_may_read_lock_and_ignore_rules(ledger: Ledger) -> None:
    _inner(ledger)

    def reads(t: Transaction, o: Occurrence) -> bool:
        a = ledger.accounts
        with ledger.db.rules.ignoring("inner"):
            ledger.db.signal("INNER")
        locked = t.get(a, 2, for_update=True)
        found = t.query(select(a.c.id).where(a.c.id == 2).with_for_update())
        with t.subtransaction() as s:
            inside = s.get_many(a, [2])
        return locked is not None and found == [(2,)] and inside == {2: locked}

    @ledger.db.rule(on=adb.updated(ledger.accounts), when=reads)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "acted")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=11)
    assert ledger.lines() == ["acted"]


def test_action_writes_after_a_condition_that_was_refused_before(ledger: Ledger) -> None:
    """The refusal ends with the condition: for the rule, and for the one that triggered it."""

    @ledger.db.rule(on=adb.updated(ledger.accounts), when=lambda t, o: t.insert(ledger.log, {}))
    def refused(t: Transaction, o: Occurrence) -> None: ...

    ledger.db.rules.change("refused", on_abort="rule")

    @ledger.db.rule(on=adb.updated(ledger.accounts), when=lambda t, o: True, priority=-1)
    def acts(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "acts")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=11)
        ledger.write(t, "goes on")
    assert ledger.lines() == ["acts", "goes on"]
    (letter,) = ledger.letters()
    assert letter["error"] == "ConditionWrites"


def test_detached_rule_whose_condition_writes_becomes_a_letter(ledger: Ledger) -> None:
    @ledger.db.rule(
        on=adb.updated(ledger.accounts),
        when=lambda t, o: t.insert(ledger.log, {"text": "no"}),
        coupling="detached",
    )
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "acted")

    with ledger.db.transaction() as t:
        t.update(ledger.accounts, 1, balance=11)
    ledger.db.wait_idle()
    (letter,) = ledger.letters()
    assert (letter["source"], letter["error"]) == ("rule rule", "ConditionWrites")
    assert ledger.lines() == []
