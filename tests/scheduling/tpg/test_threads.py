"""Threads: they meet, they end, and what one of them raises is not lost."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest

from activedb.scheduling import Abort, SharedState, SharedTable, STransaction
from activedb.scheduling.tpg import TPG, Decision
from activedb.scheduling.tpg._groups import OperationGroup
from activedb.scheduling.tpg._vertex import GraphTransaction, Vertex
from tests.patience import PATIENCE_S
from tests.scheduling.tpg.ledger import s_transaction, write
from tests.scheduling.tpg.simulation import EVERY_DECISION, named

table = SharedTable("table", initial=0)
every_decision = pytest.mark.parametrize("decision", EVERY_DECISION, ids=named)


class Stop(BaseException):
    """No `Exception`."""


def run(scheduler: TPG, *transactions: STransaction) -> SharedState:
    state = SharedState([table])
    for transaction in transactions:
        scheduler.add(transaction)
    scheduler.run(state)
    return state


@every_decision
def test_independent_operations_run_at_the_same_time(decision: Decision) -> None:
    meeting = threading.Barrier(3)

    def meet(value: int) -> int:
        meeting.wait(timeout=PATIENCE_S)
        return value + 1

    three = [s_transaction(n, write(table[n], function=meet)) for n in range(3)]
    state = run(TPG(3, decision), *three)
    assert state.of(table).newest() == {0: 1, 1: 1, 2: 1}


@every_decision
def test_error_that_is_no_exception_ends_the_run_with_it(decision: Decision) -> None:
    before = set(threading.enumerate())
    started = threading.Event()

    def stop(value: int) -> int:
        assert started.wait(timeout=PATIENCE_S)
        raise Stop("enough")

    def start(value: int) -> int:
        started.set()
        return value + 1

    batch = [
        s_transaction(1, write(table[1], function=start)),
        s_transaction(2, write(table[2], function=stop)),
        s_transaction(3, write(table[3], table[1], table[2])),
    ]
    scheduler = TPG(2, decision)
    state = SharedState([table])
    for transaction in batch:
        scheduler.add(transaction)
    with pytest.raises(Stop, match="enough"):
        scheduler.run(state)
    assert state.of(table).all() == {}, "what was written is taken back"
    assert all(transaction.outcome is None for transaction in batch)
    assert set(threading.enumerate()) <= before

    again = s_transaction(4, write(table[1]))
    scheduler.add(again)
    scheduler.run(state)
    assert state.of(table).newest() == {1: 1}


@pytest.mark.parametrize("place", ["calling", "other"])
def test_error_of_any_thread_is_raised_by_the_calling_one(place: str) -> None:
    caller = threading.get_ident()
    meeting = threading.Barrier(2)

    def stop_in_place(value: int) -> int:
        meeting.wait(timeout=PATIENCE_S)
        if (threading.get_ident() == caller) == (place == "calling"):
            raise Stop
        return value + 1

    both = [s_transaction(n, write(table[n], function=stop_in_place)) for n in range(2)]
    with pytest.raises(Stop):
        run(TPG(2, Decision()), *both)


@pytest.mark.parametrize("decision", [None, Decision("serial")])
def test_error_in_what_is_run_alone_leaves_nothing(decision: Decision | None) -> None:
    def stop(value: int) -> int:
        raise Stop

    state = SharedState([table])
    scheduler = TPG(2, decision)
    written = [s_transaction(n, write(table[n])) for n in range(50)]
    for transaction in [*written, s_transaction(99, write(table[1], function=stop))]:
        scheduler.add(transaction)
    with pytest.raises(Stop):
        scheduler.run(state)
    assert state.of(table).all() == {}
    assert all(transaction.outcome is None for transaction in written)
    scheduler.run(state)
    assert scheduler.last == (), "what was added is forgotten"


def test_table_of_another_state_ends_the_run_with_the_error() -> None:
    other = SharedTable("other")
    foreign = s_transaction(1, write(other[1], table[1]))
    with pytest.raises(Exception, match="is not in this state"):
        run(TPG(2, Decision()), foreign)


def test_threads_have_ended_after_a_run() -> None:
    before = set(threading.enumerate())
    run(TPG(4, Decision()), *(s_transaction(n, write(table[n])) for n in range(20)))
    assert set(threading.enumerate()) <= before


@pytest.mark.long
@pytest.mark.parametrize("unit", ["operation", "group"])
@pytest.mark.parametrize("explore", ["non-structured", "breadth-first", "depth-first"])
def test_tpg_is_gone_after_a_run_without_the_garbage_collector(explore: Any, unit: Any) -> None:
    def found() -> list[object]:
        # By type(): proxies of other libraries whose object is gone have no class.
        kinds = (Vertex, GraphTransaction, OperationGroup)
        return [each for each in gc.get_objects() if issubclass(type(each), kinds)]

    gc.collect()
    gc.disable()
    before = {id(each) for each in found()}
    try:
        anything = SharedTable("anything", initial=0)
        for _ in range(2):
            scheduler = TPG(2, Decision(explore, unit))
            count = write(
                anything["count"], anything.range(), function=lambda found: len(found) + 1
            )
            batch = [s_transaction(n, write(anything[f"key{n % 3}"]), count) for n in range(30)]
            state = SharedState([anything])
            for transaction in batch:
                scheduler.add(transaction)
            scheduler.run(state)
        left = [each for each in found() if id(each) not in before]
    finally:
        gc.enable()
    assert left == []


@pytest.mark.parametrize("explore", ["non-structured", "breadth-first", "depth-first"])
@pytest.mark.parametrize("abort", ["eager", "lazy"])
def test_dependent_that_read_too_much_is_redone_after_a_late_failure(
    explore: Any, abort: Any
) -> None:
    seen: list[int] = []
    dependent_has_read = threading.Event()

    def late(value: int) -> int:
        # Under breadth-first exploration the dependent is of the next stratum: it has not read.
        if explore != "breadth-first":
            assert dependent_has_read.wait(timeout=PATIENCE_S)
        raise Abort("too late")

    def dependent(value: int, source: int) -> int:
        seen.append(source)
        dependent_has_read.set()
        return source + 100

    first = s_transaction(1, write(table[1], function=late), write(table[2]))
    second = s_transaction(2, write(table[3], table[3], table[2], function=dependent))
    state = run(TPG(2, Decision(explore, abort=abort)), first, second)
    assert state.of(table).newest() == {3: 100}
    assert seen[-1] == 0
    if explore != "breadth-first":
        assert seen == [1, 0]
    assert first.outcome is not None
    assert first.outcome.reason == "too late"


@every_decision
def test_recorded_key_is_used_again_when_an_operation_is_redone(decision: Decision) -> None:
    keys = iter(range(100))
    first = s_transaction(1, write(table["a"]), write(table["b"], function=_fails))
    # Its key depends on nothing that is stored, and its value on what is rolled back.
    random_key = table.computed(lambda: next(keys))
    second = s_transaction(2, write(random_key, table["a"]))
    state = run(TPG(2, decision), first, second)
    assert state.of(table).newest() == {0: 1}


@every_decision
def test_key_of_what_was_redone_is_computed_anew(decision: Decision) -> None:
    first = s_transaction(1, write(table["a"]), write(table["b"], function=_fails))
    by_value = table.computed(lambda value: f"key{value}", reads=(table["a"],))
    second = s_transaction(2, write(by_value))
    third = s_transaction(3, write(table["c"], table["key0"], table["key1"]))
    state = run(TPG(2, decision), first, second, third)
    assert state.of(table).newest() == {"key0": 1, "c": 2}


def _fails(*values: Any) -> Any:
    raise Abort("it fails")
