"""Marks of producers, against a model that looks at all batches anew each time."""

from __future__ import annotations

import itertools
import json
import math
import random
from datetime import timedelta
from fractions import Fraction
from typing import Any

import pyarrow
import pytest

from activedb.streams import Marks, StreamDeclaration, newest_times
from tests.drawing import drawn

pa: Any = pyarrow
NAMES = ("north", "south", "east", "", None)
_FUTURE_MAX_US = 60_000_000


def stream(**changes: Any) -> StreamDeclaration:
    given: dict[str, Any] = {"type": "'PASS'", "timestamp": "at", "types": {"PASS": ()}}
    return StreamDeclaration("gates", **(given | changes))


Row = tuple[str | None, int | None]


def some_rows(of: random.Random, made_us: int) -> list[Row]:
    times = [None, *(made_us + of.randint(-(10**8), 10**8) for _ in range(3))]
    return [(of.choice(NAMES), of.choice(times)) for _ in range(of.choice((0, 1, 3, 8)))]


def table(rows: list[Row]) -> Any:
    schema = pa.schema([("event_producer", pa.string()), ("event_time_us", pa.int64())])
    names, times = [name for name, _ in rows], [us for _, us in rows]
    return pa.table({"event_producer": names, "event_time_us": times}, schema=schema)


