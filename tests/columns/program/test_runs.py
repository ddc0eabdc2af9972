"""Programs in columns: results, decisions, functions that stay in Python, state."""

from __future__ import annotations

import copy
import gc
import json
import math
import operator
import pickle
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial, singledispatch
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from activedb.clock import moment_of
from activedb.columns.events import EventColumns
from activedb.columns.program import _run
from activedb.columns.program._layout import supports
from activedb.columns.program._run import ColumnRun
from activedb.columns.program._state import ColumnState
from activedb.errors import DefinitionError
from activedb.events import Occurrence, event
from activedb.scheduling import REMOVED, At, Program, ProgramRun, SerialOrder, SharedTable

from .shapes import LEDGER, WINDOWED
from .twins import Event, batch_of, compare, events_of

pytestmark = pytest.mark.long


@cache
def one_table(function: Any, **table: Any) -> Program:
    """A program of one operation; one for each function, which is compiled once."""
    values = SharedTable("values", **{"initial": 4, "size": 4, **table})
    program = Program("one", [values])

    @program.on("E")
    def access(e: Any, access: Any) -> None:
        access.write(values[e["key"]], function, e["x"])

    return program


def run_one(function: Any, xs: Any, **given: Any) -> ColumnRun:
    run = ColumnRun(one_table(function), **given)
    count = len(xs)
    batch = EventColumns.of_arrays(
        ["E"], np.zeros(count, np.int64), np.arange(count), {"key": np.arange(count) % 4, "x": xs}
    )
    run.feed(batch, count)
    return run


# -- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["serial", "python"])
def test_results_values_are_columns_by_type_and_operation(decision: str) -> None:
    events = [
        Event("DEPOSIT", 1, None, {"from": 0, "to": 1, "amount": 5.0}),
        Event("LOOK", 2, None, {"from": 1, "to": 0, "amount": 0.0}),
        Event("TRANSFER", 3, None, {"from": 0, "to": 1, "amount": 99.0}),
        Event("LOOK", 4, None, {"from": 0, "to": 1, "amount": 0.0}),
        Event("TRANSFER", 5, None, {"from": 0, "to": 1, "amount": -1.0}),
    ]
    run = ColumnRun(LEDGER, decision=decision)
    results = run.feed(batch_of(LEDGER.types, events), 10)
    assert results.decision == decision
    assert results.committed.tolist() == [True, True, False, True, False]
    assert results.reasons.tolist() == [0, 0, 1, 0, 65535]
    assert results.of_type("LOOK").tolist() == [1, 3]
    assert results.values("DEPOSIT", 0).tolist() == [15.0]
    assert results.values("LOOK", 0).tolist() == [[15.0, 1.0], [10.0, 1.0]]
    assert results.values("LOOK", 1).tolist() == [55.0, 45.0]
    assert results.values("LOOK", 2).tolist() == [1.0, 2.0]
    assert np.isnan(results.values("TRANSFER", 1)).all()
    assert results.outcome(3).results == ((10.0, 1.0), 45.0, 2.0)
    assert results.outcome(2).reason == "accounts[0] was not written: the function gave None"
    assert results.outcome(4).reason == "less than nothing is shared"
    with pytest.raises(DefinitionError, match="LOOK has 3 operations"):
        results.values("LOOK", 3)
    with pytest.raises(DefinitionError, match="does not take OTHER"):
        results.values("OTHER", 0)


def test_results_outputs_are_those_of_post_processing() -> None:
    program = one_table.__wrapped__(lambda value, x: value + x)

    @program.post_process
    def output(type_: str, params: Any, outcome: Any) -> Any:
        return (params["key"], outcome.results[0]) if params["x"] else None

    run = ColumnRun(program, decision="python")
    params = {"key": [3, 2, 1], "x": [1, 0, None]}
    results = run.feed(EventColumns.of_arrays(["E"], [0] * 3, [1, 2, 3], params), 5)
    assert results.outputs() == [(3, 5.0)]
    assert results.failed_outputs == []


def test_results_outputs_that_fail_are_told_and_others_are_not_lost() -> None:
    program = one_table.__wrapped__(lambda value, x: value + x)

    @program.post_process
    def output(type_: str, params: Any, outcome: Any) -> Any:
        return 1 / params["x"]

    run = ColumnRun(program, decision="python")
    batch = EventColumns.of_arrays(["E"], [0, 0], [1, 2], {"key": [3, 2], "x": [0, 2]})
    results = run.feed(batch, 5)
    assert results.outputs() == [0.5]
    [(number, error)] = results.failed_outputs
    assert (number, type(error)) == (0, ZeroDivisionError)


