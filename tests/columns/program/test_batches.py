"""Events in columns: what is taken, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb.columns.events import EventColumns
from activedb.columns.program._run import ColumnRun
from activedb.errors import BadEvent
from activedb.events import Occurrence
from activedb.scheduling import Access, Program, ProgramRun, SerialOrder, SharedTable

pytestmark = pytest.mark.long


def counters() -> Program:
    table = SharedTable("counters", initial=0, size=4)
    program = Program("count", [table])

    @program.on("ADD")
    def add(e: Any, access: Access) -> None:
        access.write(table[e["key"]], lambda value, amount: value + amount, e["amount"])

    return program


def fed(batch: EventColumns) -> tuple[dict[object, float], list[tuple[int, str]]]:
    run = ColumnRun(counters(), decision="python")
    results = run.feed(batch, 100)
    return run.state.newest(run.program.tables[0]), [(r.row, r.reason) for r in results.refused]


def test_batch_types_may_be_names() -> None:
    batch = EventColumns.of_arrays(["B", "A"], ["A", "B", "A"], [3, 1, 2])
    assert batch.codes.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("codes", "us", "params", "said"),
    [
        ([0, 1], [1, 2], {}, "codes must be from 0 to 0"),
        (["ADD", "SUB"], [1, 2], {}, "codes must be from 0 to 0"),
        ([0, 0], [1.5, 2], {}, "us must be one array of integers"),
        ([0], [1, 2], {}, "column 'codes' has 1 rows"),
        ([0, 0], [1, 2], {"key": [1]}, "column 'key' has 1 rows"),
        ([0, 0], [1, 2], {"key": np.zeros((2, 2))}, "an array of one dimension, not 2"),
    ],
)
def test_batch_of_arrays_that_do_not_fit_is_refused(
    codes: Any, us: Any, params: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadEvent, match=said):
        EventColumns.of_arrays(["ADD"], codes, us, params)


def test_table_of_an_atomic_batch_gives_events_of_rows_with_type_and_time() -> None:
    table = pa.table(
        {
            "event_type": ["ADD", None, "ADD", "OTHER"],
            "event_time_us": pa.array([3, 1, None, 2], pa.int64()),
            "event_id": ["x", None, None, None],
            "p_key": [1, 1, 1, 1],
            "p_amount": [1.5, 1.5, None, 1.5],
            "raw": [None, "{}", "{}", None],
        }
    )
    batch = EventColumns.of_table(table)
    assert [batch.types[code] for code in batch.codes] == ["ADD", "OTHER"]
    assert batch.us.tolist() == [3, 2]
    assert batch.ids is not None
    assert batch.ids.to_pylist() == ["x", None]
    newest, refused = fed(batch)
    assert newest == {1: 1.5}
    assert refused == [(1, "program count has no state access for it, only for ADD")]


def test_table_without_times_is_refused() -> None:
    with pytest.raises(BadEvent, match="needs the columns event_time_us"):
        EventColumns.of_table(pa.table({"event_type": ["ADD"]}))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (np.array([0, 4, 1]), "AccessError: 4 is not a key of table counters"),
        (np.array([0, -1, 1]), "AccessError: -1 is not a key"),
        ([0, None, 1], "AccessError: None is not a key"),
        ([0, "1", 1], "AccessError: '1' is not a key"),
        ([0, True, 1], "AccessError: True is not a key"),
        ([0, float("nan"), 1], "AccessError: nan is not a key"),
        ([0, 2**70, 1], "AccessError: 1180591620717411303424 is not a key"),
    ],
)
def test_event_with_an_impossible_key_is_refused_and_others_are_not(keys: Any, said: str) -> None:
    batch = EventColumns.of_arrays(
        ["ADD"], [0, 0, 0], [1, 2, 3], {"key": keys, "amount": np.ones(3)}
    )
    newest, [(row, reason)] = fed(batch)
    assert newest == {0: 1.0, 1: 1.0}
    assert row == 1
    assert reason.startswith(said)


def test_keys_that_are_floats_are_refused_as_the_general_way_does() -> None:
    batch = EventColumns.of_arrays(
        ["ADD"], [0, 0], [1, 2], {"key": np.array([0.0, np.nan]), "amount": np.ones(2)}
    )
    newest, refused = fed(batch)
    assert newest == {}
    assert [reason[:29] for _, reason in refused] == [
        "AccessError: 0.0 is not a key",
        "AccessError: nan is not a key",
    ]


def test_events_that_lack_a_parameter_are_refused() -> None:
    batch = EventColumns.of_arrays(["ADD"], [0, 0], [1, 2], {"key": [0, 1]})
    assert fed(batch) == ({}, [(0, "it lacks 'amount'"), (1, "it lacks 'amount'")])


def test_null_argument_aborts_its_own_s_transaction() -> None:
    run = ColumnRun(counters())
    batch = EventColumns.of_arrays(["ADD"], [0, 0], [1, 2], {"key": [0, 1], "amount": [2.0, None]})
    results = run.feed(batch, 10)
    assert results.committed.tolist() == [True, False]
    reason = results.outcome(1).reason
    assert reason is not None
    assert reason.startswith("TypeError")


def test_late_events_are_refused() -> None:
    run = ColumnRun(counters(), decision="python")
    one = {"key": [0], "amount": [1.0]}
    run.feed(EventColumns.of_arrays(["ADD"], [0], [50], one), 60)
    results = run.feed(EventColumns.of_arrays(["ADD"], [0], [59], one), 70)
    assert [(r.row, r.reason) for r in results.refused] == [
        (0, "it came too late: its time is before the punctuation 60")
    ]
    assert len(results) == 0


def test_event_that_lacks_a_parameter_is_refused_and_a_null_is_passed_on() -> None:
    found = [
        Occurrence("ADD", 1.0, {"key": 1, "amount": 2.5}),
        Occurrence("ADD", 2.0, {"key": 1}, id="x"),
        Occurrence("ADD", 3.0, {"amount": 1.5}),
        Occurrence("ADD", 4.0, {"key": 1, "amount": None}),
        Occurrence("ADD", 5.0, {"key": None, "amount": 1.5}),
        Occurrence("ADD", 6.0, {"key": 1, "amount": 1.5}),
    ]
    columns = EventColumns.of_occurrences(found)
    run = ColumnRun(counters())
    results = run.feed(columns, 7_000_000)
    assert results.committed.tolist() == [True, False, True]
    assert [(r.row, r.reason[:29]) for r in results.refused] == [
        (1, "it lacks 'amount'"),
        (2, "it lacks 'key'"),
        (4, "AccessError: None is not a ke"),
    ]
    assert run.state.newest(run.program.tables[0]) == {1: 4.0}
    assert columns.to_occurrences() == found


PARAMS = st.dictionaries(
    st.sampled_from(["key", "amount", "note"]), st.one_of(st.none(), st.integers(0, 4)), max_size=3
)


@given(
    st.lists(st.tuples(st.sampled_from(["ADD", "DOUBLE", "OTHER"]), PARAMS), max_size=12),
    st.integers(0, 12),
)
def test_events_with_any_parameters_are_refused_and_told_as_row_by_row(
    events: list[tuple[str, dict[str, Any]]], cut: int
) -> None:
    table = SharedTable("counters", initial=1, size=4)
    program = Program("count", [table])

    @program.on("ADD")
    def add(e: Any, access: Access) -> None:
        note = e["note"]
        access.write(table[e["key"]], lambda value, amount: value + (amount or 7), e["amount"])
        del note  # taken, and so needed, although no operation uses it

    @program.on("DOUBLE")
    def double(e: Any, access: Access) -> None:
        access.write(table[e["key"]], lambda value: value * 2)

    @program.post_process
    def tell(type_: str, params: Any, outcome: Any) -> Any:
        return type_, dict(params), outcome.reason

    found = [Occurrence(name, float(place), params) for place, (name, params) in enumerate(events)]
    general, run = ProgramRun(program, SerialOrder()), ColumnRun(program, decision="python")
    for part, punctuation_us in ((found[:cut], None), (found[cut:], 20_000_000)):
        expected = general.feed(part, punctuation_us)
        results = run.feed(EventColumns.of_occurrences(part), punctuation_us)
        assert results.outputs() == expected.outputs
        assert [(part[r.row], r.reason) for r in results.refused] == [
            (r.event, r.reason) for r in expected.refused
        ]
    assert run.state.newest(table) == general.state.of(table).newest()
