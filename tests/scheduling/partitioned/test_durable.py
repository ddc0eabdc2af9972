"""Programs on streams whose s-transactions are run in tasks: as one process has it."""

from __future__ import annotations

import os
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from activedb.errors import SerializationConflict
from tests.databases import place
from tests.scheduling.partitioned.here import TasksHere
from tests.streams.programs import column_bank
from tests.streams.programs.bank import EVENTS, SCHEDULERS, events_of, expected, open_bank

SIX = [("DEPOSIT", n, n % 3, 0, 5) for n in range(6)]
SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


@pytest.mark.long
@given(
    EVENTS,
    st.sampled_from(SCHEDULERS),
    st.sampled_from([3, 2_000]),
    st.sets(st.integers(1, 8), max_size=3),
)
@settings(max_examples=15 * SCALE, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_bank_in_tasks_has_rows_and_outputs_of_the_serial_order(
    drawn: Any, scheduler: str, batch_events_max: int, failing: set[int]
) -> None:
    events = events_of(drawn)
    right = expected(events)
    with place(None) as where:
        db = where.open(batch_events_max=batch_events_max, retry_pause_ms=0, scale_out=True)
        flushes = 0

        def fail(point: str) -> None:
            nonlocal flushes
            flushes += point == "before flush"
            if point == "before flush" and flushes in failing:
                raise SerializationConflict("once more")

        db._store.trigger = fail
        opened = open_bank(db, scheduler)
        opened.stream.run.run_in_tasks(TasksHere(3))
        opened.stream.feed(events)
        assert opened.rows() == right.rows
        assert opened.outputs() == right.outputs
        assert len(opened.reasons()) == right.aborted


def test_runner_without_the_setting_is_not_used() -> None:
    runner = TasksHere(3)
    with place(None) as where:
        opened = open_bank(where.open())
        opened.stream.run.run_in_tasks(runner)
        opened.stream.feed(events_of(SIX))
        assert opened.rows()["accounts"] == {0: 10, 1: 10, 2: 10}
    assert runner.tasks == 0


def test_program_in_columns_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = TasksHere(3)
    monkeypatch.setattr(runner, "dumps", lambda value: pytest.fail("it is pickled"))
    with place(None) as where:
        opened = column_bank.open_bank(where, scale_out=True)
        opened.stream.run.run_in_tasks(runner)


def test_runner_that_is_taken_away_is_used_no_more() -> None:
    runner = TasksHere(3)
    with place(None) as where:
        opened = open_bank(where.open(scale_out=True))
        run = opened.stream.run
        run.run_in_tasks(runner)
        opened.stream.feed(events_of(SIX))
        assert runner.tasks == 3
        run.run_in_tasks(None)
        opened.stream.feed(events_of([("DEPOSIT", 9, n % 3, 0, 5) for n in range(6)]))
        assert runner.tasks == 3
        assert opened.rows()["accounts"] == {0: 20, 1: 20, 2: 20}