def test_results_of_functions_that_give_no_numbers_are_in_outcomes_alone() -> None:
    table = SharedTable("values", initial=4, size=4)
    program = Program("one", [table])

    @program.on("E")
    def access(e: Any, access: Any) -> None:
        access.read(table[e["key"]], function=lambda value: (value, value))

    results = ColumnRun(program).feed(EventColumns.of_arrays(["E"], [0], [1], {"key": [3]}), 5)
    assert np.isnan(results.values("E", 0)).all()
    assert results.outcome(0).results == ((4.0, 4.0),)


def test_changes_are_what_was_written_since_the_last_settlement() -> None:
    run = run_one(lambda value, x: REMOVED if x < 0 else x, np.array([1.0, 2.0]))
    table = run.program.tables[0]
    keys, values, there = run.state.changes(table)
    assert (keys.tolist(), values.tolist(), there.tolist()) == ([0, 1], [1.0, 2.0], [True, True])
    run.state.settle()
    run.feed(EventColumns.of_arrays(["E"], [0, 0], [7, 8], {"key": [1, 2], "x": [-1.0, 3.0]}), 9)
    keys, values, there = run.state.changes(table)
    assert (keys.tolist(), values.tolist(), there.tolist()) == ([1, 2], [4.0, 3.0], [False, True])
    assert run.state.newest(table) == {0: 1.0, 2: 3.0}


def test_parameter_that_is_a_key_for_one_type_may_be_an_argument_for_another() -> None:
    table = SharedTable("values", initial=4, size=4)
    program = Program("two", [table])

    @program.on("KEY")
    def as_key(e: Any, access: Any) -> None:
        access.write(table[e["x"]], lambda value: value + 1)

    @program.on("ARGUMENT")
    def as_argument(e: Any, access: Any) -> None:
        access.write(table[0], lambda value, x: value + x, e["x"])

    for xs in ([2, 2.5, 1], [2, -7, 1]):
        run = ColumnRun(program)
        batch = EventColumns.of_arrays(program.types, [0, 1, 0], [1, 2, 3], {"x": xs})
        assert run.feed(batch, 5).committed.all()
        assert run.state.newest(table) == {0: 4.0 + xs[1], 1: 5.0, 2: 5.0}


def test_finish_moves_the_punctuation_past_what_it_ran() -> None:
    run = run_one(lambda value, x: x, [1.0, 2.0])
    run.feed(EventColumns.of_arrays(["E"], [0], [50], {"key": [0], "x": [3.0]}))
    assert run.waiting == 1
    assert len(run.finish()) == 1
    late = run.feed(EventColumns.of_arrays(["E"], [0], [50], {"key": [0], "x": [4.0]}), 60)
    assert [refusal.row for refusal in late.refused] == [0]
    again = ColumnRun(run.program, state=run.state, punctuation_us=51)
    assert len(
        again.feed(EventColumns.of_arrays(["E"], [0], [9], {"key": [0], "x": [1.0]})).refused
    )


def test_feed_that_was_interrupted_leaves_no_version() -> None:
    class Stop(BaseException):
        pass

    stops = [True]

    def function(value: float, x: float) -> float:
        if x == 2 and stops:
            raise Stop
        return x

    run = ColumnRun(one_table(function, history=1), decision="python")
    table = run.program.tables[0]

    def feed(start: int) -> None:
        us = np.arange(start, start + 4)
        params = {"key": np.zeros(4, int), "x": np.arange(4.0)}
        run.feed(EventColumns.of_arrays(["E"], np.zeros(4, int), us, params), start + 10)

    with pytest.raises(Stop):
        feed(0)
    stops.clear()
    feed(10)
    assert [value for _, value in run.state.all(table)[0]] == [0.0, 1.0, 2.0, 3.0]


# -- which functions are compiled ------------------------------------------------------------------


def helper(value: float) -> float:
    return value * 2


SHIFT = 3.0


def with_helper(value: float, x: float) -> float:
    return helper(value) + x + SHIFT + math.floor(x)


def test_functions_that_a_function_calls_are_compiled_with_it() -> None:
    run = run_one(with_helper, np.array([1.5]))
    assert run.not_compiled is None
    assert run.state.newest(run.program.tables[0]) == {0: 13.5}


def with_log(value: float, x: float) -> float:
    return math.log(x)


