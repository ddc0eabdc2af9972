"""Tasks give the serial order, wherever they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.scheduling import Partitioned, Scheduler, SerialOrder
from activedb.scheduling.locking import LWM, S2PL, SEI
from activedb.scheduling.tpg import TPG, Decision, by_tables
from tests.scheduling.comparison import SCALE, check
from tests.scheduling.partitioned.here import TasksHere
from tests.scheduling.test_schedulers import HARD
from tests.scheduling.workloads import Parameters, parameters, workload

INNER: dict[str, Callable[[], Scheduler]] = {
    "serial": SerialOrder,
    "sei": SEI,
    "s2pl": lambda: S2PL("row", threads=2),
    "lwm": lambda: LWM("row", threads=2),
    "tpg": lambda: TPG(2),
    "tpg-of-groups": lambda: TPG(2, Decision("depth-first", "group", "lazy"), group_of=by_tables),
}

every_scheduler = pytest.mark.parametrize("name", INNER)


@every_scheduler
def test_hard_workloads_in_tasks_give_the_serial_order(name: str) -> None:
    for kind in HARD.values():
        check(lambda: Partitioned(INNER[name](), TasksHere()), workload(kind))


@every_scheduler
@settings(max_examples=10 * SCALE)
@given(p=parameters(keys=st.sampled_from([1, 6, 12, 100])), slots=st.integers(1, 5))
def test_any_workload_in_tasks_gives_the_serial_order(name: str, p: Parameters, slots: int) -> None:
    check(lambda: Partitioned(INNER[name](), TasksHere(slots)), workload(p))


@settings(max_examples=60 * SCALE)
@given(
    parameters(
        keys=st.sampled_from([40, 200]),
        skew=st.just(0.0),
        length=st.integers(1, 3),
        states=st.integers(1, 3),
        computed=st.sampled_from([0.0, 0.0, 0.02]),
        ranges=st.sampled_from([0.0, 0.02, 0.1]),
        windows=st.sampled_from([0.0, 0.5]),
        bodies=st.sampled_from([0.0, 0.5]),
    ),
    st.integers(2, 5),
)
def test_workload_that_falls_apart_gives_the_serial_order(p: Parameters, slots: int) -> None:
    check(lambda: Partitioned(SerialOrder(), TasksHere(slots)), workload(p))


def test_workload_of_disjoint_keys_is_run_in_tasks_of_one_size() -> None:
    runner = TasksHere(4)
    kind = Parameters(transactions=40, keys=4000, skew=0.0, length=1, states=1, pieces=1, junk=0.0)
    made = workload(Parameters(**{**_as_dict(kind), "computed": 0.0, "ranges": 0.0, "bodies": 0.0}))
    scheduler = Partitioned(SerialOrder(), runner)
    check(lambda: scheduler, made)
    assert runner.tasks == 4


def _as_dict(p: Parameters) -> dict[str, Any]:
    return {name: getattr(p, name) for name in p.__dataclass_fields__}
