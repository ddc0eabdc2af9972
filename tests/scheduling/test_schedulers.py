"""Every scheduler, and every point of the decisions of the TPG, gives what the serial order gives.

The schedulers have tests of their own, of how they do it; here they have all kinds of workloads.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.errors import DefinitionError
from activedb.scheduling import (
    Access,
    Program,
    ProgramRun,
    Scheduler,
    SerialOrder,
    SharedTable,
    View,
)
from activedb.scheduling.locking import LWM, S2PL, SEI, PushBased
from activedb.scheduling.tpg import TPG, Decision, by_tables
from tests.scheduling.comparison import SCALE, check
from tests.scheduling.events import event
from tests.scheduling.workloads import Parameters, parameters, workload

Factory = Callable[[int], Scheduler]

DECISIONS = [
    Decision(explore, unit, abort, speculative)
    for explore in ("non-structured", "breadth-first", "depth-first")
    for unit in ("operation", "group")
    for abort in ("eager", "lazy")
    for speculative in (False, True)
]


def _tpg(decision: Decision) -> Factory:
    return lambda threads: TPG(threads=threads, decision=decision)


def _name(decision: Decision) -> str:
    speculative = "-speculative" if decision.speculative else ""
    return f"tpg-{decision.explore}-{decision.unit}-{decision.abort}{speculative}"


SEVERAL: dict[Hashable, Decision] = {
    0: Decision("breadth-first", "group", "lazy"),
    1: Decision("depth-first", speculative=True),
    2: Decision("serial"),
}

SCHEDULERS: dict[str, Factory] = {
    "serial": lambda threads: SerialOrder(),
    "sei": lambda threads: SEI(),
    "s2pl-row": lambda threads: S2PL("row", threads=threads),
    "s2pl-table": lambda threads: S2PL("table", threads=threads),
    "lwm-row": lambda threads: LWM("row", threads=threads),
    "lwm-table": lambda threads: LWM("table", threads=threads),
    "tpg": lambda threads: TPG(threads=threads),
    "tpg-serial": _tpg(Decision("serial")),
    "tpg-by-tables": lambda threads: TPG(threads, group_of=by_tables),
    "tpg-of-several": lambda threads: TPG(threads, SEVERAL, group_of=lambda t: t.at.us % 4),
    **{_name(decision): _tpg(decision) for decision in DECISIONS},
}

every_scheduler = pytest.mark.parametrize("name", SCHEDULERS)

# Each of what makes scheduling hard, in a workload that is full of it.
HARD = {
    "many states": Parameters(transactions=15, length=10, states=10, keys=12),
    "one key": Parameters(transactions=20, keys=1, tables=1, skew=0.0),
    "skewed and aborting": Parameters(transactions=20, skew=1.2, aborts=0.9),
    "backwards": Parameters(transactions=20, disorder=1.0, ties=0.8, pieces=1),
    "windows": Parameters(transactions=20, windows=0.8, keys=3),
    "computed keys": Parameters(transactions=20, computed=0.8, breaches=0.3, keys=4),
    "ranges": Parameters(transactions=20, ranges=0.5, removed=0.3, keys=8),
    "bodies": Parameters(transactions=20, bodies=1.0, breaches=0.2, computed=0.3),
    "acyclic": Parameters(transactions=20, cyclic=False, keys=12, aborts=0.5),
    "junk": Parameters(transactions=20, junk=0.6),
    "in many pieces": Parameters(transactions=20, pieces=12, junk=0.2),
    "duplicates": Parameters(transactions=20, duplicates=1.0, keys=2, length=6),
}


@pytest.mark.long
@every_scheduler
def test_hard_workloads_give_the_serial_order(name: str) -> None:
    for kind in HARD.values():
        check(lambda: SCHEDULERS[name](2), workload(kind))


@every_scheduler
@settings(max_examples=6 * SCALE)
@given(p=parameters(), threads=st.integers(1, 4))
def test_any_workload_gives_the_serial_order(name: str, p: Parameters, threads: int) -> None:
    check(lambda: SCHEDULERS[name](threads), workload(p))


# -- what is the same for all --------------------------------------------------------------------


def _ledger() -> tuple[Program, SharedTable]:
    accounts = SharedTable("accounts", key=int, initial=0)
    program = Program("ledger", [accounts])

    @program.on("ADD")
    def add(e: Mapping[str, Any], access: Access) -> None:
        access.write(accounts[e["to"]], operator.add, e["amount"])

    @program.transaction("DOUBLE", writes=lambda e: [accounts[e["to"]]])
    def double(t: View, e: Mapping[str, Any]) -> None:
        t.write(accounts[e["to"]], 2 * t.read(accounts[e["to"]]))

    return program, accounts


@pytest.fixture
def threads_left() -> Callable[[], set[threading.Thread]]:
    """Return a function for the threads that were not there before the test."""
    before = set(threading.enumerate())
    return lambda: set(threading.enumerate()) - before


@every_scheduler
def test_scheduler_leaves_no_threads(
    name: str, threads_left: Callable[[], set[threading.Thread]]
) -> None:
    check(lambda: SCHEDULERS[name](3), workload(Parameters(transactions=10)))
    assert threads_left() == set()


@every_scheduler
def test_scheduler_is_used_punctuation_by_punctuation(name: str) -> None:
    program, accounts = _ledger()
    run = ProgramRun(program, SCHEDULERS[name](2))
    for n in range(0, 40, 4):
        double = event("DOUBLE", n + 2, to=1)
        adds = [event("ADD", n + k, to=1, amount=k) for k in (3, 1)]
        results = run.feed([double, *adds], n + 4)
        assert [t.at.us for t in results.transactions] == [n + 1, n + 2, n + 3]
    total = 0
    for _ in range(10):
        total = 2 * (total + 1) + 3
    assert run.state.of(accounts).newest() == {1: total}
    assert len(run.state.of(accounts)) == 1
    assert run.feed([], 100).transactions == []


@every_scheduler
def test_scheduler_goes_on_from_a_state(name: str) -> None:
    program, accounts = _ledger()
    first = ProgramRun(program, SCHEDULERS[name](2))
    first.feed([event("ADD", 1, to=k, amount=k) for k in range(5)], 10)
    second = ProgramRun(program, SCHEDULERS[name](2), first.state)
    second.feed([event("DOUBLE", 11, to=k) for k in range(5)], 20)
    assert second.state.of(accounts).newest() == {k: 2 * k for k in range(5)}


@every_scheduler
def test_error_that_aborts_nothing_ends_the_run(
    name: str, threads_left: Callable[[], set[threading.Thread]]
) -> None:
    program, accounts = _ledger()

    class Stop(BaseException):
        """Exception that aborts no s-transaction."""

    @program.on("STOP")
    def stop(e: Mapping[str, Any], access: Access) -> None:
        def raising(value: int) -> int:
            raise Stop

        access.write(accounts[1], raising)

    scheduler = SCHEDULERS[name](2)
    adds = [event("ADD", n, to=n % 3, amount=1) for n in range(20)]
    with pytest.raises(Stop):
        ProgramRun(program, scheduler).feed([*adds, event("STOP", 5)], 100)
    assert threads_left() == set()
    again = ProgramRun(program, scheduler)  # the scheduler has let go of what it had
    assert len(again.feed(adds[:6], 100).transactions) == 6
    assert again.state.of(accounts).newest() == {0: 2, 1: 2, 2: 2}


BAD_OPTIONS: list[tuple[Callable[..., object], dict[str, Any], str]] = [
    *(
        (scheduler, options, "threads is a whole number from 1, not ")
        for options in [{"threads": bad} for bad in (0, -1, True, 1.5, "2", None)]
        for scheduler in (S2PL, LWM, PushBased, TPG)
    ),
    *((scheduler, {"granularity": "page"}, "granularity is ") for scheduler in (S2PL, LWM)),
    (TPG, {"decision": "serial"}, "a decision is a Decision, not "),
    (TPG, {"decision": {}}, "decisions per group need group_of"),
    (TPG, {"decision": {"a": 1}, "group_of": len}, "a decision is a Decision, not "),
    (TPG, {"group_of": "class"}, "group_of is a function, not "),
    (TPG, {"thresholds": {}}, "thresholds are Thresholds, not "),
    *((Decision, {word: "none"}, f"a decision's {word} is ") for word in ("explore", "unit")),
    *((Decision, {word: "none"}, f"a decision's {word} is ") for word in ("abort", "speculative")),
]


@pytest.mark.parametrize(("scheduler", "options", "message"), BAD_OPTIONS)
def test_bad_option_of_any_scheduler_is_refused_in_one_line(
    scheduler: Callable[..., object], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        scheduler(**options)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)
