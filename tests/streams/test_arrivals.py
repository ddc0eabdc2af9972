"""Rows of a batch: admitted, late, or refused with a reason."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow
import pytest

from activedb.clock import ClockStatus
from activedb.columns import Arrival
from activedb.events import AccuracyInterval, LocalClock, Occurrence
from activedb.streams import AtomicBatch, Files, StreamDeclaration, of_batch, of_occurrences

if TYPE_CHECKING:
    from activedb.events import Timestamp

STREAM = StreamDeclaration(
    "doors",
    source=Files(format="csv"),
    type="kind",
    timestamp="at",
    types={"OPEN": ("door",), "SHUT": ()},
)


def batch(**columns: list[Any]) -> AtomicBatch:
    rows = len(next(iter(columns.values())))
    table = pyarrow.table(
        {
            "event_type": pyarrow.array(columns.get("kind", ["OPEN"] * rows), pyarrow.string()),
            "event_time_us": pyarrow.array(columns.get("us", [0] * rows), pyarrow.int64()),
            **{
                f"event_{end}_us": pyarrow.array(columns[end], pyarrow.int64())
                for end in ("low", "high")
                if end in columns
            },
            "event_id": pyarrow.array(columns.get("id", [None] * rows), pyarrow.string()),
            "p_door": pyarrow.array(columns.get("door", ["front"] * rows), pyarrow.string()),
            "raw": pyarrow.array(columns.get("raw", [None] * rows), pyarrow.string()),
        }
    )
    return AtomicBatch("doors", "q", 4, table, None)


def test_batch_good_rows_are_admitted_with_exact_times_and_identity() -> None:
    us = 1_366_000_000_123_457
    arrivals = of_batch(STREAM, batch(us=[us, us - 1], id=["b", None]), None)
    assert [
        (a.occurrence.us, a.occurrence.id, a.batch_id, a.position) for a in arrivals.admitted
    ] == [
        (us, "b", 4, 0),
        (us - 1, None, 4, 1),
    ]
    assert arrivals.admitted[0].occurrence.timestamp == datetime(1970, 1, 1, tzinfo=UTC) + (
        timedelta(microseconds=us)
    )
    assert dict(arrivals.admitted[0].occurrence.params) == {"door": "front"}
    assert not arrivals.late
    assert not arrivals.refused


def test_batch_with_intervals_gives_events_with_intervals() -> None:
    times = {"us": [100, 100, 100, 100, None], "low": [90, 80, 101, None, None]}
    arrivals = of_batch(STREAM, batch(**times, high=[100, 200, 300, 110, None]), 90)
    (o,) = (a.occurrence for a in arrivals.admitted)
    assert o.timestamp == AccuracyInterval(100, 90, 100)
    assert (o.low_us, o.us, o.high_us) == (90, 100, 100)
    assert Arrival.restore(arrivals.admitted[0].record()).occurrence.timestamp == o.timestamp
    assert [a.occurrence.low_us for a in arrivals.late] == [80], "late is what begins before it"
    assert [r.position for r in arrivals.refused] == [2, 3, 4]
    reasons = [str(r.error) for r in arrivals.refused]
    assert "lower_us ≤ reading_us" in reasons[0]
    assert reasons[1] == "the accuracy of the timestamp is missing or cannot be parsed"
    assert reasons[2] == "the timestamp is missing or cannot be parsed"


def test_batch_rows_before_the_punctuation_are_late_and_at_it_are_not() -> None:
    arrivals = of_batch(STREAM, batch(us=[9, 10, 11]), 10)
    assert [a.position for a in arrivals.late] == [0]
    assert [a.position for a in arrivals.admitted] == [1, 2]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"kind": ["KNOCK"]}, "unknown event type 'KNOCK'; stream doors has OPEN, SHUT"),
        ({"kind": [None]}, "unknown event type None"),
        ({"door": [None]}, "event OPEN lacks door"),
        ({"us": [None]}, "timestamp"),
        ({"id": ["a\0b"]}, "id"),
    ],
)
def test_batch_bad_row_is_refused_with_its_reason_and_text(
    row: dict[str, Any], reason: str
) -> None:
    (refused,) = of_batch(STREAM, batch(**row, raw=['{"door": "?"}']), None).refused
    assert reason in str(refused.error)
    assert refused.position == 0
    assert refused.payload == {"raw": '{"door": "?"}'}


@pytest.mark.parametrize(
    ("columns", "raw", "reason"),
    [
        (
            {"us": [None]},
            '{"at": "soon", "n": "1"}',
            "the timestamp is missing or cannot be parsed: "
            "CAST(AT AS TIMESTAMP) is NULL for at = 'soon'",
        ),
        (
            {"door": [None]},
            '{"at": "1", "n": "abc", "atlas": 2}',
            "event OPEN lacks door: CAST(n AS INT) is NULL for n = 'abc'",
        ),
        (
            {"door": [None]},
            '{"n": "' + "9" * 100 + '"}',
            f"event OPEN lacks door: CAST(n AS INT) is NULL for n = '{'9' * 58}…",
        ),
        (
            {"door": [None]},
            '{"n": null}',
            "event OPEN lacks door: CAST(n AS INT) is NULL",
        ),
        ({"door": [None]}, '{"n', "event OPEN lacks door: CAST(n AS INT) is NULL"),
        (
            {"low": [None], "high": [3]},
            '{"at": 5, "w": "x"}',
            "the accuracy of the timestamp is missing or cannot be parsed: "
            "make_dt_interval(secs => w) is NULL for w = 'x'",
        ),
    ],
)
def test_value_that_cannot_be_cast_is_named_with_its_expression(
    columns: dict[str, Any], raw: str, reason: str
) -> None:
    stream = replace(
        STREAM,
        timestamp="CAST(AT AS TIMESTAMP)",
        params={"door": "CAST(n AS INT)"},
        accuracy="make_dt_interval(secs => w)",
    )
    (refused,) = of_batch(stream, batch(**columns, raw=[raw]), None).refused
    assert str(refused.error) == reason


def test_occurrences_are_sorted_the_same_way() -> None:
    events = [
        Occurrence("OPEN", 3, {"door": "a"}),
        Occurrence("OPEN", 1, {"door": "a"}),
        Occurrence("OPEN", 4),
        Occurrence("SHUT", 5, {"seen": object()}),
        Occurrence("SHUT", 6),
    ]
    arrivals = of_occurrences(STREAM, events, 7, 2_000_000)
    assert [a.position for a in arrivals.admitted] == [0, 4]
    assert [a.position for a in arrivals.late] == [1]
    assert [(r.position, type(r.error).__name__) for r in arrivals.refused] == [
        (2, "BadEvent"),
        (3, "BadEvent"),
    ]


def test_arrival_restored_from_its_record_is_the_same_event() -> None:
    when = datetime(2013, 4, 15, 18, 49, 0, 123457, tzinfo=UTC)
    params = {"n": 2**70, "x": 1e20, "text": "ü", "at": when, "none": None, "list": [1, "a"]}
    before = Arrival(Occurrence("OPEN", when, params, id="7"), 3, 9)
    after = Arrival.restore(before.record())
    assert after.order == before.order
    assert after.occurrence.timestamp == when
    assert dict(after.occurrence.params) == params
    assert after.occurrence.name == "OPEN"


def test_arrival_with_an_accuracy_interval_keeps_it_through_json() -> None:
    clock = LocalClock("boot 1", 10, 5, 2, 3)
    stamp = AccuracyInterval(20, 10, 30, ClockStatus.UNKNOWN, "node", 7, clock)
    before = Arrival(Occurrence("OPEN", stamp, {"n": 1}), 3, 9)
    after = Arrival.restore(json.loads(json.dumps(before.record())))
    assert after.occurrence.stamp == stamp
    assert after.order == before.order


@pytest.mark.parametrize(
    "timestamp",
    [
        105,
        0.1,
        -3.5,
        datetime(2013, 4, 15, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(1, 1, 1, tzinfo=UTC),
    ],
)
def test_arrival_keeps_its_timestamp_as_it_was_given(timestamp: Timestamp) -> None:
    before = Arrival(Occurrence("OPEN", timestamp, {}), 3, 9)
    after = Arrival.restore(json.loads(json.dumps(before.record())))
    assert after.occurrence.timestamp == timestamp
    assert type(after.occurrence.timestamp) is type(timestamp)
    assert after.order == before.order
