"""Events that wait in columns, against a sorted list."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from activedb.columns.events._events import ColumnEvents, Values
from activedb.streams.columns._admission import WaitingColumns

Feed = tuple[list[int], int | None]


def events(times: list[int], batch_id: int) -> ColumnEvents:
    """One type, a number each."""
    count = len(times)
    numbers = np.arange(count) + 1_000 * batch_id
    made = ColumnEvents(
        ("A",),
        np.zeros(count, np.int64),
        np.array(times, np.int64),
        np.full(count, batch_id),
        np.arange(count),
        {"n": Values.of(numbers.tolist())},
    )
    return made.in_order()


def told(found: ColumnEvents) -> list[tuple[int, int, int, int]]:
    """Time, place and number of each."""
    numbers = [int(row["n"]) for row in found.records()]
    return list(
        zip(
            found.us.tolist(),
            found.batch_ids.tolist(),
            found.positions.tolist(),
            numbers,
            strict=True,
        )
    )


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 30), max_size=9), st.none() | st.integers(0, 32)),
        max_size=12,
    )
)
def test_waiting_events_come_out_as_from_a_sorted_list(feeds: list[Feed]) -> None:
    waiting = WaitingColumns()
    expected: list[tuple[int, int, int, int]] = []
    kept = []
    passed_us: int | None = None
    for batch_id, (times, punctuation_us) in enumerate(feeds):
        new = events(times, batch_id)
        if passed_us is not None:
            new = new.take(new.us >= passed_us)
        kept.append(new)
        waiting.add(new)
        expected = sorted([*expected, *told(new)])
        assert len(waiting) == len(expected)
        assert waiting.newest_us() == (expected[-1][0] if expected else None)
        assert told(waiting.passed(punctuation_us)) == [
            each for each in expected if punctuation_us is not None and each[0] < punctuation_us
        ]
        waiting.remove_passed(punctuation_us)
        if punctuation_us is not None:
            passed_us = max(punctuation_us, passed_us or 0)
            expected = [each for each in expected if each[0] >= punctuation_us]
        assert told(waiting.passed(99)) == expected
    again = WaitingColumns()
    again.restore(kept, passed_us)
    assert told(again.passed(99)) == expected


def test_waiting_events_hold_nothing_else_and_are_in_few_runs() -> None:
    waiting = WaitingColumns()
    count = 300
    for batch_id in range(count):
        waiting.add(events([*range(100), 10_000 + batch_id], batch_id).take(slice(100, None)))
    runs = waiting._runs
    assert len(waiting) == count
    assert len(runs) <= math.log2(count) + 1
    assert sum(len(run.events.us) for run in runs) == count
    assert all(run.events.us.base is None for run in runs)
    waiting.remove_passed(10_200)
    assert sum(len(run.events.us) for run in runs) <= 2 * len(waiting) == 200
