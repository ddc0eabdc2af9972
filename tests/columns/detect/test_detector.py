"""The columnar detector batch by batch: what it finds, refuses, keeps and forgets."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from activedb.columns.detect._detector import ColumnarDetector
from activedb.columns.events import EventColumns
from activedb.errors import BadEvent, PatternError
from activedb.events import Detector, Expression, Occurrence, event, many, occurrence, query, seq
from activedb.events.terms import attr, part

pytestmark = pytest.mark.long

A, B, C, N = (event(name) for name in "ABCN")


def stream(text: str, **params: Any) -> EventColumns:
    """Events such as ``A1 B2``."""
    return EventColumns.of_occurrences(
        occurrence(word[0], timestamp=float(word[1:]), **params) for word in text.split()
    )


def shown(matches: list[Occurrence]) -> list[str]:
    return [
        " ".join(
            "(" + " ".join(f"{o.name}{o.timestamp:g}" for o in bound) + ")"
            if isinstance(bound, tuple)
            else f"{bound.name}{bound.timestamp:g}"
            for bound in match.parts.values()
        )
        for match in matches
    ]


@pytest.mark.parametrize(
    ("expression", "events", "expected"),
    [
        (seq(A, B), "A1 A2 B3", ["A1 B3", "A2 B3"]),
        (seq(A, B), "A1 B1", []),
        (seq(A, ~N, B), "A1 N2 A2 B3", ["A2 B3"]),
        (seq(A, ~A, B), "A1 A2 B3", ["A2 B3"]),
        (seq(~N, A, B).within(5), "N1 A2 B6", []),
        (seq(~N, A, B).within(5), "N1 A2 B7", ["A2 B7"]),
        (seq(A, B).within(5), "A1 B6 B7", ["A1 B6"]),
        (seq(A, B, C).gap(2), "A1 B3 C5 C6", ["A1 B3 C5"]),
        (seq(A, B).selecting("next"), "A1 A2 B3 B4", ["A1 B3", "A2 B3"]),
        (seq(A, many(B), C).selecting("next").within(9), "A1 B2 B3 C4", ["A1 (B2 B3) C4"]),
        (
            seq(A, many(B), C).within(9),
            "A1 B2 B3 C4",
            ["A1 (B2 B3) C4", "A1 (B2) C4", "A1 (B3) C4"],
        ),
        (seq(A, B).context("chronicle"), "A1 A2 B3 B4", ["A1 B3", "A2 B4"]),
        (seq(A, B).context("recent"), "A1 A2 B3 B4", ["A2 B3", "A2 B4"]),
        (seq(A, B).context("continuous"), "A1 A2 B3 B4", ["A1 B3", "A2 B3"]),
        (seq(A, B).context("cumulative"), "A1 A2 B3 B4", ["(A1 A2) (B3)"]),
        (seq(A, B, B.named("last")).context("cumulative"), "A1 B2 B3 B4", ["(A1) (B2) (B3)"]),
    ],
)
def test_columnar_detector_of_an_example_finds_its_matches_whole_or_event_by_event(
    expression: Expression, events: str, expected: list[str]
) -> None:
    detector = ColumnarDetector(expression)
    assert shown(detector.feed(stream(events)).occurrences()) == expected
    detector = ColumnarDetector(expression)
    found: list[Occurrence] = []
    for word in events.split():
        found += detector.feed(stream(word)).occurrences()
    assert shown(found) == expected


def test_matches_of_two_batches_tell_rows_through_both_and_occurrences_like_a_detector() -> None:
    pattern = seq(A, many(B), C).within(60).selecting("next")
    detector = ColumnarDetector(pattern, name="found")
    assert len(detector.feed(stream("X0 A1 B2", n=1))) == 0
    matches = detector.feed(stream("B3 C4 C5", n=2))
    assert matches.names == ("A", "B", "C")
    assert matches.rows("A").tolist() == [1]
    assert matches.rows("B").tolist() == [2, 3]
    assert matches.offsets("B").tolist() == [0, 2]
    assert matches.rows("C").tolist() == [4]
    assert matches.us.tolist() == [4_000_000]
    with pytest.raises(KeyError, match="no part 'D': there are A, B, C"):
        matches.rows("D")
    [match] = matches.occurrences()
    assert (match.name, match.timestamp, dict(match.params)) == ("found", 4, {"n": 2})


def test_columnar_detector_of_a_query_makes_occurrences_of_its_name_with_what_it_returns() -> None:
    pattern = seq(A, many(B), C).within(9).selecting("next")
    expression = query("Q", pattern, {"first": part("A").x, "so many": part("B").count()})
    found = [occurrence(name, timestamp=n, x=n) for n, name in enumerate("ABBC", 1)]
    [match] = ColumnarDetector(expression).feed(EventColumns.of_occurrences(found)).occurrences()
    by_row = Detector(expression)
    [expected] = [one for o in found for one in by_row.feed(o)]
    assert _described(match) == _described(expected)
    assert (match.name, dict(match.params)) == ("Q", {"first": 1, "so many": 2})


def test_columnar_detector_of_an_arrow_table_makes_occurrences_of_its_rows() -> None:
    table = pa.table(
        {
            "event_type": ["A", None, "B", "A"],
            "event_time_us": pa.array([1_000_000, 5, 2_000_000, None], pa.int64()),
            "event_id": pa.array(["one", None, None, None], pa.string()),
            "p_worker": [7, 7, 7, 7],
            "p_place": ["hall", None, None, None],
            "raw": pa.nulls(4, pa.string()),
        }
    )
    [match] = ColumnarDetector(seq(A, B).same("worker")).feed(table).occurrences()
    first = match.parts["A"]
    assert (first.name, first.us, first.id) == ("A", 1_000_000, "one")
    assert dict(first.params) == {"worker": 7, "place": "hall"}
    assert dict(match.params) == {"worker": 7, "place": None}


def test_columnar_detector_takes_a_batch_in_any_order_but_none_before_the_last() -> None:
    detector = ColumnarDetector(seq(A, B))
    assert shown(detector.feed(stream("B3 A1 A2")).occurrences()) == ["A1 B3", "A2 B3"]
    with pytest.raises(BadEvent, match="before what was fed or trimmed"):
        detector.feed(stream("B4 B2"))
    assert shown(detector.feed(stream("B4")).occurrences()) == ["A1 B4", "A2 B4"]


def test_columnar_detector_compares_keys_as_dictionaries_do_whatever_the_column_types() -> None:
    detector = ColumnarDetector(seq(A, B).same("k").context("chronicle"))
    types, us = ["A", "B"], [1]
    first: list[Any] = [np.array([1]), np.array([1.0]), pa.array(["x"]), pa.array([None])]
    second: list[Any] = [np.array([True]), pa.array([1]), np.array(["x"], object), pa.nulls(1)]
    for a, b in zip(first, second, strict=True):
        assert not len(detector.feed(EventColumns.of_arrays(types, [0], us, {"k": a})))
        us = [us[0] + 1]
        assert len(detector.feed(EventColumns.of_arrays(types, [1], us, {"k": b}))) == 1
        us = [us[0] + 1]


@pytest.mark.parametrize("value", [float("nan"), [1]])
def test_columnar_detector_of_a_key_that_does_not_compare_refuses_the_batch_whole(
    value: object,
) -> None:
    detector = ColumnarDetector(seq(A, B).same("k"))
    detector.feed(stream("A1", k="x"))
    bad = [occurrence("B", timestamp=2, k="x"), occurrence("A", timestamp=3, k=value)]
    with pytest.raises(BadEvent, match="cannot be compared"):
        detector.feed(EventColumns.of_occurrences(bad))
    assert shown(detector.feed(stream("B2", k="x")).occurrences()) == ["A1 B2"]


def test_refused_key_leaves_nothing_behind_of_the_conditions() -> None:
    detector = ColumnarDetector(seq(A, B).same("k").within(9).where(part("A").x == part("B").x))
    bad = [occurrence("A", timestamp=1, k=[1], x="a text")]
    with pytest.raises(BadEvent, match="cannot be compared"):
        detector.feed(EventColumns.of_occurrences(bad))
    assert len(detector.feed(stream("A1 B2", k=1, x=2))) == 1


def test_columnar_detector_of_events_without_the_key_refuses_them_only_if_a_part_takes_them() -> (
    None
):
    detector = ColumnarDetector(seq(A, B).same("k"))
    assert not len(detector.feed(stream("X1")))
    with pytest.raises(BadEvent, match="have no parameter 'k'"):
        detector.feed(stream("A2"))
    mixed = [occurrence("A", timestamp=3, k=1), occurrence("B", timestamp=4)]
    with pytest.raises(BadEvent, match="has no parameter 'k'"):
        detector.feed(EventColumns.of_occurrences(mixed))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"x": "text"}, "uses a non-numeric value"),
        ({"x": 2**53 + 2}, "compiled conditions"),
        ({"x": [1]}, "compiled conditions do not compare"),
        ({}, "have no attribute 'x'"),
    ],
)
def test_columnar_detector_of_a_condition_that_cannot_be_judged_refuses_the_batch(
    params: dict[str, Any], message: str
) -> None:
    detector = ColumnarDetector(seq(A, B).within(9).where(part("A").x < part("B").x + 1))
    with pytest.raises(BadEvent, match=message):
        detector.feed(stream("A1 B2", **params))
    assert len(detector.feed(stream("A1 B2", x=1.5))) == 1


def test_columnar_detector_that_orders_texts_refuses_them_and_compares_them_as_equal() -> None:
    detector = ColumnarDetector(seq(A, B).within(9).where(part("A").x <= part("B").x))
    with pytest.raises(BadEvent, match="orders texts"):
        detector.feed(stream("A1 B2", x="u"))
    detector = ColumnarDetector(seq(A, B).within(9).where(part("A").x == part("B").x))
    assert len(detector.feed(stream("A1 B2", x="u"))) == 1


def test_columnar_detector_over_many_keys_and_texts_keeps_those_of_the_window_only() -> None:
    pattern = seq(A, B).same("k").within(10).where(part("A").s == part("B").s)
    detector = ColumnarDetector(pattern)
    matches = 0
    for batch in range(60):
        us = 1_000_000 * (20 * batch + np.arange(200) // 100)
        keys = np.array([f"{batch} {n}" for n in range(100)] * 2, object)
        types = np.repeat([0, 1], 100)
        found = detector.feed(EventColumns.of_arrays(["A", "B"], types, us, {"k": keys, "s": keys}))
        matches += len(found)
        assert detector.partials <= 200
    assert matches == 60 * 100
    assert len(detector._keys) <= 2_000
    assert detector._engine._programs.texts <= 2_000  # type: ignore[attr-defined]
    assert len(detector._engine._keys) <= 2_000  # type: ignore[attr-defined]
    assert sum(len(chunk.rows) for chunk in detector._chunks) <= 400


def test_columnar_detector_without_matches_in_long_batches_keeps_only_rows_that_it_needs() -> None:
    detector = ColumnarDetector(seq(A, B, C))
    for batch in range(3):
        types = np.zeros(100_000, np.int64)
        types[0], types[1:] = 0, 2
        us = batch * 1_000_000 + np.arange(100_000)
        detector.feed(EventColumns.of_arrays(["A", "B", "X"], types, us))
    assert detector.partials == 3
    assert sum(len(chunk.rows) for chunk in detector._chunks) < 100_000
    last = EventColumns.of_arrays(["B", "C"], [0, 1], [9_000_000, 9_000_001])
    matches = detector.feed(last)
    assert matches.rows("A").tolist() == [0, 100_000, 200_000]
    assert [match.parts["A"].us for match in matches.occurrences()] == [0, 1_000_000, 2_000_000]


@pytest.mark.parametrize("pattern", [seq(A, B), seq(A, many(B), C)])
def test_trim_of_a_columnar_detector_forgets_what_is_beyond_the_window_and_late_events(
    pattern: Any,
) -> None:
    detector = ColumnarDetector(pattern.within(5))
    detector.feed(stream("A1 A4"))
    assert detector.partials == 2
    detector.trim(7_000_000)
    assert detector.partials == 1
    detector.trim(20_000_000)
    assert detector.partials == 0
    with pytest.raises(BadEvent, match="before what was fed or trimmed"):
        detector.feed(stream("B5"))


CONTEXTS = ["unrestricted", "recent", "chronicle", "continuous", "cumulative"]
STEPS = [
    seq(A, ~N, B, C).same("k").within(20),
    seq(event("A", attr("x") > 2), B, C).same("k").within(20).selecting("next"),
    seq(A, B, C).same("k").within(9).where(part("A").x < part("B").x),
]
RUNS = [
    seq(A, many(B), C).same("k").within(9).selecting("next"),
    seq(A, many(B, 0, 3, greedy=False), C).same("k").within(9).selecting("next"),
]


@pytest.mark.parametrize(
    ("pattern", "context"),
    [
        *((pattern, context) for pattern in STEPS for context in CONTEXTS),
        *((pattern, context) for pattern in RUNS for context in CONTEXTS if context != "recent"),
    ],
)
def test_columnar_detector_over_a_long_stream_finds_what_a_detector_finds(
    pattern: Any, context: str
) -> None:
    chance = random.Random(5)
    expression = pattern.context(context)
    found = [
        occurrence(
            chance.choice("ABCN"), timestamp=n / 4, k=chance.randrange(5), x=chance.randrange(6)
        )
        for n in range(1_500)
    ]
    by_row, expected = Detector(expression), []
    for o in found:
        expected += by_row.feed(o)
    detector, matches = ColumnarDetector(expression), []
    while found:
        size = chance.randint(1, 300)
        batch, found = found[:size], found[size:]
        matches += detector.feed(EventColumns.of_occurrences(batch)).occurrences()
    assert len(matches) > 50
    assert [_described(match) for match in matches] == [_described(match) for match in expected]


def _described(match: Occurrence) -> Any:
    return match.us, match.name, dict(match.params), dict(match.parts)


def test_columnar_detector_of_what_it_cannot_do_says_why_and_what_to_use() -> None:
    with pytest.raises(PatternError, match=r"may end with a negation.*use a Detector"):
        ColumnarDetector(seq(A, ~N).within(5))
