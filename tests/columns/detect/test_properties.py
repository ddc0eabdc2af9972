"""Matches found in columns are those the definitions enumerate, however the events are cut."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import activedb as adb
from activedb.columns.detect._detector import ColumnarDetector
from activedb.columns.events import EventColumns
from activedb.errors import BadEvent
from activedb.events import Occurrence, attr, event, part, seq
from tests.events.descriptions import Labels, described_made, described_match
from tests.events.reference import Reference

from .strategies import batches, events, is_supported, sequences

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


@pytest.mark.long
@settings(
    max_examples=300 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(st.data())
def test_columnar_detector_of_a_random_sequence_finds_what_the_reference_enumerates(
    data: Any,
) -> None:
    expression = data.draw(sequences().filter(is_supported))
    found = data.draw(events())
    cut = data.draw(batches(found))
    labels = Labels()
    for o in found:
        labels.add(o)
    reference, detector = Reference(expression), ColumnarDetector(expression)
    expected, matches = [], []
    for o in found:
        reference.advance(o.us)
        expected += [described_made(made, labels) for made in reference.feed(o)]
    for batch in cut:
        matches += [
            described_match(match, labels)
            for match in detector.feed(EventColumns.of_occurrences(batch)).occurrences()
        ]
    assert matches == expected


@pytest.mark.long
@settings(max_examples=100 * SCALE, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_columnar_detector_of_arrow_columns_finds_what_it_finds_of_occurrences(data: Any) -> None:
    expression = data.draw(sequences().filter(is_supported))
    found = data.draw(events())
    keys = data.draw(
        st.sampled_from([pa.int64(), pa.int8(), pa.float64(), pa.string(), pa.bool_(), None])
    )
    by_row, by_column = ColumnarDetector(expression), ColumnarDetector(expression)
    for batch in data.draw(batches(found)):
        table = _table(batch, keys)
        if keys is None:  # texts, and what is NULL among them, with a dictionary
            place = table.column_names.index("p_k")
            table = table.set_column(place, "p_k", table.column("p_k").dictionary_encode())
        columns = EventColumns.of_table(table)
        plain = EventColumns.of_occurrences(columns.to_occurrences())
        expected, matches = by_row.feed(plain), by_column.feed(columns)
        assert matches.us.tolist() == expected.us.tolist()
        for name in expression.names:
            assert matches.rows(name).tolist() == expected.rows(name).tolist()
            assert matches.offsets(name).tolist() == expected.offsets(name).tolist()
        assert [_plain(match) for match in matches.occurrences()] == [
            _plain(match) for match in expected.occurrences()
        ]


KINDS = [
    *("?", "i1", "u8", "i8", "f2", "f8", "g", "c8", "c16", "M8[us]", "m8[us]", "U3", "S3", "O"),
    *(pa.int8(), pa.uint64(), pa.float32(), pa.bool_(), pa.string(), pa.date32()),
]
CONDITIONS = [
    seq(event("A", where=attr("x") != attr("y")), event("B")).within(10),
    seq(event("A"), event("B")).where(part("A").x == part("B").x).within(10),
    seq(event("A"), event("B")).where(part("A").x != part("B").y).within(10),
    seq(event("A"), event("B")).same("x").within(10),
    seq(event("A"), event("B")).within(10),
]


def column(kind: Any, values: list[int], at: int | None) -> Any:
    """Values as a column of this type; an Arrow column in two chunks if they are divided."""
    if isinstance(kind, str):
        made = np.array(values, "i8").astype(kind)
        return made + made.dtype.type(1j) if made.dtype.kind == "c" else made
    whole = pa.array(values, pa.int32()).cast(kind)
    return whole if at is None else pa.chunked_array([whole[:at], whole[at:]])


@pytest.mark.long
@settings(max_examples=300 * SCALE, deadline=None)
@given(st.data())
def test_columnar_detector_of_columns_of_any_type_loses_no_match_silently(data: Any) -> None:
    rows = data.draw(st.integers(1, 6))
    types = data.draw(st.lists(st.sampled_from("ABC"), min_size=1, max_size=5))
    codes = data.draw(st.lists(st.integers(0, len(types) - 1), min_size=rows, max_size=rows))
    params = {
        name: column(
            data.draw(st.sampled_from(KINDS)),
            data.draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)),
            data.draw(st.one_of(st.none(), st.integers(0, rows))),
        )
        for name in "xy"
    }
    expression = data.draw(st.sampled_from(CONDITIONS))
    events = EventColumns.of_arrays(types, codes, list(range(rows)), params)
    found, refused = [], False
    try:
        found = ColumnarDetector(expression).feed(events).occurrences()
    except BadEvent:  # instead of a wrong answer
        refused = True
    if not refused:
        expected = adb.detect(expression, events.to_occurrences())
        assert [_plain(match) for match in found] == [_plain(match) for match in expected]


def _table(batch: list[Occurrence], keys: Any) -> pa.Table:
    """An atomic batch's table, the parameter k of one type."""

    def key(value: Any) -> Any:
        if value is None or value == "a":
            return None
        if keys is None or keys == pa.string():
            return str(value)
        if keys == pa.bool_():
            return bool(value)
        return float(value) if keys == pa.float64() else int(value)

    def column(name: str, type_: Any) -> Any:
        return pa.array([o.params[name] for o in batch], type_)

    return pa.table(
        {
            "event_type": pa.array([o.name for o in batch], pa.string()),
            "event_time_us": pa.array([o.us for o in batch], pa.int64()),
            "event_id": pa.array([o.id for o in batch], pa.string()),
            "p_k": pa.array([key(o.params["k"]) for o in batch], keys or pa.string()),
            "p_j": column("j", pa.int64()),
            "p_x": column("x", pa.int32()),
            "p_y": column("y", pa.float64()),
            "p_s": column("s", pa.string()),
            "raw": pa.nulls(len(batch), pa.string()),
        }
    )


def _plain(match: Occurrence) -> Any:
    return match.us, match.name, dict(match.params), [repr(p) for p in match.parts.values()]
