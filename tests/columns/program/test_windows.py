"""Functions on windows: lists in Python, arrays without bounds checks if compiled."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from activedb.columns.events import EventColumns
from activedb.columns.program._run import ColumnRun
from activedb.events import occurrence
from activedb.scheduling import Program, ProgramRun, SerialOrder, SharedTable

pytestmark = pytest.mark.long


def _changed(value: float, window: Any, x: float) -> float:
    window[0] = 99.0
    return value + x


def _folded(value: float, window: Any, x: float) -> float:
    total = 0.0
    for past in window:
        total = total * 3 + past
    return value + total + len(window) + x


TABLE = np.arange(4.0)

MISUSED: dict[str, Callable[..., Any]] = {
    "last of an empty one": lambda value, window, x: window[-1] + x,
    "a slice": lambda value, window, x: len(window[1:]) + x,
    "repeated": lambda value, window, x: len(window * 2) + x,
    "joined": lambda value, window, x: len(window + window) + x,
    "looked up": lambda value, window, x: 1.0 if x in window else 0.0,
    "a method of arrays": lambda value, window, x: window.sum() + x,
    "changed": _changed,
    "an array beyond its bounds": lambda value, window, x: TABLE[len(window) + 3] + x,
    "a builtin": lambda value, window, x: operator.getitem(window, 5) + x,
}


def both(function: Callable[..., Any]) -> tuple[list[Any], list[Any], str | None]:
    """Return outcomes in columns and in the serial order, and why it was not compiled."""
    values = SharedTable("values", initial=4, size=4, history=10)
    program = Program("windows", [values])

    @program.on("E")
    def access(e: Any, access: Any) -> None:
        row = values[e["key"]]
        access.write(row, function, e["x"], reads=(row, row.window(5e-6)))

    keys = [n * n % 4 for n in range(8)]
    columns = {"key": np.array(keys), "x": np.arange(8.0)}
    run = ColumnRun(program, decision="serial")
    results = run.feed(
        EventColumns.of_arrays(["E"], np.zeros(8, np.int64), np.arange(8) + 10, columns), 100
    )
    events = [
        occurrence("E", timestamp=(n + 10) / 1e6, key=key, x=float(n)) for n, key in enumerate(keys)
    ]
    serial = ProgramRun(program, SerialOrder()).feed(events, 100)
    ours = [(o.results, o.reason) for o in map(results.outcome, range(8))]
    theirs = [(t.outcome.results, t.outcome.reason) for t in serial.transactions if t.outcome]
    return ours, theirs, run.not_compiled


@pytest.mark.parametrize("how", MISUSED)
def test_function_that_misuses_a_window_stays_in_python(how: str) -> None:
    ours, theirs, why = both(MISUSED[how])
    assert ours == theirs
    assert why is not None


def test_function_that_goes_through_a_window_is_compiled() -> None:
    ours, theirs, why = both(_folded)
    assert ours == theirs
    assert why is None


def test_function_that_adds_up_a_window_is_compiled_where_python_adds_as_machines_do() -> None:
    ours, theirs, why = both(lambda value, window, x: sum(window) * 0.1 + x)
    assert ours == theirs
    assert (why is None) == (sys.version_info < (3, 12))  # later ones compensate for rounding
