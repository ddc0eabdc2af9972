"""Database object that has been closed: it refuses all uses and opens no connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import event, select

import activedb as adb
from activedb.errors import ActiveDBError
from tests.ledger import declare
from tests.ledger import event as occurrence

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ledger import Ledger

USES: dict[str, Callable[[Ledger], object]] = {
    "run": lambda ledger: ledger.db.run(lambda t: None),
    "transaction": lambda ledger: ledger.db.transaction().__enter__(),
    "signal": lambda ledger: ledger.db.signal("E"),
    "connection": lambda ledger: ledger.db.connection().__enter__(),
    "create_all": lambda ledger: ledger.db.create_all(),
    "recover": lambda ledger: ledger.db.recover(),
    "feed": lambda ledger: declare(ledger.db).feed([occurrence("A", 1)]),
    "rule": lambda ledger: ledger.db.rules.disable("rule"),
    "letters": lambda ledger: ledger.db.dead_letters.list(),
    "decisions": lambda ledger: ledger.db.decisions.list(),
    "pending": lambda ledger: ledger.db.admin.pending_firings(),
    "counts": lambda ledger: ledger.db.admin.row_counts(),
    "workflows": lambda ledger: ledger.db.workflows.recorded(),
}


@pytest.mark.parametrize("use", USES)
def test_closed_database_refuses(ledger: Ledger, use: str) -> None:
    db = ledger.db
    db.rule(on=adb.event("E"), name="rule")(lambda t, o: None)
    db.close()
    opened: list[object] = []
    event.listen(db._store.engine.pool, "connect", lambda *given: opened.append(given))
    with pytest.raises(ActiveDBError, match="database is closed; open it again"):
        USES[use](ledger)
    assert opened == []
    db.wait_idle()
    assert [rule.name for rule in db.rules.list()] == ["rule"]
    db.close()


def test_close_in_a_rule_that_it_would_wait_for_leaves_everything_open(ledger: Ledger) -> None:
    db = ledger.db

    @db.rule(on=adb.event("E"), coupling="detached", name="closing")
    def closing(t: adb.Transaction, o: adb.Occurrence) -> None:
        db.close()

    db.signal("E")
    db.wait_idle()
    (letter,) = db.dead_letters.list()
    assert letter.error == "TransactionStateError"
    db.run(lambda t: ledger.write(t, "it is open"))
    assert ledger.lines() == ["it is open"]
    db.close()
    with pytest.raises(ActiveDBError, match="database is closed; open it again"):
        db.run(lambda t: None)


CLOSED_IN_TURN = ["_monitoring", "_timekeeper", "_launcher", "_forest", "_store"]


@pytest.mark.parametrize("part", CLOSED_IN_TURN[:-1])
def test_close_that_fails_in_one_part_closes_the_others(
    ledger: Ledger, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = ledger.db
    closed: list[str] = []
    names = [name for name in CLOSED_IN_TURN if getattr(db, name) is not None]
    if part not in names:
        pytest.skip("it is off")

    def noted(name: str) -> Callable[[], None]:
        close = getattr(db, name).close

        def note() -> None:
            closed.append(name)
            close()
            if name == part:
                raise KeyboardInterrupt

        return note

    for name in names:
        monkeypatch.setattr(getattr(db, name), "close", noted(name))
    with pytest.raises(KeyboardInterrupt):
        db.close()
    assert closed == names
    db.close()
    assert closed == names


@pytest.mark.parametrize("use", ["nothing", "write", "query"])
def test_transaction_that_is_open_when_its_database_is_closed_says_so(
    ledger: Ledger, use: str
) -> None:
    with pytest.raises(ActiveDBError, match=r"closed|lost"), ledger.db.transaction() as t:
        ledger.write(t, "lost")
        ledger.db.close()
        if use == "write":
            ledger.write(t, "lost, too")
        if use == "query":
            t.query(select(ledger.facts))
