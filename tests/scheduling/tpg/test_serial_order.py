"""Every point of the decision space gives the serial order, on random workloads."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.scheduling import Abort, Scheduler, SharedState, SharedTable
from activedb.scheduling.tpg import TPG, Decision, by_tables
from tests.drawing import SEED
from tests.scheduling.comparison import SCALE, check
from tests.scheduling.tpg.ledger import s_transaction, write
from tests.scheduling.tpg.simulation import EVERY_DECISION, SimulatedTPG, named
from tests.scheduling.workloads import Parameters, parameters, workload

every_decision = pytest.mark.parametrize("decision", EVERY_DECISION, ids=named)
small = parameters(
    transactions=st.integers(1, 12), length=st.integers(1, 4), states=st.integers(1, 3)
)


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads are switched as often as can be."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def _same(scheduler: Scheduler) -> Scheduler:
    return scheduler


@every_decision
@settings(max_examples=15 * SCALE)
@given(small, st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_simulated_workers_any_interleaving_give_the_serial_order(
    decision: Decision, p: Parameters, workers: int, seed: int
) -> None:
    check(lambda: SimulatedTPG(decision, workers, seed), workload(p))


@every_decision
@pytest.mark.usefixtures("switching")
def test_threads_give_the_serial_order(decision: Decision) -> None:
    for seed in range(2 * SCALE):
        # Half of what they run aborts, on few keys: much is rolled back, and redone.
        p = Parameters(seed=SEED + seed, aborts=(0.1, 0.5)[seed % 2], keys=4, length=6)
        scheduler = TPG(2 + seed % 2, decision)
        check(partial(_same, scheduler), workload(p))


@settings(max_examples=60 * SCALE)
@given(parameters(), st.sampled_from(EVERY_DECISION), st.integers(1, 4))
def test_threads_on_all_kinds_of_workloads_give_the_serial_order(
    p: Parameters, decision: Decision, threads: int
) -> None:
    check(lambda: TPG(threads, decision), workload(p))


@pytest.mark.long
@pytest.mark.parametrize("explore", ["non-structured", "breadth-first", "depth-first"])
@pytest.mark.parametrize("unit", ["operation", "group"])
def test_long_chain_that_is_rolled_back_from_its_start_gives_the_serial_order(
    explore: Any, unit: Any
) -> None:
    table = SharedTable("table", initial=0)
    # Lazily: the first aborts when all 2,000 have run, and all have read what it wrote.
    first = s_transaction(0, write(table["chain"]), write(table["other"], function=_fails))
    chain = [s_transaction(n, write(table["chain"])) for n in range(1, 2000)]
    state = SharedState([table])
    scheduler = TPG(2, Decision(explore, unit, "lazy", speculative=True))
    for transaction in reversed([first, *chain]):
        scheduler.add(transaction)
    scheduler.run(state)
    assert state.of(table).newest() == {"chain": 1999}
    (report,) = scheduler.last
    assert (report.aborted, report.redone) == (1, 1999)


def _fails(value: Any) -> Any:
    raise Abort("it fails")


@settings(max_examples=20 * SCALE)
@given(parameters(), st.integers(1, 3), st.booleans())
def test_decided_by_the_model_gives_the_serial_order(
    p: Parameters, threads: int, grouped: bool
) -> None:
    check(lambda: TPG(threads, group_of=by_tables if grouped else None), workload(p))


@settings(max_examples=20 * SCALE)
@given(
    parameters(),
    st.dictionaries(st.integers(0, 2), st.sampled_from([*EVERY_DECISION, Decision("serial")])),
)
def test_groups_with_decisions_of_their_own_give_the_serial_order(
    p: Parameters, decisions: dict[object, Decision]
) -> None:
    # Groups by arrival have keys in common: they are merged.
    check(lambda: TPG(decision=decisions, group_of=lambda t: t.at.arrival % 3), workload(p))


@settings(max_examples=20 * SCALE)
@given(parameters(tables=3, ranges=0.0), st.lists(st.sampled_from(EVERY_DECISION), min_size=7))
def test_groups_by_tables_with_decisions_of_their_own_give_the_serial_order(
    p: Parameters, decisions: list[Decision]
) -> None:
    sets = [("table0",), ("table1",), ("table2",), ("table0", "table1"), ("table0", "table2")]
    by_set: dict[Hashable, Decision] = dict(zip(sets, decisions, strict=False))
    check(lambda: TPG(decision=by_set, group_of=by_tables), workload(p))