def with_power(value: float, x: float) -> float:
    return float(value**x)


def with_time(value: float, x: float) -> float:
    return float(threading.get_ident() > 0)


def with_default(value: float, x: float, y: float = 1.0) -> float:
    return value + x + y


def with_list(value: float, x: float) -> float:
    return float(len(sorted([value, x])))


def with_itself(value: float, x: float) -> float:
    return value if x <= 0 else with_itself(value, x - 1)


def with_products(value: float, x: int) -> float:
    for _ in range(40):
        x = x * 31 + 7
    return float(x % 1000)


def with_inversion(value: float, x: int) -> float:
    return value + ~int(x)


def with_text(value: float, x: float) -> float:
    return float(f"{value + x}")


def with_shift(value: float, x: int) -> float:
    return value + (1000 >> int(abs(x)))


def with_sums(value: float, x: int) -> float:
    a, b = 0, 1
    for _ in range(100):
        a, b = b, a + b
    return float(a % 1000) + x


def with_doubling(value: float, x: int) -> float:
    n = int(x)
    for _ in range(70):
        n += n
    return float(n % 1000)


def with_a_large_number(value: float, x: float) -> float:
    return 1.0 if value < 2**60 + 1 else x


def with_nothing_yet(value: float, x: float) -> float:
    if x > 0:
        y = x
    return y


def with_nothing_in_a_loop(value: float, x: float) -> float:
    for n in range(int(abs(x))):
        value += n
    return float(n)


def with_a_deleted_one(value: float, x: float) -> float:
    y = x
    if x > 0:
        del y
    return y


def with_all_ways(value: float, x: float) -> float:
    if x > 0:
        y = 1.0
    elif x < -5:
        raise ValueError
    else:
        y = 2.0
    for n in range(3):
        z = y + n
        value += z
    while value > 100:
        w = 3.0
        value -= w
    return value + y


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, value: float) -> float:
        return value + 1.0


UNHASHABLE = Unhashable()


def with_an_object(value: float, x: float) -> float:
    return UNHASHABLE(value) + x


def test_function_that_calls_an_object_stays_in_python() -> None:
    run = run_one(with_an_object, np.array([1.5]))
    assert run.not_compiled is not None
    assert run.state.newest(run.program.tables[0]) == {0: 6.5}


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (with_shift, "overflows in another way"),
        (operator.rshift, "is not compiled"),
        (with_sums, "adds whole numbers in a loop"),
        (with_doubling, "adds whole numbers in a loop"),
        (with_a_large_number, "beyond 2**53"),
        (with_nothing_yet, "y may have no value"),
        (with_nothing_in_a_loop, "n may have no value"),
        (with_a_deleted_one, "y may have no value"),
        (with_all_ways, None),
        (with_log, "math.log gives something else"),
        (with_power, "overflows in another way"),
        (with_time, "uses the module threading"),
        (with_default, "has default values"),
        (with_list, "sorted is not compiled"),
        (with_itself, "calls itself"),
        (with_inversion, "~ of a boolean"),
        (math.hypot, "is not compiled"),
        (max, None),
    ],
)
def test_functions_that_would_give_something_else_stay_in_python(
    function: Any, why: str | None
) -> None:
    xs = np.array([1.0, -1.0, 0.5])
    run = run_one(function, xs)
    if why is None:
        assert run.not_compiled is None
    else:
        assert run.not_compiled is not None
        assert why in run.not_compiled
    python = run_one(function, xs, decision="python")
    table, other = run.program.tables[0], python.program.tables[0]
    assert run.state.newest(table) == python.state.newest(other)


def test_function_that_multiplies_whole_numbers_in_a_loop_stays_in_python() -> None:
    run = run_one(with_products, np.array([3, 4]))
    assert "multiplies whole numbers in a loop" in str(run.not_compiled)
    expected = {key: with_products(0.0, x) for key, x in ((0, 3), (1, 4))}
    assert run.state.newest(run.program.tables[0]) == expected


def test_function_that_numba_cannot_compile_runs_in_python() -> None:
    run = run_one(with_text, np.array([1.5]))
    assert run.not_compiled is not None
    assert run.state.newest(run.program.tables[0]) == {0: 5.5}


def remainder(value: float, x: float) -> float:
    return float(int(value * x) % 7)


def rounded(value: float, x: float) -> float:
    return math.floor(x) + round(x) * 0.1 + math.ceil(x) * 7.0 + int(x) * 0.5


