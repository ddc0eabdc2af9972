"""Times of the parts of a run: none is negative, and their sum does not exceed the run's."""

from __future__ import annotations

import time

import pytest

from activedb.scheduling import Abort, SharedState, SharedTable, STransaction
from activedb.scheduling.tpg import TPG, Decision, by_tables
from tests.scheduling.tpg.ledger import s_transaction, write
from tests.scheduling.tpg.simulation import EVERY_DECISION, named

first, second = SharedTable("first", initial=0), SharedTable("second", initial=0)
PHASES = ("plan_s", "run_s", "explore_s", "abort_s", "wait_s")


def run(scheduler: TPG, transactions: list[STransaction]) -> float:
    """Run them; return the total time of all threads."""
    began_s = time.perf_counter()
    for transaction in transactions:
        scheduler.add(transaction)
    scheduler.run(SharedState([first, second]))
    return (time.perf_counter() - began_s) * scheduler.threads


def fails(value: int) -> int:
    raise Abort("as asked")


def batch() -> list[STransaction]:
    """Chains of writes, of which every third aborts."""
    return [
        s_transaction(n, write((first, second)[n % 2][n % 7], function=fails))
        if n % 3 == 0
        else s_transaction(n, write((first, second)[n % 2][n % 7]))
        for n in range(60)
    ]


@pytest.mark.parametrize(
    "scheduler",
    [
        *(pytest.param(TPG(3, decision), id=named(decision)) for decision in EVERY_DECISION),
        pytest.param(TPG(3), id="model"),
        pytest.param(TPG(3, Decision("serial")), id="serial"),
        pytest.param(TPG(3, {("first",): Decision()}, group_of=by_tables), id="groups"),
    ],
)
def test_times_are_no_more_than_the_threads_had(scheduler: TPG) -> None:
    for _ in range(2):
        had_s = run(scheduler, batch())
        times = scheduler.times
        assert all(getattr(times, phase) >= 0 for phase in PHASES), times
        assert times.run_s > 0
        assert times.plan_s > 0
        assert sum(getattr(times, phase) for phase in PHASES) == pytest.approx(times.total_s)
        assert times.total_s <= had_s


def test_chain_is_run_by_one_thread_and_the_other_waits() -> None:
    scheduler = TPG(2, Decision())

    def takes(value: int) -> int:
        time.sleep(0.01)  # to be found in the times
        return value + 1

    run(scheduler, [s_transaction(n, write(first[0], function=takes)) for n in range(5)])
    assert scheduler.times.run_s >= 5 * 0.01
    assert scheduler.times.wait_s > 0


@pytest.mark.parametrize("abort", ["eager", "lazy"])
def test_aborts_take_time_of_their_own(abort: str) -> None:
    scheduler = TPG(2, Decision(abort="eager" if abort == "eager" else "lazy"))
    run(scheduler, batch())
    assert scheduler.times.abort_s > 0


def test_times_are_of_the_last_run() -> None:
    scheduler = TPG(2, Decision())
    run(scheduler, batch())
    scheduler.run(SharedState([first, second]))
    assert scheduler.times.run_s == scheduler.times.wait_s == scheduler.times.abort_s == 0
