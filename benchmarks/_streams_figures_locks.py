"""Figures 5 to 8, 11 and 12 of (Wang et al., section 6): SEI, S2PL and LWM."""

from __future__ import annotations

import threading
import time
import tracemalloc
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final

from activedb.events import Occurrence
from activedb.scheduling import At, ProgramRun, Scheduler, SharedState, STransaction
from benchmarks._streams_collector import frozen
from benchmarks._streams_comparison import PERCENTILES, ROUNDS, Comparison, median
from benchmarks._streams_driver import Driven, Stamped, percentile
from benchmarks._streams_plots import Drawing, Panel
from benchmarks._streams_rules import SCHEDULERS, Pool, RuleLoad, scheduler_of

__all__ = ["FIGURES", "TITLES", "Stamping"]

_INTERVAL_S: Final = 0.05  # between two punctuations


class Stamping:
    """A scheduler that records when each s-transaction came, and when it has ended.

    Attributes
    ----------
    added_s, ended_s : dict of At to float
        Times by ``time.perf_counter``.
    """

    def __init__(self, scheduler: Scheduler):
        self.name = scheduler.name
        self.added_s: dict[At, float] = {}
        self.ended_s: dict[At, float] = {}
        self._scheduler = scheduler
        self._added: list[tuple[STransaction, Stamped]] = []

    def add(self, transaction: STransaction) -> None:
        """Add an s-transaction."""
        t = transaction
        self.added_s[t.at] = time.perf_counter()
        stamped = Stamped(t.at, t.type, t.params, t.operations)
        self._added.append((transaction, stamped))
        self._scheduler.add(stamped)

    def discard(self) -> None:
        """Discard the s-transactions that were added and not run."""
        self._added = []
        self._scheduler.discard()

    def run(self, state: SharedState) -> None:
        """Run the added s-transactions."""
        added, self._added = self._added, []
        self._scheduler.run(state)
        for transaction, stamped in added:
            transaction.outcome = stamped.outcome
            self.ended_s[stamped.at] = stamped.ended_s


def _at_once(load: RuleLoad, name: str, granularity: str) -> Driven:
    """Run with all events present at the beginning."""
    pool = Pool(load)
    events = pool.events()
    scheduler = Stamping(scheduler_of(name, granularity))
    run = pool.run(scheduler)
    with frozen():
        began_s = time.perf_counter()
        run.feed(events)
        run.finish()
        taken_s = time.perf_counter() - began_s
    latencies_s = [ended_s - began_s for ended_s in scheduler.ended_s.values()]
    return Driven(len(events), seconds=taken_s, latencies_s=latencies_s)


def _varied(
    granularity: str, what: str, values: Sequence[Any], label: str, load: RuleLoad
) -> list[Panel]:
    found = Comparison("a condition waits 1 ms at each read", label)
    for value in values:
        runs: dict[str, list[Driven]] = {name: [] for name in SCHEDULERS}
        for _ in range(ROUNDS):
            for name, driven in runs.items():
                driven.append(_at_once(load.of(**{what: value}), name, granularity))
        for name, driven in runs.items():
            found.add(name, value, median(driven))
    return found.panels()


def _by_reads(granularity: str, scale: float) -> list[Panel]:
    load = RuleLoad(max(round(384 * scale), 4))
    reads = (1, 2, 3, 4, 6, 8, 10) if scale >= 1 else (1, 2)
    return _varied(granularity, "reads", reads, "reads per s-transaction", load)


def _by_writes(granularity: str, scale: float) -> list[Panel]:
    load = RuleLoad(max(round(192 * scale), 4), reads=1)
    writes = (0.125, 0.25, 0.5, 0.75, 1.0) if scale >= 1 else (0.25, 1.0)
    return _varied(granularity, "writes", writes, "writes per s-transaction", load)


def _by_rate(scale: float) -> list[Panel]:
    """Draw figure 11: events arrive at some rate; a punctuation passes them every 50 ms."""
    rates = (50, 200, 500, 1_000, 2_000, 5_000) if scale >= 1 else (100, 1_000)
    panels = [
        Panel(f"p{p}", "events per second", "latency, ms", log_x=True, log_y=True)
        for p in PERCENTILES
    ]
    for rate in rates:
        for name in SCHEDULERS:
            load = RuleLoad(max(round(min(rate, 1_000) * scale / 2), 20), reads=1)
            with frozen():
                times_s = _arriving(load, rate, scheduler_of(name, "row"))
            for panel, percent in zip(panels, PERCENTILES, strict=True):
                panel.add(name, rate, 1_000 * percentile(times_s, percent))
    return panels


def _arriving(load: RuleLoad, rate: float, scheduler: Scheduler) -> list[float]:
    """Return latencies of events that arrive at a rate, whether or not earlier ones have ended."""
    pool = Pool(load)
    stamping = Stamping(scheduler)
    run = pool.run(stamping)
    events = _spread(pool.events(), rate)
    began_s = time.perf_counter()
    never = threading.Event()
    fed = 0
    while fed < len(events):
        arrived_us = 1_000_000 * (time.perf_counter() - began_s)
        arrived = bisect_right(events, arrived_us, key=lambda event: event.us)
        if arrived > fed:
            run.feed(events[fed:arrived], events[arrived - 1].us + 1)
            fed = arrived
        now_s = time.perf_counter() - began_s
        if fed < len(events):
            never.wait(_INTERVAL_S - now_s % _INTERVAL_S)  # for the next events to arrive
    return [ended_s - began_s - at.us / 1_000_000 for at, ended_s in stamping.ended_s.items()]


def _spread(events: Sequence[Occurrence], rate: float) -> list[Occurrence]:
    """Return the same events at `rate` per second."""
    return [
        Occurrence(event.name, number / rate, event.params)
        for number, event in enumerate(events, 1)
    ]


def _memory_by_rate(scale: float) -> list[Panel]:
    """Draw figure 12: peak memory of Python's objects, while events arrive for a second."""
    rates = (200, 500, 1_000, 2_000, 5_000) if scale >= 1 else (100, 200)
    panel = Panel("events of a second", "events per second", "memory, MB", log_x=True)
    for rate in rates:
        for name in SCHEDULERS:
            pool = Pool(RuleLoad(max(round(rate * min(scale, 1)), 20), reads=1, wait_s=0.0))
            run = pool.run(scheduler_of(name, "row", 4))
            events = pool.events()
            panel.add(name, rate, _most_mb(run, events))
    return [panel]


def _most_mb(run: ProgramRun, events: Sequence[Occurrence]) -> float:
    tracemalloc.start()
    try:
        run.feed(events)
        run.finish()
        return tracemalloc.get_traced_memory()[1] / 1_000_000
    finally:
        tracemalloc.stop()


FIGURES: Final[dict[str, Drawing]] = {
    "wang_5": lambda scale: _by_reads("row", scale),
    "wang_6": lambda scale: _by_reads("table", scale),
    "wang_7": lambda scale: _by_writes("row", scale),
    "wang_8": lambda scale: _by_writes("table", scale),
    "wang_11": _by_rate,
    "wang_12": _memory_by_rate,
}
TITLES: Final = {
    "wang_5": "Reads, locks on rows",
    "wang_6": "Reads, locks on tables",
    "wang_7": "Writes, locks on rows",
    "wang_8": "Writes, locks on tables",
    "wang_11": "Latency at a rate of arrival",
    "wang_12": "Memory at a rate of arrival",
}
