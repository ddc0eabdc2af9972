"""Storms of aborts: what is redone is bounded, and the rest is run in the serial order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import pytest

from activedb.scheduling import (
    Abort,
    Scheduler,
    SerialOrder,
    SharedState,
    SharedTable,
    STransaction,
)
from activedb.scheduling.tpg import TPG, Decision, by_tables
from activedb.scheduling.tpg._execution import RUNS_MAX
from tests.scheduling.tpg.ledger import s_transaction, write
from tests.scheduling.tpg.simulation import EVERY_DECISION, named

table = SharedTable("table", initial=0)
every_decision = pytest.mark.parametrize("decision", EVERY_DECISION, ids=named)


def storm(length: int, on_call: Callable[[], Any]) -> list[STransaction]:
    """A chain of s-transactions; nine in ten abort, and which of them depends on what they read."""

    def step(number: int) -> Callable[[int, int], int]:
        def function(left: int, right: int) -> int:
            on_call()
            if (left * 7 + right * 3 + number) % 10 < 9 and number % 10:
                raise Abort(f"{number} has read {left} and {right}")
            return (left + right + number) % 1009

        return function

    return [
        s_transaction(
            n,
            write(table[n % 2], table[n % 2], table[(n + 1) % 2], function=step(n)),
            write(table[2 + n % 3], table[2 + n % 3], table[n % 2], function=step(n + 1)),
        )
        for n in range(length)
    ]


def run(scheduler: Scheduler, transactions: list[STransaction]) -> SharedState:
    state = SharedState([table])
    for transaction in transactions:
        scheduler.add(transaction)
    scheduler.run(state)
    return state


def told(transactions: list[STransaction]) -> list[tuple[Any, ...]]:
    outcomes = [transaction.outcome for transaction in transactions]
    return [(o.results, o.reason) for o in outcomes if o is not None]


@pytest.mark.long
@every_decision
@pytest.mark.parametrize("length", [100, 200])
def test_storm_of_aborts_redoes_no_more_than_the_bound(decision: Decision, length: int) -> None:
    right_batch = storm(length, lambda: None)
    right = run(SerialOrder(), right_batch)
    for threads in (1, 2, 3):
        calls = count()
        scheduler = TPG(threads, decision)
        batch = storm(length, partial(next, calls))
        state = run(scheduler, batch)
        assert state.of(table).all() == right.of(table).all()
        assert told(batch) == told(right_batch)
        (report,) = scheduler.last
        operations = 2 * length
        assert report.redone <= report.runs <= RUNS_MAX * operations
        # Once more in the serial order, or for the reason of an abort.
        assert next(calls) <= report.runs + operations


@pytest.mark.parametrize("unit", ["operation", "group"])
@pytest.mark.parametrize("explore", ["non-structured", "breadth-first", "depth-first"])
def test_report_tells_what_was_given_up(explore: Any, unit: Any) -> None:
    scheduler = TPG(2, Decision(explore, unit, "lazy"))
    run(scheduler, storm(200, lambda: None))
    (report,) = scheduler.last
    # Each time that all was explored the lazy abort is of all that failed: it would go on and on.
    assert report.runs == RUNS_MAX * 400
    assert 0 < report.given_up < 200, "what had ended before was left as it was"


def test_nothing_is_given_up_where_little_is_redone() -> None:
    scheduler = TPG(2, Decision(abort="lazy"))
    run(scheduler, [s_transaction(n, write(table[n % 3])) for n in range(50)])
    (report,) = scheduler.last
    assert (report.runs, report.given_up) == (50, 0)


class Stop(BaseException):
    """No `Exception`."""


@every_decision
def test_error_while_the_rest_is_run_leaves_nothing(decision: Decision) -> None:
    calls = count(1)
    scheduler = TPG(1, decision)
    run(scheduler, storm(100, lambda: next(calls)))
    all_calls = next(calls) - 1

    def on_call() -> None:
        if next(again) == all_calls - 1:
            raise Stop

    # One worker does the same each time: this is in the rest, or where reasons are asked for.
    again = count(1)
    batch = storm(100, on_call)
    state = SharedState([table])
    for transaction in batch:
        scheduler.add(transaction)
    with pytest.raises(Stop):
        scheduler.run(state)
    assert state.of(table).all() == {}
    assert all(transaction.outcome is None for transaction in batch)


def test_one_part_is_given_up_and_the_other_is_not() -> None:
    other = SharedTable("other", initial=0)
    calm = [s_transaction(500 + n, write(other[n % 3])) for n in range(100)]
    state, right = SharedState([table, other]), run(SerialOrder(), storm(100, lambda: None))
    lazy = Decision("depth-first", "group", "lazy")
    scheduler = TPG(3, {("table",): lazy, ("other",): lazy}, group_of=by_tables)
    for transaction in [*calm, *storm(100, lambda: None)]:
        scheduler.add(transaction)
    scheduler.run(state)
    found = {report.labels: report.given_up > 0 for report in scheduler.last}
    assert found == {(("table",),): True, (("other",),): False}
    assert state.of(table).all() == right.of(table).all()
    assert state.of(other).newest() == {0: 34, 1: 33, 2: 33}
