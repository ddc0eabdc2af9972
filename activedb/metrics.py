"""Numbers about a run: durations in a histogram, counts by name. Safe to use from any thread."""

from __future__ import annotations

import math
import threading
from array import array

__all__ = ["Counters", "Histogram"]

# A bucket reaches from its lower bound to _BASE times that; its representative is at most
# _ERROR_MAX away from any value in it, relatively. Kept a little under 1 % for rounding.
_ERROR_MAX = 0.0099
_BASE = (1 + _ERROR_MAX) / (1 - _ERROR_MAX)
_LOG_BASE = math.log(_BASE)

# Shorter durations count as zero, longer ones as the longest: a nanosecond to eleven days.
_SHORTEST_S = 1e-9
_LONGEST_S = 1e6
_FIRST = math.ceil(math.log(_SHORTEST_S) / _LOG_BASE)
_BUCKETS = math.ceil(math.log(_LONGEST_S) / _LOG_BASE) - _FIRST + 1


class Histogram:
    """Durations in logarithmic buckets.

    Quantiles between 1 ns and 10⁶ s are within 1 % of the exact ones; shorter durations read as
    at most 1 ns. Memory is fixed, about 14 KB. Recording is O(1), a quantile O(buckets).
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._buckets = array("Q", bytes(8 * (_BUCKETS + 1)))  # [0]: too short to tell
        self._count = 0
        self._total_s = 0.0
        self._shortest_s = math.inf
        self._longest_s = 0.0

    def record(self, seconds: float) -> None:
        """Count one duration.

        Raises
        ------
        ValueError
            ``seconds`` is negative, infinite or not a number.
        """
        if not 0 <= seconds < math.inf:
            raise ValueError(f"{seconds} s is no duration")
        if seconds <= _SHORTEST_S:
            bucket = 0
        else:
            bucket = math.ceil(math.log(seconds) / _LOG_BASE) - _FIRST + 1
            bucket = min(max(bucket, 1), _BUCKETS)
        with self._latch:
            self._buckets[bucket] += 1
            self._count += 1
            self._total_s += seconds
            self._shortest_s = min(self._shortest_s, seconds)
            self._longest_s = max(self._longest_s, seconds)

    def quantile(self, q: float) -> float:
        """Return the duration, in seconds, that the fraction ``q`` of all does not exceed.

        It is the value of rank ``ceil(q * count)``, the smallest one for 0; 0.0 when nothing was
        recorded.

        Raises
        ------
        ValueError
            ``q`` is not between 0 and 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"{q} is no quantile; give a number between 0 and 1")
        with self._latch:
            if self._count == 0:
                return 0.0
            missing = max(1, math.ceil(q * self._count))
            bucket = -1
            while missing > 0:
                bucket += 1
                missing -= self._buckets[bucket]
            if bucket == 0:
                return self._shortest_s
            upper_s = math.exp((bucket + _FIRST - 1) * _LOG_BASE)
            middle_s = upper_s * 2 / (_BASE + 1)
            return min(max(middle_s, self._shortest_s), self._longest_s)

    @property
    def count(self) -> int:
        """How many durations were recorded."""
        with self._latch:
            return self._count

    @property
    def total(self) -> float:
        """Sum of the recorded durations, in seconds."""
        with self._latch:
            return self._total_s


class Counters:
    """Integers by name; a name that was never added to is absent."""

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._values: dict[str, int] = {}

    def add(self, name: str, n: int = 1) -> None:
        """Add ``n`` to the counter of that name."""
        with self._latch:
            self._values[name] = self._values.get(name, 0) + n

    def snapshot(self) -> dict[str, int]:
        """Return a copy of all counters, taken at one moment, by name in alphabetical order."""
        with self._latch:
            return dict(sorted(self._values.items()))
