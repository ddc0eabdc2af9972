"""Decisions: what is decided, by which part, and for which part of a batch."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import pytest

from activedb.scheduling import SerialOrder, SharedState, SharedTable, STransaction
from activedb.scheduling.tpg import (
    TPG,
    Decision,
    Properties,
    Thresholds,
    _calibration,
    by_tables,
    calibrate,
)
from activedb.scheduling.tpg.__main__ import as_python
from activedb.scheduling.tpg.__main__ import main as command
from activedb.scheduling.tpg._model import decide, serial_is_fastest, threads_run_python_at_once
from activedb.scheduling.tpg._parts import (
    PILOTS_MAX,
    PILOTS_MIN,
    PartStatistics,
    Pilots,
    pilots_due,
)
from tests.patience import PATIENCE_S
from tests.scheduling.tpg.ledger import s_transaction, streaming_ledger, transfer, write

accounts = SharedTable("accounts", key=str, initial=100)
first, second = SharedTable("first", initial=0), SharedTable("second", initial=0)
thresholds = Thresholds(
    serial_us=1,
    plan_us=2,
    explore_us=3,
    structured="depth-first",
    dependencies_high=100,
    skew_high=10,
    tds_high=50,
    pds_share_high=0.5,
    compute_us_high=20,
    abort_ratio_high=0.4,
)
plain = Properties(transactions=100, operations=200)


def never() -> bool:
    raise AssertionError("nobody need know")


@pytest.mark.parametrize(
    ("properties", "is_cyclic", "decision"),
    [
        (plain, never, Decision("non-structured", "operation", "eager")),
        # I: how it is explored.
        (replace(plain, tds=40, pds=60), never, Decision("depth-first")),
        (replace(plain, tds=40, pds=59), never, Decision("non-structured")),
        (replace(plain, tds=40, pds=60, skew=11), never, Decision("non-structured")),
        # II: what is scheduled at once.
        (replace(plain, tds=50, pds=20), lambda: False, Decision(unit="group")),
        (replace(plain, tds=50, pds=20), lambda: True, Decision()),
        (replace(plain, tds=50, pds=101, skew=99), never, Decision()),
        # III: when aborts are dealt with.
        (replace(plain, abort_ratio=0.4, compute_us=20), never, Decision(abort="lazy")),
        (replace(plain, abort_ratio=0.4, compute_us=21), never, Decision(abort="eager")),
        (replace(plain, abort_ratio=0.3, compute_us=0), never, Decision(abort="eager")),
    ],
)
def test_figure_7_decisions_follow_from_the_properties(
    properties: Properties, is_cyclic: Callable[[], bool], decision: Decision
) -> None:
    assert decide(properties, thresholds, is_cyclic) == decision


def test_section_8_2_3_two_groups_get_the_decisions_of_the_paper() -> None:
    many = replace(plain, tds=500)
    skewed = replace(many, skew=50, abort_ratio=0.6)
    assert decide(skewed, thresholds, lambda: False) == Decision("non-structured", "group", "lazy")
    assert decide(many, thresholds, lambda: False) == Decision("depth-first", "group", "eager")


@pytest.mark.parametrize(
    ("compute_us", "parallel_share", "threads", "serial"),
    [(0, 1, 4, True), (1000, 0, 4, True), (1000, 1, 1, True), (1000, 1, 2, False), (8, 1, 2, True)],
)
def test_serial_is_decided_where_threads_gain_less_than_the_tpg_costs(
    compute_us: float, parallel_share: float, threads: int, serial: bool
) -> None:
    properties = replace(plain, compute_us=compute_us, parallel_share=parallel_share)
    assert serial_is_fastest(properties, thresholds, threads) == serial


def run(scheduler: TPG, transactions: list[STransaction], *tables: SharedTable) -> SharedState:
    state = SharedState(tables)
    for transaction in transactions:
        scheduler.add(transaction)
    scheduler.run(state)
    assert all(transaction.outcome is not None for transaction in transactions)
    return state


def ledger(count: int) -> list[STransaction]:
    pairs = itertools.cycle(itertools.permutations([accounts[key] for key in "ABC"], 2))
    return [transfer(n, *pair, 1) for n, pair in zip(range(count), pairs, strict=False)]


def test_short_functions_are_run_in_the_serial_order_and_not_planned_the_next_time() -> None:
    # With costs that no function of an account can make up for, whatever the machine.
    scheduler = TPG(thresholds=replace(thresholds, plan_us=1e6))
    for _ in range(2):
        right = SharedState([accounts])
        serial = SerialOrder()
        for transaction in ledger(100):
            serial.add(transaction)
        serial.run(right)
        state = run(scheduler, ledger(100), accounts)
        assert state.of(accounts).all() == right.of(accounts).all()
        (report,) = scheduler.last
        assert report.decision == Decision("serial")
        assert (report.properties.transactions, report.properties.operations) == (100, 200)


def test_model_looks_at_the_tpg_where_threads_gain() -> None:
    scheduler = TPG(thresholds=replace(thresholds, plan_us=-1e6))
    run(scheduler, ledger(400), accounts)
    (report,) = scheduler.last
    # The first few were run alone, to be measured.
    assert report.properties.transactions == 400 - PILOTS_MIN
    assert report.properties.lds == 400 - PILOTS_MIN
    assert report.properties.tds > 500
    assert report.decision.explore == "depth-first"
    assert report.decision.unit == "operation"
    assert report.properties.cyclic is not False


def test_functions_that_wait_are_run_by_a_tpg() -> None:
    def waits(value: int) -> int:
        time.sleep(0.002)  # the wait is what is measured; no thread waits for its end
        return value + 1

    scheduler = TPG(threads=2)
    batch = [s_transaction(n, write(first[n], function=waits)) for n in range(40)]
    state = run(scheduler, batch, first)
    (report,) = scheduler.last
    assert not report.decision.is_serial
    assert report.properties.compute_us > 1000
    assert report.properties.transactions == 40 - PILOTS_MIN
    assert len(state.of(first)) == 40


def test_batches_of_longer_functions_get_a_tpg_after_batches_of_short_ones() -> None:
    scheduler = TPG(thresholds=replace(thresholds, plan_us=100))
    run(scheduler, [s_transaction(n, write(first[n])) for n in range(20)], first)

    def waits(value: int) -> int:
        time.sleep(0.002)
        return value + 1

    run(scheduler, [s_transaction(n, write(first[n], function=waits)) for n in range(20)], first)
    (report,) = scheduler.last
    assert not report.decision.is_serial


def test_pilots_that_speak_for_a_tpg_clearly_are_few() -> None:
    pilots = Pilots(thresholds, 2)  # a TPG costs 5 microseconds per operation
    for _ in range(PILOTS_MIN):
        assert not pilots.are_enough
        pilots.add(2, 200, 0)
    assert pilots.are_enough
    known = PartStatistics()
    pilots.tell(known)
    assert known.compute_us == 99
    assert known.parallel_share == 1


@pytest.mark.skipif(threads_run_python_at_once(), reason="threads could use all of the time")
def test_pilots_of_which_one_does_not_speak_for_a_tpg_are_as_many_as_can_be() -> None:
    pilots = Pilots(thresholds, 2)
    for wall_us, cpu_us in [(50, 50), *[(100, 0)] * 14, (5000, 0)]:
        pilots.add(1, wall_us, cpu_us)
    assert not pilots.are_enough
    known = PartStatistics()
    pilots.tell(known)
    assert known.compute_us is not None
    assert known.compute_us < 99, "without the slowest"
    assert 0.9 < known.parallel_share < 1


@pytest.mark.parametrize(
    ("known", "count", "due"),
    [
        (PartStatistics(), 8, 2),  # a quarter of the batch
        (PartStatistics(), 1000, PILOTS_MAX),
        (PartStatistics(compute_us=100, parallel_share=1), 40, 0),
        (PartStatistics(compute_us=100, parallel_share=1, unmeasured=87), 40, 0),
        (PartStatistics(compute_us=100, parallel_share=1, unmeasured=88), 40, 10),
        (PartStatistics(compute_us=100, parallel_share=0), 40, 10),  # they are run alone anyway
        (PartStatistics(), 0, 0),
    ],
)
def test_pilots_are_rare_where_the_tpg_is_best(known: PartStatistics, count: int, due: int) -> None:
    assert pilots_due(known, count, thresholds, 2) == due


def test_abort_ratio_is_learned_from_former_batches() -> None:
    scheduler = TPG(thresholds=replace(thresholds, plan_us=-1e6, compute_us_high=math.inf))
    broke = SharedTable("broke", initial=0)
    for decided in ("eager", "lazy", "lazy"):
        run(scheduler, [transfer(n, broke[n], broke[n + 1], 5) for n in range(40)], broke)
        (report,) = scheduler.last
        assert report.aborted == 40
        assert report.decision.abort == decided


def test_fixed_decision_is_kept_to() -> None:
    decision = Decision("breadth-first", "group", "lazy", True)
    scheduler = TPG(3, decision)
    run(scheduler, streaming_ledger(accounts), accounts)
    (report,) = scheduler.last
    assert report.decision == decision
    assert report.labels == (None,)
    assert (report.properties.lds, report.properties.tds, report.properties.pds) == (2, 3, 2)


def two_tables(count: int) -> list[STransaction]:
    tables = itertools.cycle([first, second])
    return [
        s_transaction(n, write(table[n % 3]))
        for n, table in zip(range(count), tables, strict=False)
    ]


def test_groups_of_s_transactions_have_their_own_decisions() -> None:
    lazy, eager = Decision("non-structured", "group", "lazy"), Decision("breadth-first", "group")
    decisions: dict[Hashable, Decision] = {("first",): lazy, ("second",): eager}
    scheduler = TPG(decision=decisions, group_of=by_tables)
    run(scheduler, two_tables(50), first, second)
    found = {report.labels: report.decision for report in scheduler.last}
    assert found == {(("first",),): lazy, (("second",),): eager}


def test_group_without_a_decision_is_decided_by_the_model() -> None:
    scheduler = TPG(decision={("first",): Decision()}, group_of=by_tables)
    run(scheduler, two_tables(50), first, second)
    found = {report.labels: report for report in scheduler.last}
    assert found[("second",),].properties.compute_us >= 0
    assert found[("first",),].properties.transactions == 25


def test_groups_with_a_key_in_common_are_run_as_the_larger_one() -> None:
    few, many = Decision("breadth-first"), Decision("depth-first")
    scheduler = TPG(
        decision={"few": few, "many": many, "else": few},
        group_of=lambda t: "else" if t.at.us == 99 else "few" if t.at.us % 3 == 0 else "many",
    )
    own = s_transaction(99, write(second[0]))
    chain = [s_transaction(n, write(first[n % 2])) for n in range(20)]
    state = run(scheduler, [*chain, own], first, second)
    merged, alone = sorted(scheduler.last, key=lambda report: -len(report.labels))
    assert set(merged.labels) == {"few", "many"}
    assert merged.decision == many
    assert (alone.labels, alone.decision) == (("else",), few)
    assert state.of(first).newest() == {0: 10, 1: 10}


def test_two_groups_run_at_once() -> None:
    meeting = threading.Barrier(2)

    def meet(value: Any) -> Any:
        meeting.wait(timeout=PATIENCE_S)
        return value + 1

    together = [
        s_transaction(1, write(first[0], function=meet)),
        s_transaction(2, write(second[0], function=meet)),
    ]
    decisions: dict[Hashable, Decision] = {
        ("first",): Decision("breadth-first"),
        ("second",): Decision("depth-first"),
    }
    state = run(TPG(2, decisions, group_of=by_tables), together, first, second)
    assert state.of(first).newest() == state.of(second).newest() == {0: 1}


def test_nothing_added_is_nothing_run() -> None:
    scheduler = TPG()
    scheduler.run(SharedState([accounts]))
    assert scheduler.last == ()


@pytest.mark.parametrize("decision", [None, Decision(), Decision("depth-first", "group")])
def test_s_transaction_without_operations_commits(decision: Decision | None) -> None:
    empty = s_transaction(1)
    run(TPG(decision=decision), [empty], accounts)
    assert empty.outcome is not None
    assert empty.outcome.committed
    assert empty.outcome.results == ()


@pytest.mark.parametrize("wins", [None, True, False])
def test_calibration_measures_every_threshold(
    wins: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wins is not None:  # on a noisy machine, each comparison can go either way
        monkeypatch.setattr(_calibration._Bench, "is_faster", lambda *_: wins)
    found = calibrate(threads=2, operations=40, rounds=1)
    assert found.serial_us > 0
    assert found.plan_us > 0
    assert found.explore_us >= 0
    assert found.structured in ("breadth-first", "depth-first")
    assert found.dependencies_high > 0
    assert found.abort_ratio_high > 0
    assert decide(plain, found, never).unit == "operation"


def test_calibration_as_a_command_prints_thresholds_as_python(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(["--operations", "40", "--rounds", "1"])
    found = eval(capsys.readouterr().out, {"Thresholds": Thresholds})
    assert isinstance(found, Thresholds)
    assert found.plan_us > 0


def test_thresholds_as_python_are_what_they_were_to_four_digits() -> None:
    wanted = replace(thresholds, plan_us=4.00004, dependencies_high=12_345, tds_high=math.inf)
    found = eval(as_python(wanted), {"Thresholds": Thresholds})
    assert found == replace(wanted, plan_us=4, dependencies_high=12_340)


def test_calibration_of_no_threads_is_a_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command(["--threads", "0"])
    assert "whole numbers from 1" in capsys.readouterr().err
