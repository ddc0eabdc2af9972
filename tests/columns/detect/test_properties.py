"""Matches found in columns are those the definitions enumerate, however the events are cut."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activedb.columns.detect._detector import ColumnarDetector
from activedb.columns.events import EventColumns
from activedb.events import Occurrence
from tests.events.descriptions import Labels, described_made, described_match
from tests.events.reference import Reference

from .strategies import batches, events, is_supported, sequences

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))


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
