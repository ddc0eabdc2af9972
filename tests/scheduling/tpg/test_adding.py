"""S-transactions are run at once or refused when added: invalid labels and keys."""

from __future__ import annotations

from typing import Any

import pytest

from activedb.errors import DefinitionError
from activedb.scheduling import (
    Program,
    ProgramRun,
    SerialOrder,
    SharedState,
    SharedTable,
    STransaction,
)
from activedb.scheduling.tpg import TPG, Decision
from tests.scheduling.events import event
from tests.scheduling.tpg.ledger import s_transaction, write

table = SharedTable("table", initial=0)


def program() -> Program:
    made = Program("counts", [table])

    @made.on("E")
    def access(e: Any, a: Any) -> None:
        a.write(table[e["k"]], lambda value: value + 1)

    return made


class NoLabel(BaseException):
    """No `Exception`."""


@pytest.mark.parametrize("error", [ValueError("no label"), NoLabel("no label")])
def test_group_of_that_raises_leaves_nothing_for_the_next_feed(error: BaseException) -> None:
    def group_of(transaction: STransaction) -> Any:
        if transaction.params["k"] == 2:
            raise error
        return transaction.params["k"] % 2

    scheduler = TPG(2, group_of=group_of)
    run = ProgramRun(program(), scheduler)
    with pytest.raises(type(error), match="no label") as raised:
        run.feed([event("E", n + 1, k=n) for n in range(5)], 10)
    if isinstance(error, Exception):
        assert raised.value.__notes__ == ["raised by group_of for <STransaction E at 3>"]
    assert run.state.of(table).all() == {}
    results = run.feed([event("E", 20, k=9)], 30)
    assert [transaction.at.us for transaction in results.transactions] == [20]
    assert run.state.of(table).newest() == {9: 1}


def test_label_that_is_not_hashable_leaves_nothing_for_the_next_run() -> None:
    labels: list[Any] = ["a", [], "a"]
    scheduler = TPG(2, group_of=lambda transaction: labels[transaction.at.us])
    state = SharedState([table])
    for n in range(3):
        scheduler.add(s_transaction(n, write(table[n])))
    with pytest.raises(DefinitionError, match="a label has to be hashable"):
        scheduler.run(state)
    assert state.of(table).all() == {}
    scheduler.run(state)
    assert scheduler.last == ()
    assert state.of(table).all() == {}


class Incomparable:
    """Neither hashed nor compared."""

    def __hash__(self) -> int:
        raise ValueError("no hash")

    def __eq__(self, other: object) -> bool:
        raise ValueError("not to be compared")


@pytest.mark.parametrize("unit", ["operation", "group"])
def test_key_that_raises_when_it_is_compared_aborts_its_s_transaction_alone(unit: Any) -> None:
    def batch() -> list[STransaction]:
        bad = table[Incomparable()]
        return [
            s_transaction(1, write(table["a"])),
            s_transaction(2, write(bad, table[Incomparable()]), write(table["b"])),
            s_transaction(3, write(table["b"], bad)),
            s_transaction(4, write(table["a"])),
        ]

    told = []
    for scheduler in (SerialOrder(), TPG(2, Decision(unit=unit))):
        state, transactions = SharedState([table]), batch()
        for transaction in transactions:
            scheduler.add(transaction)
        scheduler.run(state)
        told.append([t.outcome.reason for t in transactions if t.outcome is not None])
        assert state.of(table).newest() == {"a": 2}
    assert told[0] == told[1]
    assert [reason is None for reason in told[0]] == [True, False, False, True]
