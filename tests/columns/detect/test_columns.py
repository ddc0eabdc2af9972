"""Events in columns: of arrays, tables and occurrences, ordered, and made occurrences again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from activedb.columns.events import EventColumns
from activedb.errors import BadEvent
from activedb.events import Occurrence, occurrence


class PlainTable:
    """Table with the least that a stream needs: columns of Python objects."""

    def __init__(self, columns: dict[str, list[Any]]):
        self._columns = columns
        self.num_rows = len(next(iter(columns.values())))
        self.column_names = list(columns)

    def column(self, name: str) -> Any:
        return pa.array(self._columns[name])


def test_columns_of_any_table_are_those_of_an_arrow_table() -> None:
    columns: dict[str, list[Any]] = {
        "event_type": ["A", "B", "A"],
        "event_time_us": [3, 2, 1],
        "event_id": [None, "x", None],
        "p_n": [1, 2, None],
    }
    for table in (PlainTable(columns), pa.table(columns)):
        found = EventColumns.of_table(table)
        assert found.keys == (("event", "A"), ("event", "B"))
        assert found.codes.tolist() == [0, 1, 0]
        made = found.to_occurrences()
        assert [(o.name, o.us, o.id, o.params["n"]) for o in made] == [
            ("A", 3, None, 1),
            ("B", 2, "x", 2),
            ("A", 1, None, None),
        ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"event_type": ["A"]}), "needs the columns event_time_us"),
        (PlainTable({"event_type": ["A"], "event_time_us": [1.5]}), "must hold integers"),
    ],
)
def test_columns_of_a_table_that_has_no_events_are_refused(table: Any, message: str) -> None:
    with pytest.raises(BadEvent, match=message):
        EventColumns.of_table(table)


@pytest.mark.parametrize(
    ("codes", "us", "params", "message"),
    [
        ([0], [1.5], {}, "one array of integers"),
        ([[0]], [1], {}, "one array of integers"),
        ([1], [1], {}, "codes must be from 0 to 0"),
        ([0], [1, 2], {}, "the column 'codes' has 1 rows, the times have 2"),
        ([0], [1], {"x": [1, 2]}, "the column 'x' has 2 rows"),
        (0, [1], {}, "the column 'codes' must hold one value for each event, not be 0"),
        (np.array(0), [1], {}, "the column 'codes' must hold one value for each event"),
        ([0], 1, {}, "us must be one array of integers"),
        ([0], [1], {"x": 5}, "the column 'x' must hold one value for each event, not be 5"),
        ([0], [1], {"x": None}, "the column 'x' must hold one value for each event"),
        ([0], [1], {"x": np.array(5)}, "the column 'x' must hold one value for each event"),
        ([0], [1], {"x": np.zeros((1, 1))}, "an array of one dimension, not 2"),
    ],
)
def test_columns_of_arrays_that_do_not_go_together_are_refused(
    codes: Any, us: Any, params: Any, message: str
) -> None:
    with pytest.raises(BadEvent, match=message):
        EventColumns.of_arrays(["A"], codes, us, params)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, 2], "ids must be texts or None"),
        ([b"a\xff", "x"], "ids must be texts or None"),
        (pa.array([[1], [2]]), "ids must be texts or None"),
        (7, "the column 'ids' must hold one value for each event, not be 7"),
        (["a"], "the column 'ids' has 1 rows"),
    ],
)
def test_ids_that_are_no_texts_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(BadEvent, match=message):
        EventColumns.of_arrays(["A"], [0, 0], [1, 2], ids=ids)


def test_columns_in_chunks_are_made_whole() -> None:
    chunks = pa.chunked_array([["k"], ["l", None]])
    for ids in (chunks, chunks.cast(pa.large_string()), chunks.to_pylist()):
        found = EventColumns.of_arrays(["A"], [0] * 3, [1, 2, 3], {"x": chunks}, ids)
        assert [(o.id, o.params["x"]) for o in found.to_occurrences()] == [
            ("k", "k"),
            ("l", "l"),
            (None, None),
        ]
        assert isinstance(found.params["x"], pa.Array)
        assert found.order() is None


def test_equal_types_are_one() -> None:
    names = ["A", "B", "A", "C", "B"]
    codes = [2, 4, 0, 3, 1, 2]
    encoded = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names))
    times = list(range(6))
    for found in (
        EventColumns.of_arrays(names, codes, times),
        EventColumns.of_table(pa.table({"event_type": encoded, "event_time_us": times})),
        EventColumns(tuple(("event", name) for name in names), np.array(codes), np.array(times)),
    ):
        assert found.types == ("A", "B", "C")
        assert found.codes.tolist() == [0, 1, 0, 2, 1, 0]
        assert [o.name for o in found.to_occurrences()] == [names[code] for code in codes]
        assert [o.name for o in found.take(np.array([5, 1])).to_occurrences()] == ["A", "B"]


def test_columns_of_occurrences_give_these_very_occurrences_back() -> None:
    events = [occurrence("A", timestamp=2, x=1), occurrence("B", timestamp=1)]
    columns = EventColumns.of_occurrences(events)
    assert columns.to_occurrences() == events
    order = columns.order()
    assert order is not None
    assert columns.take(order).to_occurrences() == events[::-1]


def test_columns_of_an_occurrence_within_an_interval_are_refused() -> None:
    lasting = Occurrence(
        "composite",
        3,
        parts={"a": occurrence("A", timestamp=1), "b": occurrence("B", timestamp=3)},
    )
    with pytest.raises(BadEvent, match="has no exact time"):
        EventColumns.of_occurrences([lasting])


def test_order_of_columns_is_by_time_then_id_then_row() -> None:
    us = np.array([2, 1, 1, 1, 1])
    columns = EventColumns.of_arrays(["A"], [0] * 5, us, ids=["", "b", None, "a", ""])
    order = columns.order()
    assert order is not None
    assert order.tolist() == [2, 4, 3, 1, 0]
    plain = EventColumns.of_arrays(["A"], [0] * 5, us).order()
    assert plain is not None
    assert plain.tolist() == [1, 2, 3, 4, 0]
    assert EventColumns.of_arrays(["A"], [0] * 3, [1, 1, 2]).order() is None


def test_occurrences_of_columns_have_exact_times_beyond_what_a_float_holds() -> None:
    us = 2**52 + 1
    [o] = EventColumns.of_arrays(["A"], [0], [us], {"x": np.array([1.5])}).to_occurrences()
    assert o.us == us
    assert o.timestamp == datetime.fromtimestamp(us // 1_000_000, UTC).replace(
        microsecond=us % 1_000_000
    )
    assert dict(o.params) == {"x": 1.5}
