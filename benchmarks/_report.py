"""Metrics of a benchmark: medians over runs, with a peer's if there is one."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks._progress import progress

__all__ = ["Measurement", "Metric", "main", "measure_in_turn", "parser", "show"]

_COLUMNS = ("value", "unit", "peer", "peer_value", "ratio", "runs", "spread")
_ELSEWHERE = "not_measured_here"
_WIDTH = 120  # of a table that goes into a file, where nothing may be cut off


@dataclass(frozen=True, slots=True)
class Metric:
    """Values of one figure over several runs, in turn with the peer's.

    Attributes
    ----------
    values : list of float
        The project's values, one per run.
    unit : str
    peer : str or None
        Name of the peer that was measured.
    peer_values : sequence of float
        The peer's, one per run; empty without a peer.
    smaller_is_better : bool
        For times and sizes; it inverts the ratio.
    """

    values: list[float]
    unit: str
    peer: str | None = None
    peer_values: Sequence[float] = ()
    smaller_is_better: bool = False

    def summary(self) -> dict[str, Any]:
        """Return the median, the peer's median, their ratio, and the spread (max - min) / median.

        A ratio above 1 is in the project's favour, whichever way the metric is read.
        """
        value = statistics.median(self.values)
        peer_value = statistics.median(self.peer_values) if self.peer_values else None
        ratio = None
        if value and peer_value:
            ratio = peer_value / value if self.smaller_is_better else value / peer_value
        spread = (max(self.values) - min(self.values)) / value if value else 0.0
        return {
            "value": _rounded(value),
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": None if peer_value is None else _rounded(peer_value),
            "ratio": None if ratio is None else _rounded(ratio),
            "runs": len(self.values),
            "spread": round(spread, 3),
        }


@dataclass(frozen=True, slots=True)
class Measurement:
    """Definition of one metric: `ours` and, if there is one, `peer` return one run's value."""

    name: str
    unit: str
    ours: Callable[[], float]
    peer: Callable[[], float] | None = None
    smaller_is_better: bool = False


def measure_in_turn(
    measurements: Sequence[Measurement], runs: int, peer_name: str
) -> dict[str, Metric]:
    """Take every measurement `runs` times after a warm-up, ours and the peer's in turn."""
    ours: dict[str, list[float]] = {one.name: [] for one in measurements}
    peers: dict[str, list[float]] = {one.name: [] for one in measurements}
    with progress((runs + 1) * len(measurements)) as step:
        for run in range(runs + 1):
            for one in measurements:
                step(f"run {run} of {runs}: {one.name}" if run else f"warm-up: {one.name}")
                value = one.ours()
                peer_value = None if one.peer is None else one.peer()
                if run:
                    ours[one.name].append(value)
                    peers[one.name] += [] if peer_value is None else [peer_value]
    return {
        one.name: Metric(
            ours[one.name],
            one.unit,
            None if one.peer is None else peer_name,
            peers[one.name],
            one.smaller_is_better,
        )
        for one in measurements
    }


def parser(description: str) -> argparse.ArgumentParser:
    """Return a command line with the options that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--runs", type=_count, default=3, help="measured runs after a warm-up")
    return made


def show(
    description: str,
    metrics: Mapping[str, Metric],
    *,
    as_json: bool,
    elsewhere: Mapping[str, Mapping[str, float]] | None = None,
) -> None:
    """Print a table, or one JSON object.

    Parameters
    ----------
    description : str
    metrics : mapping of str to Metric
    as_json : bool
    elsewhere : mapping, optional
        Figures by metric and system that were not measured here, but by others on other machines.
    """
    summaries = {name: metric.summary() for name, metric in metrics.items()}
    if elsewhere:
        for name, summary in summaries.items():
            if name in elsewhere:
                summary[_ELSEWHERE] = dict(elsewhere[name])
    if as_json:
        print(json.dumps(summaries, indent=2))
        return
    columns = [name for name in _COLUMNS if any(s[name] is not None for s in summaries.values())]
    notes = [
        f"{name}: " + ", ".join(f"{system} {value:,.0f}" for system, value in systems.items())
        for name, systems in (elsewhere or {}).items()
        if name in summaries
    ]
    caption = (
        "\n".join(["not measured here, but by others on other machines:", *notes])
        if notes
        else None
    )
    table = Table(title=description, caption=caption, caption_justify="left")
    for column in ("metric", *columns):
        table.add_column(column, no_wrap=True)
    for name, summary in summaries.items():
        table.add_row(name, *("" if summary[c] is None else str(summary[c]) for c in columns))
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def main(description: str, measure: Callable[[int], Mapping[str, Metric]]) -> None:
    """Parse the command line, call ``measure(runs)``, print table or JSON."""
    arguments = parser(description).parse_args()
    show(description, measure(arguments.runs), as_json=arguments.json)


def _count(text: str) -> int:
    """Parse a number of runs: a median needs at least one."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _rounded(value: float) -> float:
    """Keep four digits, whatever the unit: more would be noise."""
    return float(f"{value:.4g}")
