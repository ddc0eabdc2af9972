"""Costs decide whether batches are run in tasks."""

from __future__ import annotations

import pytest

from activedb.scheduling import Partitioned, ProgramRun, Results, SerialOrder
from activedb.scheduling.partitioned import Costs
from activedb.scheduling.partitioned._scheduler import Pace
from tests.scheduling.partitioned.here import TasksHere
from tests.scheduling.workloads import Parameters, workload

COSTS = Costs(batch_s=1.0, operation_s=0.01)


def test_pace_of_which_nothing_is_known_lets_tasks_be_tried() -> None:
    pace = Pace(COSTS)
    assert pace.may_be_worth(1)
    assert pace.is_worth([1, 1])
    assert not pace.is_worth([2])


@pytest.mark.parametrize(
    ("operation_s", "sizes", "is_worth"),
    [
        (0.03, [50, 50], False),  # others do 1.5 s of 3; the costs are 2
        (0.05, [50, 50], True),  # 2.5 s of 5
        (0.05, [90, 10], False),  # 0.5 s of 5
        (0.03, [25, 25, 25, 25], True),  # 2.25 s of 3
        (0.009, [1000] * 9, False),  # each costs more than it takes
    ],
)
def test_tasks_are_worth_it_if_others_do_more_than_they_cost(
    operation_s: float, sizes: list[int], is_worth: bool
) -> None:
    pace = Pace(COSTS)
    pace.learn(10, 10 * operation_s)
    assert pace.is_worth(sizes) == is_worth


def test_pace_follows_what_operations_take() -> None:
    pace = Pace(COSTS)
    for seconds in (10.0, 0.0, 0.0):
        pace.learn(1, seconds)
    assert pace.operation_s == 2.5
    pace.learn(0, 5.0)
    assert pace.operation_s == 2.5


def test_short_functions_are_run_here_after_the_first_batch() -> None:
    # With costs that no function can make up for, however long the machine stands still.
    runner = TasksHere(3, Costs(batch_s=1e6, operation_s=0.01))
    scheduler = Partitioned(SerialOrder(), runner)
    p = Parameters(transactions=60, keys=50, skew=0.0, length=1, states=1, computed=0.0, ranges=0.0)
    made = workload(p)
    run = ProgramRun(made.program, scheduler)
    sizes = []
    for events, punctuation_us in made.pieces:
        results: Results = run.feed(events, punctuation_us)
        if results.transactions:
            sizes.append(len(scheduler.sizes))
    assert sizes == [3, *([0] * (len(sizes) - 1))]
    assert len(sizes) > 1


def test_one_slot_or_one_component_is_run_here() -> None:
    for slots, keys in ((1, 50), (3, 1)):
        runner = TasksHere(slots)
        scheduler = Partitioned(SerialOrder(), runner)
        made = workload(Parameters(keys=keys, tables=1, skew=0.0))
        run = ProgramRun(made.program, scheduler)
        for events, punctuation_us in made.pieces:
            run.feed(events, punctuation_us)
        assert runner.tasks == 0
