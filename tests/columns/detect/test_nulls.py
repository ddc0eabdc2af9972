"""A column's values, and not how it is kept, decide how conditions judge it."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from activedb.columns.detect._detector import ColumnarDetector
from activedb.columns.events import EventColumns
from activedb.events import Detector, event, seq
from activedb.events.terms import part
from tests.events.descriptions import Labels, described_match

from .strategies import batches, events, is_supported, sequences

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
TYPES = (pa.null(), pa.int64(), pa.int8(), pa.float64(), pa.string(), pa.bool_(), pa.float32())


@pytest.mark.parametrize("type_", TYPES, ids=str)
@pytest.mark.parametrize("values", [["v"], [1], [1.5], [True]], ids=str)
def test_column_of_nulls_alone_goes_with_values_of_any_kind(type_: Any, values: list[Any]) -> None:
    pattern = seq(event("B").named("p0"), event("C").named("p1")).where(
        part("p0").s == part("p1").s
    )
    detector = ColumnarDetector(pattern.within(9).selecting("next").context("chronicle"))

    def feed(name: str, us: int, column: Any) -> int:
        return len(detector.feed(EventColumns.of_arrays([name], [0], [us], {"s": column})))

    assert feed("B", 1, pa.nulls(1, type_)) == 0
    assert feed("B", 2, pa.array(values)) == 0
    assert feed("C", 3, pa.nulls(1, type_)) == 0
    assert feed("C", 4, pa.array(values)) == 1


@pytest.mark.long
@settings(
    max_examples=200 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(st.data())
def test_columns_of_any_form_refuse_no_event_that_a_detector_takes(data: Any) -> None:
    expression = data.draw(sequences().filter(is_supported))
    found = data.draw(events())
    cut = data.draw(batches(found))
    labels = Labels()
    for o in found:
        labels.add(o)
    alone, detector = Detector(expression), ColumnarDetector(expression)
    expected: list[Any] = []
    for o in found:
        expected += alone.advance(o.us)
        expected += alone.feed(o)
    matches: list[Any] = []
    for batch in cut:
        plain = EventColumns.of_occurrences(batch)
        params = {
            name: data.draw(_forms([o.params[name] for o in batch]), label=name)
            for name in plain.params
        }
        columns = EventColumns(
            plain.keys, plain.codes, plain.us, plain.ids, params, plain.occurrences
        )
        matches += detector.feed(columns).occurrences()
    assert [described_match(m, labels) for m in matches] == [
        described_match(m, labels) for m in expected
    ]


def _forms(values: list[Any]) -> st.SearchStrategy[Any]:
    """The arrays that may hold some values."""
    plain = np.empty(len(values), object)
    plain[:] = values
    forms: list[Any] = [plain]
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        forms += [pa.nulls(len(values), type_) for type_ in TYPES]
    elif kinds <= {int, float} or len(kinds) == 1:
        if kinds == {int, float}:
            values = [None if value is None else float(value) for value in values]
        forms.append(pa.array(values))
        forms.append(pa.array(values).dictionary_encode())
        if None not in values:
            forms.append(np.array(values))
    return st.sampled_from(range(len(forms))).map(forms.__getitem__)
