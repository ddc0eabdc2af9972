"""Comparison of runs in one figure: throughput, and latency percentiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from activedb.scheduling import Program, Scheduler, SerialOrder
from activedb.scheduling.locking import LWM, S2PL, SEI
from activedb.scheduling.tpg import TPG, Decision
from benchmarks._streams_driver import Driven, drive, percentile
from benchmarks._streams_plots import Panel

__all__ = ["PERCENTILES", "ROUNDS", "Comparison", "Makers", "decided", "general", "median"]

Makers = dict[str, Callable[[], Scheduler]]
"""Functions that make schedulers, by the names of their curves."""

PERCENTILES: Final = (50, 95, 99)
ROUNDS: Final = 3
_FEW: Final = 3  # curves, each shown with two percentiles


def general(threads: int, *names: str) -> Makers:
    """Return general schedulers by name; locks are on rows, and the TPG's model decides."""
    known: Makers = {
        "serial order": SerialOrder,
        "SEI": SEI,
        "S2PL": lambda: S2PL("row", threads=threads),
        "LWM": lambda: LWM("row", threads=threads),
        "TPG": lambda: TPG(threads),
    }
    return {name: known[name] for name in names or known}


def decided(threads: int, **decisions: Decision) -> Makers:
    """Return TPGs with fixed decisions, by the name of each."""

    def maker(decision: Decision) -> Callable[[], Scheduler]:
        return lambda: TPG(threads, decision)

    return {name.replace("_", " "): maker(decision) for name, decision in decisions.items()}


class Comparison:
    """Collection of runs, by curve and place on the x axis.

    Parameters
    ----------
    title, x_label : str
        Labels of the throughput panel.
    options
        Options of both panels; see `Panel`.
    """

    def __init__(self, title: str, x_label: str, **options: Any):
        self._title = title
        self._x_label = x_label
        self._options = options
        self._runs: dict[tuple[str, Any], Driven] = {}

    def add(self, curve: str, place: Any, driven: Driven) -> None:
        """Add a run."""
        self._runs[curve, place] = driven

    def run(
        self, makers: Makers, place: Any, program: Program, parts: Iterable[Any], wait_s: float
    ) -> None:
        """Run the same events by each scheduler, in turn, each operation waiting `wait_s`."""
        parts = list(parts)
        runs: dict[str, list[Driven]] = {curve: [] for curve in makers}
        for _ in range(ROUNDS):
            for curve, make in makers.items():
                runs[curve].append(drive(program, parts, make(), wait_s=wait_s))
        for curve, driven in runs.items():
            self.add(curve, place, median(driven))

    def panels(self) -> list[Panel]:
        """Return the throughput panel and the latency panel."""
        return [self.throughput(), self.latency()]

    def throughput(self) -> Panel:
        """Return events per second; bars at a single place have one curve each."""
        panel = Panel(self._title, self._x_label, "events per second", **self._options)
        for (curve, place), driven in self._runs.items():
            series, at = ("", curve) if place == "" else (curve, place)
            panel.add(series, at, driven.per_s)
            if driven.decision:
                panel.notes.append([curve, place, driven.decision])
        return panel

    def latency(self) -> Panel:
        """Return latency percentiles; with more than a few curves only the last one."""
        panel = Panel(f"{self._title}: latency", self._x_label, "latency, ms", **self._options)
        panel.log_y = panel.log_y or not panel.bars
        few = len({curve for curve, _ in self._runs}) <= _FEW
        for (curve, place), driven in self._runs.items():
            found = {p: 1_000 * percentile(driven.latencies_s, p) for p in PERCENTILES}
            panel.notes.append([curve, place, {f"p{p}": value for p, value in found.items()}])
            for percent, value in found.items():
                if place == "":
                    panel.add(f"p{percent}", curve, value)
                elif percent == PERCENTILES[-1] or (few and percent == PERCENTILES[0]):
                    panel.add(f"{curve} p{percent}", place, value)
        return panel


def median(runs: Sequence[Driven]) -> Driven:
    """Return the run with the median duration."""
    return sorted(runs, key=lambda driven: driven.seconds)[len(runs) // 2]
