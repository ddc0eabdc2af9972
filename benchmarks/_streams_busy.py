"""Compiled functions that compute for 10 µs each: how near two threads come to the bound.

The bound is two cores and nothing but the functions: 2 / (operations x C). An operation counts if
its function has run its loop: all operations of an s-transaction that commits; of one that aborts,
those before the operation that failed, whose function stops before the loop.

The duration of the loop is measured separately: compiled, alone, in processor time of its thread;
the shortest of several tries, so that other load on the machine does not inflate C. The loop is a
chain of multiplications, each of which needs the one before.

The peer is the capacity of the machine at that time: two threads with as many turns of the bare
loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from activedb.columns.program._run import ColumnRun
from activedb.compiler import jit
from benchmarks._examples import load as load_example
from benchmarks._nested_parts import Figure
from benchmarks._streams_collector import frozen
from benchmarks._streams_compiled import Load
from benchmarks._streams_loads import APPLICATIONS, Application

__all__ = ["Busy", "bare_share", "busy_turns", "computed", "turn_s"]

THREADS: Final = 2
_TRIES: Final = 7
_TURNS: Final = 500_000


def turn_s() -> float:
    """Return the seconds that a turn of the busy loop takes, compiled."""
    loop = jit(load_example("_delays").nothing)
    loop(1)  # compiled now
    taken = []
    for _ in range(_TRIES):
        began_s = time.thread_time()
        loop(_TURNS)
        taken.append(time.thread_time() - began_s)
    return min(taken) / _TURNS


def busy_turns(busy_us: float) -> int:
    """Return the turns of a loop that takes `busy_us`."""
    return max(round(busy_us / 1e6 / turn_s()), 1)


def computed(results: Any) -> int:
    """Return the number of operations that have run their loop."""
    widths = np.array(results.layout.widths)[results.codes]
    reasons = results.reasons.astype(np.int64)
    return int(np.where(reasons == 0, widths, reasons - 1).sum())


def bare_share(turns: int, a_turn_s: float) -> float:
    """Return the share of the bound that this number of bare turns reaches, on all threads."""
    loop = jit(load_example("_delays").nothing)
    threads = [
        threading.Thread(target=loop, args=(turns // THREADS,), name=f"loop {number}")
        for number in range(THREADS)
    ]
    began_s = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return turns * a_turn_s / THREADS / (time.perf_counter() - began_s)


class Busy:
    """One run of each application: the share of the bound that two threads reach."""

    def __init__(self, loads: Mapping[str, Load], busy_us: float = 10.0):
        self._turns = busy_turns(busy_us)
        self._label = f"c{busy_us:.0f}"
        self._loads: list[tuple[Application, Any, Any]] = []
        for name, load in loads.items():
            application = APPLICATIONS[name]
            program = application.module.program(
                **application.of_size(load.keys), turns=self._turns
            )
            self._loads.append(
                (application, program, load.fed(application, load.events(application)))
            )

    def __call__(self) -> dict[str, Figure]:
        figures = {}
        for application, program, batches in self._loads:
            run = ColumnRun(program, THREADS)
            found = []
            a_turn_s = turn_s()
            with frozen():
                began_s = time.perf_counter()
                cpu_s = time.process_time()
                for batch, punctuation_us in batches:
                    results = run.feed(batch, punctuation_us)
                    found.append(run.finish() if punctuation_us is None else results)
                taken_s = time.perf_counter() - began_s
                cpu_s = time.process_time() - cpu_s
            a_turn_s = min(a_turn_s, turn_s())
            assert run.not_compiled is None, run.not_compiled
            assert all(results.not_compiled is None for results in found), "columns are not exact"
            operations = sum(map(computed, found))
            events = sum(map(len, found))
            computing_s = operations * self._turns * a_turn_s
            bare = bare_share(operations * self._turns, a_turn_s)
            start = f"{application.name}_{self._label}"
            figures[f"{start}_per_s"] = Figure(events / taken_s, "1/s")
            share = computing_s / THREADS / taken_s
            figures[f"{start}_share_of_bound"] = Figure(share, "ratio", "bare loops", bare)
            figures[f"{start}_share_of_cpu"] = Figure(computing_s / cpu_s, "ratio")
        return figures
