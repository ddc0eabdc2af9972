"""Metrics as Prometheus reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from activedb.monitor import Collector

Labels: TypeAlias = frozenset[tuple[str, str]]


class Scrape:
    """The samples of one exposition, by name and labels."""

    def __init__(self, text: str):
        self.values: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.values, f"{key} is told twice"
                self.values[key] = sample.value

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.values}

    def __call__(self, name: str, **labels: str) -> float:
        """The value of one sample."""
        return self.values[f"activedb_{name}", frozenset(labels.items())]

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of all samples that have these labels, among others."""
        return sum(
            value
            for (found, of), value in self.values.items()
            if found == f"activedb_{name}" and of >= labels.items()
        )


def scrape(collector: Collector) -> Scrape:
    """Return what a registry with this collector exposes, read by Prometheus' own parser."""
    registry = CollectorRegistry()
    registry.register(collector)
    return Scrape(generate_latest(registry).decode())