def root(value: float, x: float) -> float:
    return math.sqrt(x)


def product(value: float, x: float) -> float:
    return float(int(x) * 1000 % 997)


def added(value: float, x: int) -> float:
    return 1.0 if x + 1 > value else 2.0


def twice(x: int) -> int:
    return x + x


def doubled_often(value: float, x: int) -> float:
    return float(twice(twice(twice(twice(twice(twice(twice(twice(x + x)))))))) % 1000)


def compared(value: float, x: int) -> float:
    return 1.0 if x * 3 > value * 3.0 else 2.0


@pytest.mark.parametrize("function", [added, doubled_often, compared, product])
def test_whole_numbers_are_exact_beside_floats(function: Any) -> None:
    powers = [2**n + d for n in (25, 26, 27, 31, 40, 45, 50, 51, 52, 53) for d in (-1, 0, 1)]
    for initial in (2.0**26, 2.0**53, 2.0**31 + 1):
        runs = []
        for decision in (None, "python"):
            run = ColumnRun(one_table(function, initial=initial, size=1), decision=decision)
            for n, x in enumerate(powers):
                batch = EventColumns.of_arrays(["E"], [0], [n], {"key": [0], "x": [x]})
                run.feed(batch, n + 1)
                runs.append((x, run.state.newest(run.program.tables[0])))
            assert decision or run.not_compiled is None
        half = len(runs) // 2
        assert runs[:half] == runs[half:]


@pytest.mark.parametrize("function", [remainder, rounded, root, product])
def test_numbers_that_have_no_place_in_64_bits_are_those_of_python(function: Any) -> None:
    whole: list[Any] = [2**31 + 11, 2**40 + 1, -(2**53) + 1, 77]
    for xs in ([1e15 + 0.5, 2.5, -0.5, -7.25], [8e15, 3e15, 1e18, 2.0], whole, [2**70] * 4):
        runs = [run_one(function, xs), run_one(function, xs, decision="python")]
        assert runs[0].not_compiled is None
        found = [run.state.newest(run.program.tables[0]) for run in runs]
        assert found[0] == found[1]


def test_arguments_that_are_not_exact_run_in_python() -> None:
    for x in (2**53 + 1, 2**70, 1e300, math.inf, math.nan):
        assert not run_one(remainder, [x]).not_compiled


def doubled(value: float, x: float) -> float:
    return value * 2.0 + x


def test_large_whole_numbers_are_compiled_where_none_are_multiplied() -> None:
    for xs, said in (([2**40], None), ([2**60], "x has numbers"), ([2**70], "x has values")):
        run = ColumnRun(one_table(doubled))
        batch = EventColumns.of_arrays(["E"], [0], [1], {"key": [0], "x": xs})
        results = run.feed(batch, 10)
        assert str(results.not_compiled).startswith(str(said))
        assert run.not_compiled is None
        assert run.state.newest(run.program.tables[0]) == {0: 8.0 + xs[0]}


# -- decisions -------------------------------------------------------------------------------------


def burn(value: float, x: float) -> float:
    for _ in range(int(x)):
        value = 3.7 * value * (1.0 - value)
    return value


BURNER = one_table(burn)


def burnt(keys: Any, **given: Any) -> tuple[str, dict[Any, float]]:
    """Return the decision for the second batch if operations take long."""
    run = ColumnRun(BURNER, **given)
    count = len(keys)
    params = {"key": keys, "x": np.full(count, 100_000.0)}
    for start in (0, count):
        us = np.arange(start, start + count)
        results = run.feed(
            EventColumns.of_arrays(["E"], np.zeros(count, int), us, params), us[-1] + 1
        )
    return results.decision, run.state.newest(BURNER.tables[0])


def test_run_of_long_operations_without_conflicts_is_parallel() -> None:
    decision, newest = burnt(np.arange(80) % 4)
    assert decision == "parallel"
    assert (decision, newest) == burnt(np.arange(80) % 4, decision="parallel")


def test_run_of_long_operations_that_all_conflict_is_serial() -> None:
    decision, newest = burnt(np.zeros(80, int))
    assert decision == "serial"
    assert (decision, newest) == burnt(np.zeros(80, int), decision="serial")


def test_run_on_one_thread_is_serial() -> None:
    assert burnt(np.arange(20) % 4, threads=1)[0] == "serial"


