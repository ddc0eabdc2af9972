"""Runner of a program over columns of events by any scheduler, and the check of its result.

The measurement covers the way from the columns in memory to the committed state. For the general
schedulers it includes making the events, one by one. For a run over columns it excludes the
compilation, which is done once, before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from _running import scheduler

from activedb.scheduling import ProgramRun

if TYPE_CHECKING:
    from _columns import GeneratedEvents

    from activedb.scheduling import Program

__all__ = ["COLUMNS", "Expected", "Found", "differences", "run"]

COLUMNS = "columns"
"""Scheduler name for a run over columns, whole batches at once, compiled if numba is installed."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected result of events.

    Attributes
    ----------
    committed : list of bool
        Outcome of each event, in the order of time.
    tables : mapping of str to list of float
        Values of all keys, by the names of the tables.
    outputs : list
        Outputs in the order of time.
    totals : mapping of str to float
        Sum of all values of some tables: nothing may be lost or created.
    """

    committed: list[bool]
    tables: Mapping[str, list[float]]
    outputs: list[Any] = field(default_factory=list)
    totals: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """Result of events; see `Expected`.

    Attributes
    ----------
    seconds : float
        Time from columns to committed state.
    compiling_s : float
        Time of the compilation before.
    refused : list of str
        Reasons why events were refused.
    """

    committed: list[bool] = field(default_factory=list)
    tables: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0
    compiling_s: float = 0.0


# -- running ---------------------------------------------------------------------------------------


def run(
    program: Program,
    events: GeneratedEvents,
    by: str,
    *,
    threads: int = 2,
    batch: int = 10_240,
    advance: Callable[[int], None] = lambda more: None,
) -> Found:
    """Run a program over events in batches, each followed by a punctuation.

    Parameters
    ----------
    program : Program
        Program whose tables have sizes.
    events : GeneratedEvents
    by : str
        Name of a scheduler, one of `SCHEDULERS`, or `COLUMNS`.
    threads : int
    batch : int
        Number of events between two punctuations.
    advance : callable, optional
        Called with the number of further events that were run.
    """
    if by == COLUMNS:
        return _run_columns(program, events, threads, batch, advance)
    found = Found()
    general = ProgramRun(program, scheduler(by, threads))
    for part, punctuation_us in events.batches(batch):
        start = time.perf_counter()
        steps = [general.feed(part.occurrences(), punctuation_us)]
        if punctuation_us is None:
            steps.append(general.finish())
        found.seconds += time.perf_counter() - start
        for results in steps:
            for transaction in results.transactions:
                assert transaction.outcome is not None
                found.committed.append(transaction.outcome.committed)
            found.outputs += results.outputs
            found.refused += [refusal.reason for refusal in results.refused]
        advance(len(part))
    for table in program.tables:
        assert table.size is not None
        values = found.tables[table.name] = np.full(table.size, table.initial)
        newest: dict[Any, Any] = general.state.of(table).newest()
        values[list(newest)] = list(newest.values())
    return found


def _run_columns(
    program: Program,
    events: GeneratedEvents,
    threads: int,
    batch: int,
    advance: Callable[[int], None],
) -> Found:
    from activedb.columns.program._run import ColumnRun

    found = Found()
    over_columns = ColumnRun(program, threads)
    # Code compiled for a run over one event is reused by all runs of the program.
    first = ColumnRun(program, threads)
    start = time.perf_counter()
    first.feed(events.part(slice(0, 1)).columns())
    first.finish()
    found.compiling_s = time.perf_counter() - start
    for part, punctuation_us in events.batches(batch):
        start = time.perf_counter()
        steps = [over_columns.feed(part.columns(), punctuation_us)]
        if punctuation_us is None:
            steps.append(over_columns.finish())
        found.seconds += time.perf_counter() - start
        for results in steps:
            found.committed += results.committed.tolist()
            found.outputs += results.outputs()
            found.refused += [refusal.reason for refusal in results.refused]
        advance(len(part))
    for table in program.tables:
        found.tables[table.name] = over_columns.state.column(table)
    return found


# -- the check -------------------------------------------------------------------------------------


def differences(found: Found, expected: Expected) -> list[str]:
    """Return descriptions of the differences; none if the result is right."""
    said = [f"an event was refused: {reason}" for reason in found.refused[:1]]
    for what in ("committed", "outputs"):
        ours, theirs = getattr(found, what), getattr(expected, what)
        if len(ours) != len(theirs):
            said.append(f"{what}: {len(ours)} instead of {len(theirs)}")
            continue
        wrong = [place for place, value in enumerate(ours) if value != theirs[place]]
        if wrong:
            first = wrong[0]
            said.append(
                f"{what}: {len(wrong)} are wrong, the first that of number {first}: "
                f"{ours[first]!r} instead of {theirs[first]!r}"
            )
    for name, values in expected.tables.items():
        ours, theirs = found.tables[name], np.array(values)
        keys = np.flatnonzero(ours != theirs)
        if len(keys):
            key = keys[0]
            said.append(
                f"{name}: {len(keys)} values are wrong, the first that of key {key}: "
                f"{ours[key]} instead of {theirs[key]}"
            )
    for name, total in expected.totals.items():
        summed = float(found.tables[name].sum())
        if summed != total:
            said.append(f"{name}: all values add up to {summed} instead of {total}")
    return said
