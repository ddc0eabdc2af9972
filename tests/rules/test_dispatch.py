"""Costs of an event are counted, not timed: calls of functions, rules asked."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.transactions import TransactionNode
from tests.databases import PATIENCE_S, in_thread
from tests.effort import calls_of
from tests.ledger import Ledger, open_ledger
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Database, Occurrence, Transaction


@pytest.fixture
def db() -> Iterator[Database]:
    """Yield a database in memory, as dispatch asks no store.

    The verifying locks, which are slow for 10,000 rows, are left out.
    """
    with adb.connect("memory://") as db:
        yield db


def define(db: Database, count: int) -> list[str]:
    """Define rules, each on its own event with a condition; return the list of those asked."""
    asked: list[str] = []

    def action(t: Transaction, o: Occurrence) -> None:
        pass

    with db.transaction():
        for number in range(len(db.rules), count):

            def predicate(o: Occurrence) -> bool:
                asked.append(o.name)
                return True

            db.rule(on=adb.event(f"E{number}", where=predicate), name=f"r{number}")(action)
    return asked


@pytest.mark.long
def test_event_costs_its_own_rules_only_among_ten_thousand(db: Database) -> None:
    costs: dict[int, list[int]] = {}
    for count in (10, 10_000):
        asked = define(db, count)
        with db.transaction() as t:
            catalog = db._catalog
            ours, nobodys = adb.occurrence("E3", timestamp=1), adb.occurrence("X", timestamp=1)
            db._triggering.occurred(node_of(t), ours)  # whatever happens once
            asked.clear()
            costs[count] = [
                calls_of(partial(db._triggering.feeding.feed, ours, node_of(t))),
                calls_of(partial(db._triggering.feeding.feed, nobodys, node_of(t))),
                calls_of(partial(db._triggering.occurred, node_of(t), nobodys)),
                calls_of(partial(catalog.listening_to, ("event", "E3"), node_of(t))),
            ]
            assert len(catalog.listening_to(("event", "E3"), node_of(t))) == 1
    assert len(db.rules) == 10_000
    assert costs[10] == costs[10_000]


def test_event_costs_the_rules_of_its_constants_only_among_a_thousand(db: Database) -> None:
    def action(t: Transaction, o: Occurrence) -> None:
        pass

    costs: dict[int, list[int]] = {}
    for count in (10, 1_000):
        with db.transaction():
            for number in range(len(db.rules), count):
                tick = adb.event("TICK", where=adb.attr("symbol") == f"S{number}")
                db.rule(on=tick, name=f"r{number}")(action)
        with db.transaction() as t:
            ours, nobodys = (
                adb.occurrence("TICK", timestamp=1, symbol=symbol) for symbol in ("S3", "none")
            )
            db._triggering.occurred(node_of(t), ours)
            costs[count] = [
                calls_of(partial(db._triggering.feeding.feed, o, node_of(t)))
                for o in (ours, nobodys)
            ]
    assert costs[10] == costs[1_000]


def test_rules_of_other_events_are_not_asked(db: Database) -> None:
    asked = define(db, 100)
    for _ in range(3):
        db.signal("E7")
    assert asked == ["E7"] * 3


def test_transaction_without_changes_pays_no_walk_for_the_drafts_of_another(db: Database) -> None:
    define(db, 5)
    o = adb.occurrence("E3", timestamp=1)
    other = db.transaction()
    with db.transaction() as t:
        plain = calls_of(lambda: db._triggering.feeding.feed(o, node_of(t)))
    with other:
        db.rules.disable("r4")
        beside: list[int] = []

        def in_another() -> None:
            with db.transaction() as t:
                db._triggering.feeding.feed(o, node_of(t))
                for _ in range(30):  # a deep line costs no more
                    t = t.subtransaction().__enter__()
                beside.append(calls_of(lambda: db._triggering.feeding.feed(o, node_of(t))))
                while t.parent is not None:
                    t.__exit__(None, None, None)
                    t = t.parent

        in_thread(in_another).result(PATIENCE_S)
    assert beside[0] <= plain + 8


def test_row_changes_that_nobody_listens_to_make_no_occurrence(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger: Ledger = open_ledger(db, {1: 1})
    define(db, 100)
    made: list[Any] = []
    occurred = db._triggering.occurred

    def noted(t: TransactionNode, o: Any, **how: Any) -> None:
        made.append(o)
        occurred(t, o, **how)

    monkeypatch.setattr(db._triggering, "occurred", noted)
    with db.transaction() as t:
        t.update(ledger.accounts, 1, balance=2)
        assert made == []
        db.rules.create(lambda t, o: None, on=adb.updated(ledger.accounts), name="now")
        t.update(ledger.accounts, 1, balance=3)
    assert len(made) == 1
