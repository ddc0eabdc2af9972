"""S2PL and LWM, and SEI, against the serial order: random workloads, every small interleaving."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.scheduling import (
    REMOVED,
    Abort,
    Access,
    At,
    Outcome,
    Scheduler,
    SerialOrder,
    SharedState,
    SharedTable,
    STransaction,
)
from activedb.scheduling.locking import LWM, S2PL, SEI, Gate, PushBased, TurnGate
from tests.scheduling.comparison import SCALE, check, differences
from tests.scheduling.locking.interleavings import Choose, interleavings
from tests.scheduling.workloads import Parameters, parameters, workload

KINDS = ["s2pl table", "s2pl row", "lwm table", "lwm row"]


def scheduler(kind: str, threads: int, gate: Gate | None = None) -> Scheduler:
    protocol, granularity = kind.split()
    return (S2PL if protocol == "s2pl" else LWM)(granularity, threads=threads, gate=gate)


# -- random workloads ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15 * SCALE)
@given(p=parameters(), threads=st.integers(1, 4))
def test_any_workload_on_free_threads_gives_the_serial_order(
    kind: str, p: Parameters, threads: int
) -> None:
    check(lambda: scheduler(kind, threads), workload(p))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15 * SCALE)
@given(
    p=parameters(transactions=st.integers(1, 25)),
    threads=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_workload_in_an_interleaving_by_seed_gives_the_serial_order(
    kind: str, p: Parameters, threads: int, seed: int
) -> None:
    gate = TurnGate(random.Random(seed).choice)
    check(lambda: scheduler(kind, threads, gate), workload(p))


@settings(max_examples=15 * SCALE)
@given(parameters())
def test_any_workload_single_event_initiated_gives_the_serial_order(p: Parameters) -> None:
    check(SEI, workload(p))


def test_workloads_without_a_scheduler_show_that_these_tests_see_anomalies() -> None:
    found = [
        bool(differences(PushBased(random.Random(seed).choice), workload(Parameters(seed=seed))))
        for seed in range(10)
    ]
    assert sum(found) >= 9


# -- every interleaving of small ones ------------------------------------------------------------

a = SharedTable("a", key=int, initial=0)
b = SharedTable("b", key=int, initial=0)
Program = Callable[[Access], None]


def transfer(amount: int, source: int, target: int) -> Program:
    def access(t: Access) -> None:
        t.write(a[source], _taken, amount)
        t.write(
            a[target],
            lambda to, of: _taken(of, amount) and to + amount,
            reads=(a[target], a[source]),
        )

    return access


def _taken(balance: int, amount: int) -> int:
    if balance < amount:
        raise Abort("too little")
    return balance - amount


def deposit(amount: int, target: int) -> Program:
    return lambda t: t.write(a[target], operator.add, amount)


def copied(t: Access) -> None:
    t.write(b[0], sum, reads=(a.range(),))


def followed(t: Access) -> None:
    t.write(b.computed(lambda key: key % 3, reads=(a[1],)), operator.add, 1, reads=(a[2],))


def removed(t: Access) -> None:
    t.write(a[1], lambda value: REMOVED)


def summed(t: Access) -> None:
    t.read(a.range(), b.range(), function=lambda *found: [*map(dict, found)])


PROGRAMS: dict[str, list[Program]] = {
    "a row writer between two readers of the table": [summed, deposit(3, 1), summed],
    "a reader of the table between two row writers": [deposit(3, 1), summed, deposit(4, 2)],
    "a writer of the table between two row writers": [deposit(3, 1), followed, deposit(4, 1)],
    "a sum between two deposits": [deposit(3, 1), copied, deposit(4, 2)],
    "a computed key behind what it reads": [deposit(2, 1), deposit(5, 2), followed],
    "a row that is removed and written": [deposit(2, 1), removed, deposit(5, 1)],
}
LONGER: dict[str, list[Program]] = {
    "a transfer that the deposit before allows": [deposit(9, 1), transfer(5, 1, 2)],
    "a transfer that aborts, and a deposit": [transfer(5, 1, 2), deposit(9, 1)],
    "two transfers that cross": [transfer(0, 1, 2), transfer(0, 2, 1)],
}


def ran(made: Scheduler, programs: list[Program]) -> list[Any]:
    state = SharedState([a, b])
    transactions = []
    for number, program in enumerate(programs, 1):
        access = Access()
        program(access)
        transactions.append(STransaction(At(number, "", number), "X", {}, tuple(access.operations)))
    for transaction in reversed(transactions):
        made.add(transaction)
    made.run(state)
    outcomes: list[Outcome | None] = [transaction.outcome for transaction in transactions]
    return [
        [(o.results, o.reason) for o in outcomes if o is not None],
        [versions.all() for versions in state],
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*PROGRAMS, *LONGER])
def test_every_interleaving_of_a_few_gives_the_serial_order(name: str, kind: str) -> None:
    programs = {**PROGRAMS, **LONGER}[name]
    expected = ran(SerialOrder(), programs)

    def run(choose: Choose) -> list[Any]:
        return ran(scheduler(kind, 3, TurnGate(choose)), programs)

    found = list(interleavings(run))
    assert all(each == expected for each in found)


def test_readers_of_a_table_and_writers_of_other_tables_go_together() -> None:
    """The number of interleavings shows how much goes on at once."""

    def count(kind: str, programs: list[Program]) -> int:
        def run(choose: Choose) -> None:
            ran(scheduler(kind, 3, TurnGate(choose)), programs)

        return sum(1 for _ in interleavings(run))

    two_rows = [deposit(3, 1), deposit(4, 2)]
    assert count("s2pl row", two_rows) == count("lwm row", two_rows) == 6
    assert count("s2pl table", two_rows) == 1
    older_reader = [summed, deposit(3, 1)]
    assert count("s2pl row", older_reader) == count("s2pl table", older_reader) == 1
    assert count("lwm row", older_reader) == count("lwm table", older_reader) == 6
