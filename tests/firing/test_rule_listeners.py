"""Listeners to rules hear of events, of what these trigger, and of the outcome of each run."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import Column, Integer, Table

import activedb as adb
from activedb.errors import Deadlock, RuleFailed
from activedb.firing._rule_listeners import Ran, RuleListener
from activedb.firing._triggered import Triggered
from activedb.transactions import TransactionNode


class Heard(RuleListener):
    """Listener that records what it hears."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def raised(self, t: TransactionNode, o: adb.Occurrence) -> None:
        self.lines.append(f"raised {' '.join(o.key)}")

    def triggered(self, t: TransactionNode, items: Sequence[Triggered]) -> None:
        self.lines.append(f"triggered {', '.join(item.rule.name for item in items)}")

    def starts(self, s: TransactionNode, item: Triggered) -> None:
        self.lines.append(f"starts {item.rule.name} ({item.part})")

    def ran(
        self,
        s: TransactionNode,
        item: Triggered,
        outcome: Ran,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        assert seconds >= 0
        assert not s.state.is_final
        said = "" if error is None else f": {type(error).__name__}"
        self.lines.append(f"{item.rule.name} {outcome}{said}")

    def take(self) -> list[str]:
        taken, self.lines = self.lines, []
        return taken


@pytest.fixture
def heard(db: adb.Database) -> Heard:
    listener = Heard()
    db._triggering.listeners.add(listener)
    return listener


def test_each_outcome_is_told_once(db: adb.Database, heard: Heard) -> None:
    @db.rule(on=adb.event("GO"), when=lambda t, o: o.params["n"] > 0, name="go")
    def go(t: adb.Transaction, o: adb.Occurrence) -> None:
        if o.params["n"] == 2:
            raise ValueError("two")

    @db.rule(
        on=adb.event("LATER"), when=lambda t, o: True, condition_action="deferred", name="later"
    )
    def later(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    db.signal("GO", n=0)
    head = ["raised event GO", "triggered go", "starts go (rule)"]
    assert heard.take() == [*head, "go condition false"]
    db.signal("GO", n=1)
    assert heard.take() == [*head, "go acted"]
    with pytest.raises(RuleFailed):
        db.signal("GO", n=2)
    assert heard.take() == [*head, "go failed: ValueError"]
    db.signal("LATER")
    assert heard.take()[2:] == [
        "starts later (rule)",
        "later action later",
        "starts later (action)",
        "later acted",
    ]


def test_retried_rule_is_told_again(db: adb.Database, heard: Heard) -> None:
    tries = 0

    @db.rule(on=adb.event("GO"), coupling="detached")
    def go(t: adb.Transaction, o: adb.Occurrence) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Deadlock("once")

    db.signal("GO")
    db.wait_idle()
    told = [line for line in heard.take() if line.startswith("go ")]
    assert told == ["go failed: Deadlock", "go acted"]


def test_writes_that_nobody_listens_to_are_told_to_who_hears_all(
    db: adb.Database, heard: Heard
) -> None:
    rows = Table("rows", db.metadata, Column("id", Integer, primary_key=True))
    db.create_all()
    db.run(lambda t: t.insert(rows, {"id": 1}))
    assert heard.take() == []
    every = Heard()
    every.hears_all = True
    db._triggering.listeners.add(every)
    db.run(lambda t: t.insert(rows, {"id": 2}))
    with db.transaction() as t:
        t.delete(rows, 1)
    assert every.take() == heard.take() == ["raised insert rows", "raised delete rows"]
    db._triggering.listeners.remove(every)
    db.run(lambda t: t.insert(rows, {"id": 3}))
    assert every.take() == heard.take() == []


def test_what_a_listener_raises_fails_the_rule(db: adb.Database) -> None:
    class Strict(RuleListener):
        def starts(self, s: TransactionNode, item: Triggered) -> None:
            raise PermissionError("not now")

    @db.rule(on=adb.event("GO"))
    def go(t: adb.Transaction, o: adb.Occurrence) -> None: ...

    db._triggering.listeners.add(Strict())
    with pytest.raises(RuleFailed, match="not now"):
        db.signal("GO")
