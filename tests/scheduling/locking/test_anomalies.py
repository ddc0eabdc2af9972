"""Examples 1 to 3 and figure 2: without a scheduler anomalies happen, with any of three none."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from activedb.scheduling import At, Scheduler, SerialOrder
from activedb.scheduling.locking import LWM, S2PL, SEI, PushBased, TurnGate
from tests.scheduling.comparison import SCALE
from tests.scheduling.locking.interleavings import Choose, following, interleavings
from tests.scheduling.locking.ward import (
    ENTER_10,
    EXIT_2,
    EXIT_15,
    WORKER,
    badges,
    new_state,
    paper_stream,
)

Order = list[At]
CORRECT = ("safe", "safe", "warning")


def read_by(scheduler: Scheduler) -> tuple[str, ...]:
    """Return what T1, T2 and T3 have read."""
    transactions, state = paper_stream(), new_state()
    for transaction in transactions:
        scheduler.add(transaction)
    scheduler.run(state)
    assert state.of(badges).newest() == {WORKER: "warning"}
    read: list[str] = []
    for transaction in transactions:
        assert transaction.outcome is not None
        read += transaction.outcome.results
    return tuple(read)


def pushed(choose: Choose) -> tuple[Order, tuple[str, ...]]:
    scheduler = PushBased(choose)
    read = read_by(scheduler)
    return [at for at, _ in scheduler.trace], read


def test_example_1_accesses_in_the_order_of_time_give_what_is_right() -> None:
    order = [EXIT_2, ENTER_10, ENTER_10, EXIT_15]
    assert pushed(following(order)) == (order, CORRECT)


def test_example_2_push_based_reads_too_late() -> None:
    order = [ENTER_10, ENTER_10, EXIT_2, EXIT_15]
    assert pushed(following(order)) == (order, ("warning", "safe", "warning"))


def test_example_3_push_based_writes_too_late() -> None:
    order = [EXIT_2, EXIT_15, ENTER_10, ENTER_10]
    assert pushed(following(order)) == (order, ("safe", "safe", "safe"))


def test_figure_2_anomaly_happens_exactly_when_the_lines_of_read_and_write_cross() -> None:
    found = list(interleavings(pushed))
    assert len({tuple(order) for order, _ in found}) == len(found) == 12
    for order, (first, second, third) in found:
        written = len(order) - 1 - order[::-1].index(ENTER_10)
        assert second == "safe"
        assert (first == "warning") == (written < order.index(EXIT_2)), "read too late"
        assert (third == "safe") == (order.index(EXIT_15) < written), "written too late"
    assert sum(read == CORRECT for _, read in found) == 2  # T2 may have read before T1


def locking(choose: Choose) -> dict[str, Callable[[], Scheduler]]:
    return {
        "sei": SEI,
        "s2pl table": lambda: S2PL("table", gate=TurnGate(choose)),
        "s2pl row": lambda: S2PL("row", gate=TurnGate(choose)),
        "lwm table": lambda: LWM("table", gate=TurnGate(choose)),
        "lwm row": lambda: LWM("row", gate=TurnGate(choose)),
    }


SCHEDULERS = list(locking(lambda standing: standing[0]))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_scheduler_shows_an_anomaly_in_the_interleavings_that_do_without_one(name: str) -> None:
    for order, _ in interleavings(pushed):
        assert read_by(locking(following(order))[name]()) == CORRECT


@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_scheduler_shows_an_anomaly_in_any_interleaving_of_its_own(name: str) -> None:
    found = list(interleavings(lambda choose: read_by(locking(choose)[name]())))
    assert set(found) == {CORRECT}
    # SEI and S2PL have no choice; with LWM the older read may come at any time.
    assert len(found) == (4 if name.startswith("lwm") else 1)


def test_serial_order_and_single_event_initiated_agree() -> None:
    assert read_by(SEI()) == read_by(SerialOrder()) == CORRECT


def test_push_based_without_an_order_runs_to_the_end() -> None:
    first, second, third = read_by(PushBased())
    assert second == "safe"
    assert {first, third} <= {"safe", "warning"}


@pytest.mark.parametrize("seed", range(5 * SCALE))
def test_turns_by_a_seed_can_be_repeated(seed: int) -> None:
    traces = []
    for _ in range(2):
        gate = TurnGate(random.Random(seed).choice)
        read_by(LWM("row", gate=gate))
        traces.append(gate.trace)
    assert traces[0] == traces[1] != []
