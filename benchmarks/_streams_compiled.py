"""Compiled state-access functions over batches in columns, C = 0, against loops by hand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from activedb.columns.program._run import ColumnRun
from benchmarks._nested_parts import Figure
from benchmarks._streams_collector import frozen
from benchmarks._streams_loads import APPLICATIONS, Application, Batches, batches_of, counted

__all__ = ["Compiled", "InPython", "Load", "per_s"]


@dataclass(frozen=True, slots=True)
class Load:
    """Number of batches, events per batch and keys; None: as in table 6."""

    batches: int
    batch: int | None = None
    keys: int | None = None

    def events(self, application: Application, **options: Any) -> Any:
        """Return the events in columns."""
        size = (self.batch or application.batch) * self.batches
        return application.module.columns(size, **application.of_size(self.keys), **options)

    def fed(self, application: Application, events: Any) -> Batches:
        """Return the events in batches."""
        return batches_of(events, self.batch or application.batch)


def per_s(run: ColumnRun, batches: Batches) -> float:
    """Return events per second of wall-clock time, from columns to the committed state."""
    events = counted(batches)
    with frozen():
        began_s = time.perf_counter()
        for batch, punctuation_us in batches:
            run.feed(batch, punctuation_us)
        run.finish()
        return events / (time.perf_counter() - began_s)


class _OfApplication:
    """A program with its events."""

    def __init__(self, application: Application, load: Load):
        self.application = application
        self.program: Any = application.module.program(**application.of_size(load.keys))
        self.events = load.events(application)
        self.batches = load.fed(application, self.events)

    def by_hand_per_s(self) -> float:
        """Return events per second of the hand-written loop."""
        tables = {
            table.name: dict.fromkeys(range(table.size), float(table.initial))
            for table in self.program.tables
        }
        with frozen():
            began_s = time.perf_counter()
            self.application.by_hand(self.events, tables)
            return len(self.events) / (time.perf_counter() - began_s)


class Compiled:
    """One run: each application on two threads with its own decision, on one, and in parallel."""

    def __init__(self, loads: Mapping[str, Load]):
        self._loads = {name: _OfApplication(APPLICATIONS[name], loads[name]) for name in loads}

    def __call__(self) -> dict[str, Figure]:
        figures = {}
        for name, load in self._loads.items():
            by_hand = load.by_hand_per_s()
            for metric, threads, decision in (
                (f"{name}_compiled_per_s", 2, None),
                (f"{name}_compiled_1_thread_per_s", 1, None),
                (f"{name}_compiled_in_parallel_per_s", 2, "parallel"),
            ):
                run = ColumnRun(load.program, threads, decision)
                ours = per_s(run, load.batches)
                assert run.not_compiled is None, run.not_compiled
                figures[metric] = Figure(ours, "1/s", "by hand", by_hand)
        return figures


class InPython:
    """One run: Streaming Ledger with its functions in Python, over columns."""

    def __init__(self, load: Load):
        self._load = _OfApplication(APPLICATIONS["sl"], load)

    def __call__(self) -> dict[str, Figure]:
        by_hand = self._load.by_hand_per_s()
        ours = per_s(ColumnRun(self._load.program, 1, "python"), self._load.batches)
        return {"sl_python_per_s": Figure(ours, "1/s", "by hand", by_hand)}
