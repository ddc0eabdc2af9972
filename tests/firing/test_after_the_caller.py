"""Rules that start when a caller's transaction has ended: `wait_idle` waits for them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, insert

import activedb as adb
from activedb.errors import FiringsLeft
from activedb.transactions._joined import _CallerTransaction
from tests.databases import PATIENCE_S, in_thread, set_when

if TYPE_CHECKING:
    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger

TIMES = 20


@pytest.fixture
def unsettled(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event; until it is set, the outcome of no caller's commit becomes known."""
    told = threading.Event()
    await_outcome = _CallerTransaction.await_outcome

    def later(part: _CallerTransaction, number: str) -> None:
        assert told.wait(PATIENCE_S)
        await_outcome(part, number)

    monkeypatch.setattr(_CallerTransaction, "await_outcome", later)
    return told


def listen(ledger: Ledger, coupling: str) -> None:
    """Write down in a transaction of its own that E was raised."""

    @ledger.db.rule(on=adb.event("E"), coupling=coupling)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"rule {o.params['n']}")


def raise_and_commit(ledger: Ledger, connection: Any, n: int) -> None:
    """Raise E in a block over `connection`, and commit."""
    with ledger.db.transaction(connection=connection):
        ledger.db.signal("E", n=n)
    connection.commit()


@pytest.mark.parametrize("coupling", ["sequential", "causal"])
def test_rules_that_follow_a_callers_commit_are_waited_for(ledger: Ledger, coupling: str) -> None:
    listen(ledger, coupling)
    for n in range(TIMES):
        with ledger.db.connection() as connection:
            raise_and_commit(ledger, connection, n)
        ledger.db.wait_idle()
        assert ledger.lines()[n:] == [f"rule {n}"]


@pytest.mark.parametrize("undone", ["the savepoint", "the block"])
def test_exclusive_rules_of_what_a_committing_caller_has_undone_are_waited_for(
    ledger: Ledger, undone: str
) -> None:
    listen(ledger, "exclusive")
    for n in range(TIMES):
        with ledger.db.connection() as connection:
            with ledger.db.transaction(connection=connection):
                pass
            savepoint = connection.begin_nested()
            with ledger.db.transaction(connection=connection) as t:
                ledger.db.signal("E", n=n)
                if undone == "the block":
                    t.abort()
            if undone == "the savepoint":
                savepoint.rollback()
            connection.commit()
        ledger.db.wait_idle()
        assert ledger.lines()[n:] == [f"rule {n}"]


def test_callers_commit_whose_outcome_is_unknown_is_left(
    ledger: Ledger, unsettled: threading.Event
) -> None:
    listen(ledger, "sequential")
    with ledger.db.connection() as connection:
        raise_and_commit(ledger, connection, 1)
    with pytest.raises(FiringsLeft, match="finding out whether it has committed") as caught:
        ledger.db.wait_idle(timeout=0.01)
    (name,) = caught.value.left
    assert name.startswith("caller ")
    unsettled.set()
    ledger.db.wait_idle()
    assert ledger.lines() == ["rule 1"]


def test_rules_that_follow_a_callers_commit_run_before_the_database_closes(
    ledger: Ledger, unsettled: threading.Event
) -> None:
    db, ran = ledger.db, list[int]()
    db.rule(on=adb.event("E"), coupling="sequential", name="rule")(
        lambda t, o: ran.append(o.params["n"])
    )
    with db.connection() as connection:
        raise_and_commit(ledger, connection, 1)
    idle: Any = db._launcher._idle
    closing = db._forest.joined.closing
    telling = in_thread(set_when, lambda: idle._waiters or closing.is_set(), unsettled)
    db.close()
    telling.result(PATIENCE_S)
    assert ran == [1]


@pytest.mark.parametrize("beside", ["a transaction", "SQL of the caller"])
def test_callers_commit_is_waited_for_beside_open_work(
    ledger: Ledger, unsettled: threading.Event, beside: str
) -> None:
    with ledger.db.connection() as connection:
        with ledger.db.transaction(connection=connection):
            pass
        connection.commit()
    idle: Any = ledger.db._launcher._idle
    telling = in_thread(set_when, lambda: idle._waiters, unsettled)
    if beside == "a transaction":
        with ledger.db.transaction():
            ledger.db.wait_idle()
    else:
        with ledger.db.connection() as connection:
            connection.execute(insert(ledger.log), {"text": "plain"})
            ledger.db.wait_idle()
    telling.result(PATIENCE_S)


@pytest.mark.parametrize("moment", ["before the commit", "in the commit"])
def test_caller_that_has_not_ended_is_not_waited_for(ledger: Ledger, moment: str) -> None:
    listen(ledger, "sequential")

    def waits(*_: object) -> None:
        in_thread(ledger.db.wait_idle).result(PATIENCE_S)

    with ledger.db.connection() as connection:
        with ledger.db.transaction(connection=connection):
            ledger.db.signal("E", n=1)
        if moment == "before the commit":
            waits()
        else:
            event.listen(connection, "commit", waits)  # behind activedb's own listener
        connection.commit()
    ledger.db.wait_idle()
    assert ledger.lines() == ["rule 1"]
