"""Metrics of a run: durations in a histogram, counters by name. Safe to use from any thread."""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import ceil, log

__all__ = ["Distribution", "Histogram", "NamedCounters"]

# A bucket spans from its lower bound to _BASE times that; its representative is within a relative
# _ERROR_MAX of any value in it. Kept a little under 1 % for rounding.
_ERROR_MAX = 0.0099
_BASE = (1 + _ERROR_MAX) / (1 - _ERROR_MAX)
_LOG_BASE = math.log(_BASE)

# Shorter durations count as zero, longer ones as the longest: a nanosecond to eleven days.
_SHORTEST_S = 1e-9
_LONGEST_S = 1e6
_FIRST = math.ceil(math.log(_SHORTEST_S) / _LOG_BASE)
_BUCKETS = math.ceil(math.log(_LONGEST_S) / _LOG_BASE) - _FIRST + 1
_PAGE_BITS = 5
_PAGE = 1 << _PAGE_BITS  # buckets whose memory is allocated together
_EMPTY = bytes(8 * _PAGE)
_UPPER_S = [_SHORTEST_S, *(math.exp((n + _FIRST) * _LOG_BASE) for n in range(_BUCKETS))]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of durations, at one moment.

    Attributes
    ----------
    at_most : tuple of int
        Number of durations that do not exceed each of the requested bounds.
    count : int
        Number of all durations.
    total_s : float
        Sum of all durations.
    """

    at_most: tuple[int, ...]
    count: int
    total_s: float


class Histogram:
    """Durations in logarithmic buckets.

    Quantiles between 1 ns and 10⁶ s are within 1 % of the exact ones; shorter durations read as
    at most 1 ns. Memory grows with the spread of what was recorded: about 600 B for durations
    that are alike, 24 KB at most. Recording is O(1), a quantile O(buckets).
    """

    __slots__ = ("_count", "_latch", "_longest_s", "_pages", "_shortest_s", "_total_s")

    def __init__(self) -> None:
        self._latch = threading.Lock()
        # Pages with recorded buckets, by number. Bucket 0: too short to measure.
        self._pages: dict[int, array[int]] = {}
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
            raise ValueError(f"{seconds} s is not a duration")
        if seconds <= _SHORTEST_S:
            bucket = 0
        else:
            bucket = ceil(log(seconds) / _LOG_BASE) - _FIRST + 1
            # No min() and max(), here and below: their calls would be a third of the time.
            if bucket > _BUCKETS:
                bucket = _BUCKETS
            elif bucket < 1:
                bucket = 1
        with self._latch:
            page = self._pages.get(bucket >> _PAGE_BITS)
            if page is None:
                page = self._pages[bucket >> _PAGE_BITS] = array("Q", _EMPTY)
            page[bucket & (_PAGE - 1)] += 1
            self._count += 1
            self._total_s += seconds
            if seconds < self._shortest_s:
                self._shortest_s = seconds
            if seconds > self._longest_s:
                self._longest_s = seconds

    def quantile(self, q: float) -> float:
        """Return the duration, in seconds, that the fraction ``q`` of all does not exceed.

        It is the value of rank ``ceil(q * count)``, the smallest one for 0; 0.0 if nothing was
        recorded.

        Raises
        ------
        ValueError
            ``q`` is not between 0 and 1.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"{q} is not a quantile; give a number between 0 and 1")
        with self._latch:
            if self._count == 0:
                return 0.0
            rank = max(1, math.ceil(q * self._count))
            buckets = self._buckets()
            shortest_s, longest_s = self._shortest_s, self._longest_s
        ranks = accumulate(n for _, n in buckets)
        bucket = next(
            bucket for (bucket, _), last in zip(buckets, ranks, strict=True) if last >= rank
        )
        if bucket == 0:
            return shortest_s
        middle_s = math.exp((bucket + _FIRST - 1) * _LOG_BASE) * 2 / (_BASE + 1)
        return min(max(middle_s, shortest_s), longest_s)

    def distribution(self, bounds_s: Sequence[float]) -> Distribution:
        """Return how many durations do not exceed each bound; O(buckets).

        Parameters
        ----------
        bounds_s : sequence of float
            In seconds, rising. A bound inside a bucket counts the whole bucket, so a duration that
            is up to 2 % longer may be counted as well.

        Raises
        ------
        ValueError
            If they do not rise, or one is not positive.
        """
        if not all(a < b for a, b in pairwise((0.0, *bounds_s))):
            raise ValueError(f"{list(bounds_s)} are not rising, positive bounds")
        with self._latch:
            buckets, count, total_s = self._buckets(), self._count, self._total_s
        numbers = [number for number, _ in buckets]
        upto = [0, *accumulate(n for _, n in buckets)]
        # The bucket in which a bound lies is the first whose upper end is not below it.
        at_most = [upto[bisect_right(numbers, bisect_left(_UPPER_S, bound))] for bound in bounds_s]
        return Distribution(tuple(at_most), count, total_s)

    @classmethod
    def merged(cls, parts: Iterable[Histogram]) -> Histogram:
        """Return a new histogram with all records of others so far; O(their buckets)."""
        whole = cls()
        for part in parts:
            with part._latch:
                whole._count += part._count
                whole._total_s += part._total_s
                whole._shortest_s = min(whole._shortest_s, part._shortest_s)
                whole._longest_s = max(whole._longest_s, part._longest_s)
                buckets = part._buckets()
            for bucket, n in buckets:
                number, place = divmod(bucket, _PAGE)
                whole._pages.setdefault(number, array("Q", _EMPTY))[place] += n
        return whole

    @property
    def count(self) -> int:
        """Number of recorded durations."""
        with self._latch:
            return self._count

    @property
    def total(self) -> float:
        """Sum of the recorded durations, in seconds."""
        with self._latch:
            return self._total_s

    def _buckets(self) -> list[tuple[int, int]]:
        """Return the buckets that are not empty, with their counts, the shortest first.

        REQUIRES: ``_latch``.
        """
        return [
            (_PAGE * number + place, n)
            for number in sorted(self._pages)
            for place, n in enumerate(self._pages[number])
            if n
        ]


class NamedCounters:
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
