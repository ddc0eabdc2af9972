"""Parts of a benchmark that yield several figures each, ours and the peer's taken in turn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks._progress import progress
from benchmarks._report import Metric

__all__ = ["Figure", "Part", "measure_parts", "p50", "p95", "times_in_turn"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One value of one run, and the peer's value of the same run if there is a peer."""

    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    smaller_is_better: bool = False


Part: TypeAlias = Callable[[], Mapping[str, Figure]]
"""One run of one part; returns its figures by metric name, the same ones every time."""


def measure_parts(
    parts: Mapping[str, Part], runs: int, *, warm_up: bool = True
) -> dict[str, Metric]:
    """Do every part `runs` times, after a warm-up if wanted, part after part in each run."""
    taken: dict[str, list[Figure]] = {}
    first = 0 if warm_up else 1
    with progress((runs + 1 - first) * len(parts)) as step:
        for run in range(first, runs + 1):
            for name, part in parts.items():
                step(f"run {run} of {runs}: {name}" if run else f"warm-up: {name}")
                figures = part()
                if run:
                    for metric, figure in figures.items():
                        taken.setdefault(metric, []).append(figure)
    return {name: _metric(figures) for name, figures in taken.items()}


def times_in_turn(calls: Sequence[Callable[[int], object]], rounds: int) -> list[list[float]]:
    """Return the seconds of `rounds` calls of each function, interleaved so that noise affects all.

    In each round every function is called once with the number of the round; the first one rotates.
    """
    taken: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    for number in range(rounds):
        for which in order:
            started_s = time.perf_counter()
            calls[which](number)
            taken[which].append(time.perf_counter() - started_s)
        order.append(order.pop(0))
    return taken


def p50(times: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(times)


def p95(times: Sequence[float]) -> float:
    """Return the time that 95 of 100 do not exceed."""
    return sorted(times)[math.ceil(0.95 * len(times)) - 1]


def _metric(figures: Sequence[Figure]) -> Metric:
    first = figures[0]
    return Metric(
        [figure.value for figure in figures],
        first.unit,
        first.peer,
        [figure.peer_value for figure in figures if figure.peer_value is not None],
        first.smaller_is_better,
    )
