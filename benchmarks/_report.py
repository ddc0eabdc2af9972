"""Metrics of a benchmark: medians over runs, beside a peer's where there is one."""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["Metric", "main"]


@dataclass(frozen=True, slots=True)
class Metric:
    """Values of one figure over several runs, in turn with the peer's.

    Attributes
    ----------
    values : list of float
        The project's, one per run.
    unit : str
    peer : str or None
        Name of the peer measured beside it.
    peer_values : list of float
        The peer's, one per run; empty without a peer.
    """

    values: list[float]
    unit: str
    peer: str | None = None
    peer_values: tuple[float, ...] = ()

    def summary(self) -> dict[str, Any]:
        """Median, the peer's median, their ratio, and the spread (max - min) / median."""
        value = statistics.median(self.values)
        peer_value = statistics.median(self.peer_values) if self.peer_values else None
        return {
            "value": round(value, 3),
            "unit": self.unit,
            "peer": self.peer,
            "peer_value": peer_value,
            "ratio": round(value / peer_value, 3) if peer_value else None,
            "runs": len(self.values),
            "spread": round((max(self.values) - min(self.values)) / value, 3) if value else 0.0,
        }


def main(description: str, measure: Callable[[int], Mapping[str, Metric]]) -> None:
    """Parse the command line, call ``measure(runs)``, print table or JSON."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--runs", type=int, default=3, help="measured runs after a warm-up")
    arguments = parser.parse_args()
    metrics = {name: metric.summary() for name, metric in measure(arguments.runs).items()}
    if arguments.json:
        print(json.dumps(metrics, indent=2))
        return
    columns = ("value", "unit", "peer", "peer_value", "ratio", "runs", "spread")
    table = Table(title=description)
    table.add_column("metric", no_wrap=True)
    for column in columns:
        table.add_column(column)
    for name, metric in metrics.items():
        table.add_row(name, *("" if metric[c] is None else str(metric[c]) for c in columns))
    Console().print(table)