@pytest.mark.parametrize(("row_s", "expected"), [(0.04e-6, "serial"), (2e-6, "parallel")])
def test_cost_of_a_call_does_not_count_as_that_of_the_first_rows(
    row_s: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [0.0]
    serially = ColumnRun._serially

    def timed(self: ColumnRun, rows: Any, first: int, last: int, arguments: Any) -> int:
        clock_s[0] += 30e-6 + (last - first) * row_s
        return serially(self, rows, first, last, arguments)

    monkeypatch.setattr(ColumnRun, "_serially", timed)
    monkeypatch.setattr(_run, "time", SimpleNamespace(thread_time=lambda: clock_s[0]))
    count, keys = 100_000, 1_000
    run = ColumnRun(one_table(operator.add, size=keys), threads=2)
    columns = {"key": np.arange(count) % keys, "x": np.ones(count)}
    events = EventColumns.of_arrays(["E"], np.zeros(count, np.int64), np.arange(count), columns)
    assert run.feed(events, count).decision == expected


def test_run_in_parallel_passes_on_what_a_thread_raises() -> None:
    class Stop(BaseException):
        pass

    run = ColumnRun(LEDGER, threads=4, decision="parallel")
    before = set(threading.enumerate())
    calls = []

    def alone(rows: Any, row: int) -> None:
        calls.append(row)
        raise Stop

    run._alone = alone  # type: ignore[method-assign]
    events = events_of(LEDGER, ("from", "to"), 5, 400)
    with pytest.raises(Stop):
        run.feed(batch_of((*LEDGER.types, "OTHER"), events), 1000)
    assert calls
    assert set(threading.enumerate()) <= before


def test_garbage_that_is_collected_meanwhile_says_nothing_of_a_state_access() -> None:
    """Callbacks of weak references are called at any instruction, and compare as they like."""
    table = SharedTable("values", initial=1.0, size=8)
    program = Program("allocating", [table])
    called: list[bool] = []

    class Ring:
        def __init__(self) -> None:
            self.itself = self

    def gone(reference: object) -> None:
        called.append(reference is None)

    kept = [weakref.ref(Ring(), gone)]

    @program.on("E")
    def access(e: Any, access: Any) -> None:
        _ = [[] for _ in range(10 * gc.get_threshold()[0])]
        access.write(table[e["x"]], raised)

    assert supports(program) is None
    assert gc.isenabled()
    gc.collect()
    assert called == [False]
    assert kept


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_run_on_any_number_of_threads_gives_the_serial_order(threads: int) -> None:
    for seed in (11, 12):
        run = ColumnRun(WINDOWED, threads=threads, decision="parallel")
        compare(WINDOWED, run, events_of(WINDOWED, ("key", "other"), seed, 600), seed)


def test_run_in_small_parts_with_rows_left_to_python_gives_the_serial_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("activedb.columns.program._run._CHUNK_S", 4e-5)
    for seed in range(3):
        run = ColumnRun(LEDGER, threads=3, decision="parallel")
        compare(LEDGER, run, events_of(LEDGER, ("from", "to"), seed, 600), seed)


def test_run_whose_planner_begins_to_count_anew_gives_the_serial_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("activedb.columns.program._conflicts._NUMBER_MAX", 400)
    run = ColumnRun(LEDGER, threads=2, decision="parallel")
    compare(LEDGER, run, events_of(LEDGER, ("from", "to"), 4, 600), 4)
    assert run._planner is not None
    assert run._planner._rows < 400  # of 600


@pytest.mark.parametrize(
    ("given", "said"),
    [({"decision": "magic"}, "a decision is one of"), ({"threads": 0}, "threads is a whole")],
)
def test_run_with_impossible_settings_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(DefinitionError, match=said):
        ColumnRun(LEDGER, **given)


# -- programs that cannot run in columns -----------------------------------------------------------


TABLE = SharedTable("values", initial=0, size=4, history=10)


def access_that_branches(e: Any, access: Any) -> None:
    if e["x"] > 3:
        access.read(TABLE[e["key"]])


def access_that_compares(e: Any, access: Any) -> None:
    if e["x"] == "a":
        access.read(TABLE[0])


def access_that_asks_for_none(e: Any, access: Any) -> None:
    if e["x"] is None:
        access.read(TABLE[0])


def access_that_lets_another_ask(e: Any, access: Any) -> None:
    access_that_asks_for_none(e, access)


def access_that_catches(e: Any, access: Any) -> None:
    try:
        key = int(e["x"])
    except Exception:
        key = 0
    access.read(TABLE[key])


def access_that_asks_within(e: Any, access: Any) -> None:
    access.read(*(TABLE[0] for name in ("x", "y") if e[name] is not None))


def access_that_gives_a_list(e: Any, access: Any) -> None:
    access.write(TABLE[0], put_all, [e["x"]])


def access_that_gives_all(e: Any, access: Any) -> None:
    access.write(TABLE[0], put_all, e)


def access_that_calls_a_method(e: Any, access: Any) -> None:
    access.read(TABLE[e["x"].strip()])


def put_all(value: float, xs: Any) -> float:
    return value if xs is None else value + len(xs)


def access_that_counts(e: Any, access: Any) -> None:
    access.read(TABLE[e["key"] + 1])


def access_that_asks(e: Any, access: Any) -> None:
    access.read(TABLE[e.get("key", 0)])


def access_that_tells(e: Any, access: Any) -> None:
    if isinstance(e["x"], str):
        access.read(TABLE[0])


def access_of_a_range(e: Any, access: Any) -> None:
    access.read(TABLE.range(e["key"], 3), function=len)


def access_of_a_window(e: Any, access: Any) -> None:
    access.read(TABLE[0].window(1))


def access_of_no_key(e: Any, access: Any) -> None:
    access.read(TABLE[77])


def access_that_writes_text(e: Any, access: Any) -> None:
    access.write(TABLE[0], lambda value, text: value, f"{e['x']}")


def access_that_closes_over_the_event(e: Any, access: Any) -> None:
    access.write(TABLE[0], lambda value: value + e["x"])


def access_that_closes_over_a_parameter(e: Any, access: Any) -> None:
    x = e["x"]
    access.write(TABLE[0], lambda value: value + x)


def access_with_a_partial_function(e: Any, access: Any) -> None:
    access.write(TABLE[0], partial(with_default, x=e["x"]))


@pytest.mark.parametrize(
    ("access", "why"),
    [
        (access_that_branches, "depend on the value of x"),
        (access_that_compares, "depend on the value of x"),
        (access_that_asks_for_none, "depend on the identity or type of a value"),
        (access_that_lets_another_ask, "depend on the identity or type of a value"),
        (access_that_catches, "depend on the value of x"),
        (access_that_asks_within, "depend on the identity or type of a value"),
        (access_that_gives_a_list, "put_all holds a parameter"),
        (access_that_gives_all, "put_all holds a parameter"),
        (access_that_calls_a_method, "depend on the value of x"),
        (access_that_tells, "may depend on isinstance"),
        (access_that_closes_over_the_event, "holds a parameter"),
        (access_that_closes_over_a_parameter, "holds a parameter"),
        (access_with_a_partial_function, "holds a parameter"),
        (access_that_counts, "depend on the value of key"),
        (access_that_asks, "whether there is a key"),
        (access_of_a_range, "by a range"),
        (access_of_a_window, "without a function that folds it"),
        (access_of_no_key, "77 is not a key"),
        (access_that_writes_text, "depend on the value of x"),
    ],
)
def test_program_that_cannot_run_in_columns_says_why(access: Any, why: str) -> None:
    program = Program("odd", [TABLE])
    program.on("E")(access)
    found = supports(program)
    assert found is not None
    assert why in found
    assert "a ProgramRun can run it" in found


def test_program_of_the_short_form_or_with_pre_processing_or_without_size_is_refused() -> None:
    table, loose = SharedTable("t", initial=0, size=4), SharedTable("loose")
    short = Program("short", [table])
    short.transaction("E", reads=lambda e: [table[0]])(lambda t, e: None)
    assert "short form" in str(supports(short))
    pre = Program("pre", [table])
    pre.pre_process(lambda type_, params: params)
    assert "pre-processes" in str(supports(pre))
    assert "has no size" in str(supports(Program("loose", [loose])))
    ruled = Program("ruled", [table])
    ruled.rule(event("E"), reads=lambda o: [table[0]])(lambda t, o: None)
    assert "has rules" in str(supports(ruled))
    assert supports(LEDGER) is None
    with pytest.raises(DefinitionError, match="short form"):
        ColumnRun(short)


def raised(value: float) -> float:
    return value + 1


class Kind:
    def __init__(self, x: Any):
        self.is_number = isinstance(x, float)

    @staticmethod
    def of(x: Any) -> bool:
        return type(x) is float


@dataclass
class Pair:
    first: Any
    second: Any


@singledispatch
def kind_of(x: Any) -> int:
    return 0


@kind_of.register
def _(x: float) -> int:
    return 1


def place_in_match(x: Any) -> int:
    match x:
        case [_, _]:
            return 1
        case {"a": _}:
            return 2
        case float():
            return 3
        case None:
            return 1
        case _:
            return 0


def place_in_class_pattern(x: Any) -> int:
    match x:
        case float(real=_):
            return 1
        case _:
            return 0


def place_in_sequence_pattern(x: Any) -> int:
    match x:
        case [*_]:
            return 1
        case _:
            return 0


def place_in_mapping_pattern(x: Any) -> int:
    match x:
        case {**rest}:
            return len(rest)
        case _:
            return 3


def place_in_value_pattern(x: Any) -> int:
    match x:
        case 1.0:
            return 1
        case _:
            return 0


def place_of_error(x: Any) -> int:
    try:
        return len(",".join([x]))
    except TypeError:
        return 1


def place_of_attribute_error(x: Any) -> int:
    try:
        x.strip()
    except AttributeError:
        return 1
    return 0


def place_of_prefix(x: Any) -> int:
    try:
        return int("a".startswith(x))
    except TypeError:
        return 2


def place_of_slice(x: Any) -> int:
    return len([0, 1, 2][slice(0, x)])


# How a key may depend on a parameter, x.
PLACES: dict[str, Callable[[Any], Any]] = {
    "class": lambda x: int(x.__class__ == float),  # noqa: E721
    "type": lambda x: int(type(x) == float),  # noqa: E721
    "type of three": lambda x: int(type("X", (), {"x": x}).__name__ == "X"),
    "isinstance": lambda x: int(isinstance(x, float)),
    "isinstance elsewhere": lambda x: int(Kind(x).is_number),
    "type elsewhere": lambda x: int(Kind.of(x)),
    "doc": lambda x: int("float" in (x.__doc__ or "")),
    "is None": lambda x: int(x is None),
    "is not None": lambda x: 0 if x is not None else 1,
    "operator.is_": lambda x: int(operator.is_(x, None)),
    "operator.is_not": lambda x: int(operator.is_not(x, None)),
    "attrgetter": lambda x: int(operator.attrgetter("__class__")(x) == float),  # noqa: E721
    "callable": lambda x: int(callable(x)),
    "hash": lambda x: hash(x) % 4,
    "id": lambda x: int(id(x) == id(None)),
    "len": lambda x: len(x) if x else 0,
    "bool": lambda x: 1 if x else 0,
    "not": lambda x: int(not x),
    "and": lambda x: (x and 1) or 0,
    "text": lambda x: len(f"{x}") % 4,
    "text of a kind": lambda x: len(f"{x!r:>5}") % 4,
    "ascii": lambda x: len(ascii(x)) % 4,
    "%": lambda x: len("%s" % x) % 4,  # noqa: UP031
    "% of a tuple": lambda x: len("%r" % (x,)) % 4,  # noqa: UP031
    "format": lambda x: len("{}".format(x)) % 4,  # noqa: UP032
    "format_map": lambda x: len("{x}".format_map({"x": x})) % 4,
    "in a list": lambda x: int(x in [1.0, 7.0]),
    "in a set": lambda x: int(x in {1.0, 7.0}),
    "in nothing": lambda x: int(x in ()),  # noqa: RUF060
    "in itself": lambda x: int(x in [x]),
    "contains": lambda x: int(operator.contains([1.0], x)),
    "count": lambda x: [1.0, 2.0].count(x),
    "hasattr": lambda x: int(hasattr(x, "is_integer")),
    "getattr": lambda x: getattr(x, "nothing", 1),
    "key of a dict": lambda x: {1.0: 1}.get(x, 0),
    "key to a dict": lambda x: {1.0: 1, x: 2}.get(1.0),
    "item of a dict": lambda x: {"a": 1}.get("a", x),
    "error": place_of_error,
    "attribute error": place_of_attribute_error,
    "prefix": place_of_prefix,
    "sorted": lambda x: int(sorted([x, 2.0])[0] == 2.0),
    "sorted alone": lambda x: len(sorted([x])),
    "min": lambda x: int(min(x, 2.0) == 2.0),
    "max by": lambda x: max([0, 1], key=lambda n: x if n else 2.0),
    "max of one": lambda x: int(bool(max([x]))),
    "sum": lambda x: int(sum([x, 1.0])) % 4,
    "any": lambda x: int(any([x])),
    "slice": place_of_slice,
    "item": lambda x: [0, 1, 2, 3][x] if x == 3 else 0,
    "str": lambda x: len(str(x)) % 4,
    "round": lambda x: round(x) % 4,
    "math": lambda x: int(math.isnan(x)),
    "json": lambda x: len(json.dumps(x)) % 4,
    "pickle": lambda x: len(pickle.dumps(x)) % 4,
    "copy": lambda x: int(copy.copy(x) == 1.0),
    "equality of objects": lambda x: int(Pair(x, 1) == Pair(1.0, 1)),
    "text of an object": lambda x: len(repr(Pair(x, 1))) % 4,
    "kind": kind_of,
    "match": place_in_match,
    "match of a class": place_in_class_pattern,
    "match of a sequence": place_in_sequence_pattern,
    "match of a mapping": place_in_mapping_pattern,
    "match of a value": place_in_value_pattern,
    "compared": lambda x: int(x == 1.0),
    "compared with itself": lambda x: int(x != x),
    "taken": lambda x: [x, 1][1],
    "swapped": lambda x: len((x, *[x], {"x": x}["x"])),
}
TRACEABLE = {"in nothing", "in itself", "item of a dict", "sorted alone", "taken", "swapped"}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("xs", [[1.0, 2.0, 7.0, 0.0], [None, 2.0], [[1, 2], {"a": 1}, 3, "s"]])
def test_access_that_may_inspect_a_parameter_is_refused_or_right(name: str, xs: list[Any]) -> None:
    table = SharedTable("values", initial=1.0, size=8)
    program = Program("inspecting", [table])
    place = PLACES[name]

    @program.on("E")
    def access(e: Any, access: Any) -> None:
        access.write(table[place(e["x"])], raised)

    if supports(program) is not None:
        assert name not in TRACEABLE
        return
    assert name in TRACEABLE
    events = [Event("E", us, None, {"x": x}) for us, x in enumerate(xs)]
    occurrences = [
        Occurrence(each.type, moment_of(each.us), each.params, id=None) for each in events
    ]
    general, run = ProgramRun(program, SerialOrder()), ColumnRun(program)
    general.feed(occurrences, len(xs))
    run.feed(EventColumns.of_occurrences(occurrences), len(xs))
    assert run.state.newest(table) == general.state.of(table).newest()


# -- state -----------------------------------------------------------------------------------------


def test_state_goes_on_in_the_general_way_and_back() -> None:
    events = events_of(WINDOWED, ("key", "other"), 21, 300)
    events.sort(key=lambda event: event.us)
    first, second = events[:150], events[150:]
    cut = second[0].us
    first = [event for event in first if event.us < cut]
    types = (*WINDOWED.types, "OTHER")
    whole = ColumnRun(WINDOWED, decision="serial")
    whole.feed(batch_of(types, first), cut)
    there_and_back = ColumnState.of_state(whole.state.to_state())
    again = ColumnRun(WINDOWED, decision="serial", state=there_and_back)
    again.feed(batch_of(types, second), cut + 10_000)
    whole.feed(batch_of(types, second), cut + 10_000)
    for table in WINDOWED.tables:
        assert whole.state.newest(table) == again.state.newest(table)


def test_versions_are_forgotten_when_no_window_can_reach_them() -> None:
    program = one_table(lambda value, x: x, history=0.001)
    run, general = ColumnRun(program, decision="serial"), ProgramRun(program, SerialOrder())
    table = program.tables[0]
    count = 50_000
    for number in range(8):
        us = np.arange(count) + number * count
        params = {"key": us % 4, "x": us.astype(float)}
        run.feed(EventColumns.of_arrays(["E"], np.zeros(count, np.int64), us, params), us[-1] + 1)
    assert run.state.log.used < 4 * count
    kept = run.state.all(table)
    assert {at.us for versions in kept.values() for at, _ in versions} == set(
        range(8 * count - 1000, 8 * count)
    )
    assert all(value == at.us for versions in kept.values() for at, value in versions)
    assert general.state is not None
    assert run.state.mark == At(8 * count, "", 0)


def test_table_of_another_state_is_refused() -> None:
    state = ColumnState(LEDGER.tables)
    with pytest.raises(DefinitionError, match="is not in this state"):
        state.newest(WINDOWED.tables[0])
    with pytest.raises(DefinitionError, match="has no size"):
        ColumnState([SharedTable("loose")])
    with pytest.raises(DefinitionError, match="two shared tables"):
        ColumnState([LEDGER.tables[0], SharedTable("accounts", initial=0, size=1)])
