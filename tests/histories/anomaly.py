"""Anomalies that the checker reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Observation that no serial execution can explain.

    Attributes
    ----------
    name : str
        G0, G1a, G1b, G1c, G-single, G2-item or G2; or "duplicate", "garbage" (a value that no
        transaction appended), "lost append", "early read" (of what was not committed yet), "stale
        read" (without what had been committed), "internal" (without one's own), "order" (two lists
        that are not prefixes of one).
    words : str
        Which transactions and values, in words.
    """

    name: str
    words: str

    def __str__(self) -> str:
        return f"{self.name}: {self.words}"