def punctuation_us(
    gates: StreamDeclaration, batches: list[tuple[int, list[Row]]], before_us: int | None
) -> int | None:
    """Return the punctuation of the last batch, computed from all batches and their times."""
    silent_us = gates.silent_after_us
    steps = [b[0] - a[0] for a, b in itertools.pairwise(batches)]
    clocks = [0]
    for step in steps:
        clocks.append(clocks[-1] + (step if silent_us is None else min(step, silent_us // 2)))
    newest: dict[str, list[int]] = {name: [] for name in gates.expected_producers}
    heard = dict.fromkeys(gates.expected_producers, 0)
    for clock, (made_us, rows) in zip(clocks, batches, strict=True):
        for name, us in rows:
            if not name:
                continue
            newest.setdefault(name, [])
            heard[name] = clock
            if us is not None and us <= made_us + _FUTURE_MAX_US:
                newest[name].append(us)
    loud = [n for n in newest if silent_us is None or clocks[-1] - heard[n] <= silent_us]
    if not any(newest.values()) or not all(newest[name] for name in loud):
        return before_us
    marks = [max(newest[name]) for name in loud] or [max(max(us) for us in newest.values() if us)]
    delay_ms = math.ceil(Fraction(gates.delay // timedelta(microseconds=1), 1000))
    reached_us = (math.floor(Fraction(min(marks), 1000)) - delay_ms) * 1000
    if reached_us <= 0:
        return before_us
    return reached_us if before_us is None else max(before_us, reached_us)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_producers_as_a_model_that_looks_at_all_batches(seed: int) -> None:
    of = drawn("marks", seed)
    gates = stream(
        producer="gate",
        expected_producers=of.choice(((), ("north",), ("north", "west"))),
        silent_after=of.choice((None, 5, 60)),
        delay=timedelta(microseconds=of.choice((0, 1_500, 3_000_000))),
    )
    batches: list[tuple[int, list[Row]]] = []
    made_us, expected_us, record = of.choice((0, 10**9)), None, None
    for _ in range(30):
        made_us += of.choice((0, 10_000, 2_000_000, 90_000_000))
        batches.append((made_us, some_rows(of, made_us)))
        expected_us = punctuation_us(gates, batches, expected_us)
        newest = newest_times(gates, table(batches[-1][1]), made_us + _FUTURE_MAX_US)
        marks = Marks.restore(gates, record).after(gates, newest, made_us)
        assert marks.punctuation_us == expected_us, len(batches)
        record = json.loads(json.dumps(marks.record()))


def test_stream_without_producers_has_the_newest_time_less_the_delay() -> None:
    gates, marks = stream(delay=timedelta(seconds=1)), None
    reached = []
    for times in ([5_000_000, 3_000_000], [None], [], [4_000_000, 9_000_000], [70_000_000], []):
        rows = pa.table({"event_time_us": pa.array(times, pa.int64())})
        newest = newest_times(gates, rows, 60_000_000)
        marks = Marks.restore(gates, marks).after(gates, newest, 0).record()
        reached.append(marks["punctuation_us"])
    assert reached == [4_000_000, 4_000_000, 4_000_000, 8_000_000, 8_000_000, 8_000_000]


@pytest.mark.parametrize(
    ("newest_us", "delay_us", "reached_us"),
    [
        (20_000_999, 0, 20_000_000),
        (20_000_000, 0, 20_000_000),
        (20_000_999, 10_000_000, 10_000_000),
        (20_000_999, 10_000_001, 9_999_000),  # the delay is rounded up, so that it is kept
        (10_001_000, 10_000_000, 1_000),
        (10_000_999, 10_000_000, None),  # 1970
        (-1, 0, None),
    ],
)
def test_punctuation_is_whole_milliseconds_after_1970(
    newest_us: int, delay_us: int, reached_us: int | None
) -> None:
    gates = stream(delay=timedelta(microseconds=delay_us))
    marks = Marks.restore(gates, None).after(gates, {"": newest_us}, 0)
    assert marks.punctuation_us == reached_us


def test_marks_go_on_when_producers_are_declared_or_no_longer_are() -> None:
    undeclared, either = stream(), stream(producer="gate", expected_producers=("north", "south"))
    third = stream(producer="gate", expected_producers=("north", "south", "east"), silent_after=10)
    reached, record = [], None
    for made_us, gates, newest in (
        (0, undeclared, {"": 5_000_000}),
        (1_000_000, either, {"north": 9_000_000}),  # south has not been heard
        (2_000_000, either, {"south": 8_000_000}),
        (3_000_000, third, {"south": 9_500_000}),  # now east is waited for
        (7_000_000, third, {"north": 11_000_000}),
        (12_000_000, third, {"south": 12_000_000}),
        (14_000_000, third, {}),  # and is silent
        (15_000_000, undeclared, {}),
        (15_000_000, undeclared, {"": 13_000_000}),
    ):
        marks = Marks.restore(gates, record).after(gates, newest, made_us)
        assert marks.punctuation_us is not None
        reached.append(marks.punctuation_us // 1_000_000)
        record = json.loads(json.dumps(marks.record()))
    assert reached == [5, 5, 8, 8, 8, 8, 11, 12, 13]


@pytest.mark.parametrize("corrected", [("north", "south"), ()])
def test_producer_that_was_declared_by_mistake_is_not_waited_for_once_it_is_not(
    corrected: tuple[str, ...],
) -> None:
    mistaken = stream(producer="gate", expected_producers=("north", "sooth"))
    marks = Marks.restore(mistaken, None).after(mistaken, {"north": 5_000_000}, 0)
    assert marks.punctuation_us is None
    gates = stream(producer="gate", expected_producers=corrected)
    marks = Marks.restore(gates, json.loads(json.dumps(marks.record())))
    marks = marks.after(gates, {"north": 9_000_000, "south": 8_000_000}, 1)
    assert marks.punctuation_us == 8_000_000
    # But who was heard is, although undeclared names it any more.
    gates = stream(producer="gate", expected_producers=("north",))
    marks = Marks.restore(gates, json.loads(json.dumps(marks.record())))
    assert marks.after(gates, {"north": 11_000_000}, 2).punctuation_us == 8_000_000


def test_interval_counts_with_its_lower_end() -> None:
    gates = stream(accuracy=timedelta(seconds=1))
    rows = pa.table({"event_time_us": [5, 9], "event_low_us": [4, 2]})
    assert newest_times(gates, rows, None) == {"": 4}
