"""Feeds of columns that are cut off at any line: the whole batch is in, or none of it."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import activedb.columns.program
from activedb.columns.events import EventColumns
from activedb.columns.program import _state
from activedb.columns.program._run import ColumnRun
from activedb.scheduling import Access, At, Program, SharedTable

pytestmark = pytest.mark.long

PLACE = str(Path(activedb.columns.program.__file__).parent)


class Stop(BaseException):
    """Interruption like Ctrl-C that only this module raises."""


@contextmanager
def stopped_at_line(number: int | None) -> Iterator[list[int]]:
    """Raise `Stop` before a line of the package is run, by number: each counts at most twice."""
    lines = [0]
    met: Counter[tuple[str, int]] = Counter()

    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            met[line] += 1
            lines[0] += met[line] <= 2
            if lines[0] == number:
                raise Stop
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        # What numba has compiled is run as a whole.
        is_traced = frame.f_code.co_filename.startswith((PLACE, "<loop of "))
        return local if is_traced else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield lines
    finally:
        sys.settrace(before)


def add(value: float, x: float) -> float:
    return value + x


def total(past: Any, x: float) -> float:
    found = x
    for each in past:
        found += each
    return found


def not_three(value: float, x: float) -> float:
    if x == 3:
        raise ValueError("three")
    return value - x


def place_of(value: float) -> int:
    return int(abs(value)) % 8


def program() -> Program:
    sums = SharedTable("sums", size=1024, initial=0.0, history=3)
    plain = SharedTable("plain", size=64, initial=1.0)
    made = Program("sums", [sums, plain])

    @made.on("ADD")
    def _add(e: Any, access: Access) -> None:
        access.write(sums[e["key"]], add, e["x"])  # reads what it writes, too
        access.write(plain[e["key"]], total, e["x"], reads=(sums[e["key"]].window(3),))

    @made.on("TAKE")
    def _take(e: Any, access: Access) -> None:
        access.write(sums[e["key"]], not_three, e["x"])
        access.write(plain.computed(place_of, reads=(sums[e["key"]],)), add, e["x"])

    return made


def batch(start: int) -> EventColumns:
    count = 12
    numbers = np.arange(start, start + count)
    return EventColumns.of_arrays(
        ["ADD", "TAKE", "OTHER"],
        np.array([0, 1, 0, 1, 1, 0, 2, 0, 1, 0, 0, 1]),
        (numbers * 7 % count + start) * 400_000,
        {"key": numbers * 5 % 9, "x": (numbers % 5).astype(float)},
    )


def shown(run: ColumnRun) -> Any:
    state = run.state
    return (
        [(state.newest(table), state.all(table)) for table in run.program.tables],
        [[column.tolist() for column in state.changes(table)] for table in run.program.tables],
        (run.waiting, run.punctuation_us, state.last_arrival),
    )


def told(results: Any) -> Any:
    outcomes = [(o.committed, repr(o)) for o in results.outcomes()]
    return results.us.tolist(), outcomes, [(r.row, r.reason) for r in results.refused]


STEPS: dict[str, Callable[[ColumnRun], Any]] = {
    "no punctuation": lambda run: run.feed(batch(12)),
    "a punctuation": lambda run: run.feed(batch(12), 6_000_000),
    "the end": lambda run: run.finish(),
}


@pytest.mark.parametrize(
    ("decision", "step"),
    [
        ("serial", "a punctuation"),
        ("parallel", "a punctuation"),
        *[("python", step) for step in STEPS],
    ],
)
def test_step_that_is_cut_off_at_any_line_is_whole_or_not_at_all(
    decision: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_state, "_SPARE", 0)  # so that it is trimmed
    given = program()

    def opened() -> ColumnRun:
        run = ColumnRun(given, threads=2, decision=decision)
        run.feed(batch(0), 3_000_000)
        return run

    whole = opened()
    before = shown(whole)
    results = told(STEPS[step](whole))
    after = shown(whole)
    assert before != after
    number = 0
    is_through = False
    while not is_through:
        number += 1
        run = opened()
        try:
            with stopped_at_line(number):
                STEPS[step](run)
            is_through = True
        except Stop:
            pass
        if not is_through and run.punctuation_us == before[2][1]:
            assert shown(run) == before, f"stopped at line {number}"
            assert told(STEPS[step](run)) == results, f"stopped at line {number}"
        if step == "a punctuation":  # it is trimmed at last, and may be so again
            run.state.trim(At(6_000_000, "", 0))
        assert shown(run) == after, f"stopped at line {number}"
        assert not [each for each in threading.enumerate() if each.name.startswith("columns-")]
    assert number > 20


def test_step_in_which_memory_runs_out_has_taken_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ColumnRun(program(), decision="python")
    run.feed(batch(0), 3_000_000)
    before = shown(run)
    with monkeypatch.context() as patch:
        patch.setattr(run, "_run_plain", _no_memory(run._run_plain))
        with pytest.raises(MemoryError):
            run.feed(batch(12), 6_000_000)
    assert shown(run) == before


def _no_memory(run_plain: Callable[..., None]) -> Callable[..., None]:
    def ran(*args: Any) -> None:
        run_plain(*args)
        raise MemoryError

    return ran
