"""The judge of the scenarios: it has to see what it is there for."""

from __future__ import annotations

import pytest

from tests.scenarios.judge import Event, serial_order
from tests.scenarios.operations import Operation

BEFORE = {("accounts", key): {"id": key, "balance": 10 * key} for key in (1, 2)}
COLUMNS = {"accounts": ["id", "balance"]}


def history(*lines: str) -> list[Event]:
    """Read lines as ``T1 begin`` and ``T1 get accounts 1 -> balance=10``."""
    events = []
    for line in lines:
        command, _, outcome = line.partition(" -> ")
        name, *words = command.split()
        operation = Operation.read(words) if len(words) > 1 else words[0]
        events.append(Event(name, operation, outcome))
    return events


def order(events: list[Event], **balances: int | None) -> tuple[str, ...] | None:
    """Judge a history that ends with these balances, ``a1=11`` for account 1."""
    after = dict(BEFORE)
    for name, balance in balances.items():
        key = int(name[1:])
        if balance is None:
            del after["accounts", key]
        else:
            after["accounts", key] = {"id": key, "balance": balance}
    return serial_order(events, BEFORE, after, COLUMNS)


BEGINS = ("T1 begin", "T2 begin")
COMMITS = ("T1 commit", "T2 commit")


def test_judge_serial_history_finds_its_order() -> None:
    steps = ("T2 update accounts 1 balance+=1 -> balance=12", *COMMITS)
    events = history(*BEGINS, "T1 update accounts 1 balance+=1 -> balance=11", *steps)
    assert order(events, a1=12) == ("T1", "T2")
    assert order(events, a1=11) is None


@pytest.mark.parametrize(
    ("steps", "balances"),
    [
        pytest.param(
            [f"{t} update accounts 1 balance+=1 -> balance=11" for t in ("T1", "T2")],
            {"a1": 11},
            id="lost update",
        ),
        pytest.param(
            [
                "T1 sum accounts balance -> 30",
                "T2 sum accounts balance -> 30",
                "T1 update accounts 1 balance=0 -> ok",
                "T2 update accounts 2 balance=0 -> ok",
            ],
            {"a1": 0, "a2": 0},
            id="write skew",
        ),
        pytest.param(
            [
                "T1 update accounts 1 balance=99 -> ok",
                "T2 get accounts 1 -> balance=99",
                "T1 update accounts 1 balance=11 -> ok",
            ],
            {"a1": 11},
            id="intermediate read",
        ),
        pytest.param(
            [
                "T1 count accounts -> 2",
                "T2 insert accounts 3 balance=30 -> ok",
                "T1 count accounts -> 3",
            ],
            {"a3": 30},
            id="phantom",
        ),
        pytest.param(
            [
                "T1.1 begin",
                "T1.1 update accounts 1 balance=99 -> ok",
                "T1.1 abort",
                "T1 get accounts 1 -> balance=99",
            ],
            {},
            id="leak of an aborted child",
        ),
        pytest.param(
            [
                "T1.1 begin",
                "T1.1 update accounts 1 balance=99 -> ok",
                "T1 get accounts 1 -> balance=99",
                "T1.1 commit",
            ],
            {"a1": 99},
            id="read of a child that has not committed",
        ),
        pytest.param(
            ["T1.1 begin", "T1.1 delete accounts 1 -> ok", "T1.1 commit"],
            {},
            id="lost tombstone",
        ),
    ],
)
def test_judge_anomaly_has_no_serial_order(steps: list[str], balances: dict[str, int]) -> None:
    assert order(history(*BEGINS, *steps, *COMMITS), **balances) is None


def test_judge_aborted_transactions_need_no_explanation() -> None:
    events = history(*BEGINS, "T2 get accounts 1 -> balance=99", "T2 abort", "T1 commit")
    assert order(events) == ("T1",)
