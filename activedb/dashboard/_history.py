"""Recent history of a process as points of charts: rates from differences of counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["History", "Point"]

POINTS_MAX = 600  # five minutes, at two looks per second

# Rates to draw: name → the counters that are added up.
_RATES: dict[str, tuple[str, ...]] = {
    "committed": ("transactions_committed",),
    "aborted": ("transactions_aborted",),
    "retried": ("transactions_retried",),
    "subtransactions": ("subtransactions_committed", "subtransactions_aborted"),
    "fired": ("rules_fired",),
    "failed": ("rules_failed",),
    "matches": ("matches",),
}


@dataclass(frozen=True, slots=True)
class Point:
    """Measurements of one look.

    Attributes
    ----------
    at_s : float
        Time of the look by the clock of the observed process; seconds since 1970.
    rates : dict of str to float
        By name, per second, between the previous look and this one.
    latencies_s : dict of str to float
        Quantiles in seconds, by ``transaction p50`` and the like.
    """

    at_s: float
    rates: dict[str, float]
    latencies_s: dict[str, float]


class History:
    """Bounded list of at most `POINTS_MAX` points, oldest first.

    ``number`` grows by one with each point, ``generation`` with each `clear`.

    One thread adds points; others may read `points`, which is a copy. Adding is O(1).
    """

    def __init__(self) -> None:
        self.number = 0
        self.generation = 0
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._before: Mapping[str, Any] | None = None

    def add(self, state: Mapping[str, Any]) -> Point | None:
        """Add a state; the first one, and one with the same time as the last, makes no point."""
        before, self._before = self._before, state
        if before is None:
            return None
        now_s = float(state["process"]["now_s"])
        seconds = now_s - float(before["process"]["now_s"])
        if seconds <= 0:
            self._before = before
            return None
        rates = {
            name: max(0, _sum(state, names) - _sum(before, names)) / seconds
            for name, names in _RATES.items()
        }
        latencies_s = {
            f"{kind} {quantile}": float(values[quantile])
            for kind, values in state["latency_s"].items()
            for quantile in ("p50", "p99")
            if values.get("count") and values.get(quantile) is not None
        }
        point = Point(now_s, rates, latencies_s)
        self._points.append(point)
        self.number += 1
        return point

    def clear(self) -> None:
        """Drop all points, as another process is observed from now on."""
        self._points.clear()
        self._before = None
        self.generation += 1

    @property
    def points(self) -> list[Point]:
        """All points, oldest first."""
        return list(self._points)


def _sum(state: Mapping[str, Any], names: tuple[str, ...]) -> int:
    counters = state["counters"]
    return sum(int(counters.get(name, 0)) for name in names)
