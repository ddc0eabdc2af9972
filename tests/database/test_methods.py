"""Function calls and returns as events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from activedb.errors import DefinitionError, RuleFailed
from tests.nodes import node_of

if TYPE_CHECKING:
    from tests.ledger import Ledger


def test_function_called_and_returned_raise_events_with_arguments_and_result(
    ledger: Ledger,
) -> None:
    db = ledger.db
    heard: list[tuple[str, dict[str, Any]]] = []

    @db.emits
    def add(a: int, b: int = 2, *rest: int, **named: int) -> int:
        heard.append(("runs", {}))
        return a + b

    for on in (adb.called(add), adb.returned(add)):
        kind = next(iter(on.keys))[0]
        db.rule(on=on, name=kind)(lambda t, o, kind=kind: heard.append((kind, dict(o.params))))

    assert add(1) == 3
    arguments = {"a": 1, "b": 2, "rest": (), "named": {}}
    assert heard == [
        ("call", arguments),
        ("runs", {}),
        ("return", {**arguments, "result": 3}),
    ]


def test_method_called_in_a_transaction_runs_its_rules_there(ledger: Ledger) -> None:
    db, accounts = ledger.db, ledger.accounts
    ran_in: list[int] = []

    class Teller:
        @db.emits
        def withdraw(self, account: int, amount: int) -> None:
            """Withdraw; the method itself need not touch the store."""

        @classmethod
        @db.emits
        def opened(cls) -> str:
            return cls.__name__

    @db.rule(on=adb.returned(Teller.withdraw))
    def book(t: adb.Transaction, o: adb.Occurrence) -> None:
        assert set(o.params) == {"account", "amount", "result"}
        ran_in.append(node_of(t).top.id)
        row = t.get(accounts, o.params["account"], for_update=True)
        assert row is not None
        t.update(accounts, row["id"], balance=row["balance"] - o.params["amount"])

    @db.rule(on=adb.called(Teller.opened))
    def opening(t: adb.Transaction, o: adb.Occurrence) -> None:
        assert dict(o.params) == {}
        ran_in.append(0)

    with db.transaction() as t:
        Teller().withdraw(1, amount=4)
        assert ran_in == [t.id]
    assert Teller.opened() == "Teller"
    assert ran_in[1:] == [0]
    assert ledger.balances() == {1: 6, 2: 20}


def test_rule_on_a_call_that_fails_keeps_the_function_from_being_called(ledger: Ledger) -> None:
    db = ledger.db
    calls: list[int] = []

    @db.emits
    def dangerous(x: int) -> None:
        calls.append(x)

    @db.rule(on=adb.called(dangerous, where=lambda o: o.params["x"] < 0))
    def refuse(t: adb.Transaction, o: adb.Occurrence) -> None:
        raise ValueError("negative")

    dangerous(1)
    with pytest.raises(RuleFailed, match="negative"):
        dangerous(-1)
    assert calls == [1]


def test_function_that_raises_does_not_return(ledger: Ledger) -> None:
    db = ledger.db
    heard: list[str] = []

    @db.emits
    def broken() -> None:
        raise KeyError("lost")

    db.rule(on=adb.called(broken), name="call")(lambda t, o: heard.append("call"))
    db.rule(on=adb.returned(broken), name="return")(lambda t, o: heard.append("return"))
    with pytest.raises(KeyError, match="lost"):
        broken()
    with pytest.raises(TypeError, match="argument"):
        broken(1)  # type: ignore[call-arg]
    assert heard == ["call"]


async def _later() -> None: ...


def _many() -> Any:
    yield 1


@pytest.mark.parametrize("function", [len, _later, _many, 3, property(lambda self: None)])
def test_emits_refuses_what_is_no_plain_function(ledger: Ledger, function: Any) -> None:
    with pytest.raises(DefinitionError, match="emits"):
        ledger.db.emits(function)
