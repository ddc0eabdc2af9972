"""Figures 9 and 10 of (Wang et al., section 6): latency where no events wait for others.

One rule listens to a pattern, a sequence of a given number of events about the same worker. Its
condition reads the worker's status and waits 1 ms, as for the answer of an external service; the
action writes it. Events come one at a time, each after the previous one has been processed.

The latency of the query is from the arrival of the event that completes a match to the making of
the s-transaction; that of the rule from there to its end. Medians are shown: a mean would include
other load on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Final

from activedb.events import Occurrence, event, seq
from activedb.scheduling import Program, ProgramRun, Ref, Scheduler, SharedTable, View
from activedb.scheduling.locking import PushBased
from benchmarks._streams_collector import frozen
from benchmarks._streams_driver import wait
from benchmarks._streams_figures_locks import Stamping
from benchmarks._streams_plots import Drawing, Panel
from benchmarks._streams_rules import SCHEDULERS, scheduler_of

__all__ = ["FIGURES", "TITLES", "latencies"]

WAIT_S: Final = 0.001
BASELINE: Final = "no scheduler"
LATENCIES: Final = ("query", "rule", "combined")


def _program(length: int) -> Program:
    """Return a program with a pattern of `length` events, and its rule."""
    statuses = SharedTable("statuses", key=int, initial=0)
    program = Program("query_rule_pair", [statuses])

    def status(o: Occurrence) -> list[Ref]:
        return [statuses[o.parts["E1"].params["worker"]]]

    def holds(t: View, o: Occurrence) -> bool:
        t.read(*status(o))
        wait(WAIT_S)
        return True

    def count(t: View, o: Occurrence) -> None:
        [ref] = status(o)
        t.write(ref, t.read(ref) + 1)

    pattern = seq(*(event(f"E{number}") for number in range(1, length + 1)))
    program.rule(
        pattern.same("worker").within(5), name="counts", reads=status, writes=status, when=holds
    )(count)
    return program


class _Run:
    """A run that is fed one event at a time."""

    def __init__(self, program: Program, scheduler: Scheduler):
        self._stamping = Stamping(scheduler)
        self._run = ProgramRun(program, self._stamping)

    def latencies_s(self, events: list[Occurrence]) -> tuple[float, float]:
        """Return the latencies of the query and of the rule, for the match that the events form."""
        arrived_s = 0.0
        for one in events:
            arrived_s = time.perf_counter()
            results = self._run.feed([one], one.us + 1)
        [transaction] = results.transactions
        added_s = self._stamping.added_s.pop(transaction.at)
        ended_s = self._stamping.ended_s.pop(transaction.at)
        return added_s - arrived_s, ended_s - added_s


def latencies(length: int, matches: int) -> dict[str, list[dict[str, float]]]:
    """Return `LATENCIES` in seconds, by scheduler and without one, match by match.

    Parameters
    ----------
    length : int
        Events of a match.
    matches : int
        Number of matches; each is given to all schedulers, and the first scheduler rotates.
    """
    program = _program(length)
    makers: dict[str, Callable[[], Any]] = {BASELINE: lambda: PushBased(threads=1)}
    makers |= {name: partial(scheduler_of, name, "row") for name in SCHEDULERS}
    runs = {name: _Run(program, make()) for name, make in makers.items()}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    names = list(runs)
    with frozen():
        for match in range(matches + 1):
            events = [
                Occurrence(f"E{number}", match + number / 100, {"worker": match % 10})
                for number in range(1, length + 1)
            ]
            for name in names:
                query_s, rule_s = runs[name].latencies_s(events)
                measured = (query_s, rule_s, query_s + rule_s)
                found[name].append(dict(zip(LATENCIES, measured, strict=True)))
            names.append(names.pop(0))
    return {name: measured[1:] for name, measured in found.items()}  # the first one warms up


def _by_length(scale: float) -> dict[int, dict[str, list[dict[str, float]]]]:
    lengths = (2, 3, 4, 5, 6) if scale >= 1 else (2, 3)
    return {length: latencies(length, max(round(300 * scale), 5)) for length in lengths}


def baseline(scale: float) -> list[Panel]:
    """Draw figure 9: without a scheduler."""
    panel = Panel("no scheduler", "events of the pattern", "latency, ms", log_y=True)
    for length, found in _by_length(scale).items():
        for kind in LATENCIES:
            panel.add(kind, length, 1_000 * median(one[kind] for one in found[BASELINE]))
    return [panel]


def overhead(scale: float) -> list[Panel]:
    """Draw figure 10: each scheduler, relative to figure 9; compared match by match."""
    panels = {
        kind: Panel(f"{kind} latency", "events of the pattern", "more than without scheduler, %")
        for kind in LATENCIES
    }
    for length, found in _by_length(scale).items():
        for kind, panel in panels.items():
            base_s = median(one[kind] for one in found[BASELINE])
            for name in SCHEDULERS:
                pairs = zip(found[name], found[BASELINE], strict=True)
                more_s = median(one[kind] - base[kind] for one, base in pairs)
                panel.add(name, length, 100 * more_s / base_s)
                panel.notes.append([name, length, {"µs more": 1_000_000 * more_s}])
    return list(panels.values())


FIGURES: Final[dict[str, Drawing]] = {"wang_9": baseline, "wang_10": overhead}
TITLES: Final = {
    "wang_9": "Latency where no event waits for others",
    "wang_10": "What schedulers add to it",
}
