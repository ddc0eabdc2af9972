"""Worlds: true times of events that are consistent with their timestamps.

The matches of an expression depend on how differences of true times compare with its durations:
which of two events was first, whether a window was over. Worlds in which all these comparisons
have the same outcome make the same matches; such a set of worlds is a *cell*.

Constraints are bounds on differences, closed under the triangle inequality (difference bound
matrices; D. Dill, "Timing Assumptions and Verification of Finite-State Concurrent Systems", 1989).
A bound is an int: ``2 v + 1`` for "at most v", ``2 v`` for "less than v".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, groupby, pairwise
from random import Random

from activedb.events._occurrence import Occurrence, precedes

__all__ = ["Times", "Worlds", "moved_apart"]

Bounds = list[list[int]]
Times = tuple[int, ...]

_NO_BOUND = 2**62


class Worlds:
    """Set of the worlds of some events.

    Parameters
    ----------
    events : sequence of Occurrence
        Primitive events.
    differences_us : iterable of int
        The durations with which differences of times are compared.
    moments_us : iterable of int
        The moments with which times are compared.

    Complexity: O(n³) for n events; O(n²) for each world drawn or pair of events compared.
    """

    def __init__(
        self,
        events: Sequence[Occurrence],
        differences_us: Iterable[int] = (0,),
        moments_us: Iterable[int] = (),
    ):
        self.events = events
        self._zero = len(events)  # index that stands for time 0
        self._cuts = sorted({sign * us for us in differences_us for sign in (1, -1)})
        self._moments = sorted(set(moments_us))
        self._start = self._allowed(is_strict=True) or self._allowed(is_strict=False)

    def _allowed(self, *, is_strict: bool) -> Bounds | None:
        events, zero = self.events, self._zero
        bounds = [[_NO_BOUND] * (zero + 1) for _ in range(zero + 1)]
        for i in range(zero + 1):
            bounds[i][i] = 1
        for i, o in enumerate(events):
            bounds[i][zero], bounds[zero][i] = 2 * o.high_us + 1, 2 * -o.low_us + 1
        clocked = [
            (i, o)
            for i, o in enumerate(events)
            if o.stamp is not None and o.stamp.local_clock is not None
        ]
        for i, a in clocked:
            for j, b in clocked:
                if i != j and precedes(a, b):
                    # Two events that a local clock orders may lie in one microsecond.
                    is_below = is_strict and a.low_us < b.high_us
                    bounds[i][j] = min(bounds[i][j], 0 if is_below else 1)
        return _closed(bounds)

    def in_order(self, chain: Sequence[int]) -> Worlds | None:
        """Return the worlds in which the events of `chain` occur in this order; None if none."""
        if self._start is None:
            return None
        bounds = self._start
        for i, j in pairwise(chain):
            if _sum(0, bounds[j][i]) < 1:
                return None
            bounds = _tightened(bounds, i, j, 0)
        found = object.__new__(Worlds)
        found.events, found._zero = self.events, self._zero
        found._cuts, found._moments, found._start = self._cuts, self._moments, bounds
        return found

    def all(self, most: int, random: Random) -> list[Times] | None:
        """Return one world of each cell, or None if there are more than `most` cells."""
        found: list[Times] = []
        if self._start is None:
            return found
        pairs = list(combinations(range(self._zero + 1), 2))
        for count, cell in enumerate(self._split(self._start, pairs)):
            if count == most:
                return None
            times = self._times(cell, random)
            if times is not None:
                found.append(times)
        return found

    def some(self, count: int, random: Random) -> Iterator[Times]:
        """Yield up to `count` random worlds."""
        if self._start is not None:
            for _ in range(count):
                times = self._times(self._start, random)
                if times is not None:
                    yield times

    def _split(self, bounds: Bounds, pairs: list[tuple[int, int]]) -> Iterator[Bounds]:
        """Yield bounds for every feasible combination of comparison results."""
        while pairs:
            i, j = pairs.pop()
            ranges = self._ranges(bounds, i, j)
            if len(ranges) > 1:
                break
        else:
            yield bounds
            return
        for above, below in ranges:
            yield from self._split(
                _tightened(_tightened(bounds, i, j, above), j, i, below), list(pairs)
            )

    def _ranges(self, bounds: Bounds, i: int, j: int) -> list[tuple[int, int]]:
        """Return the ranges of the difference of i and j that comparisons tell apart.

        The cuts between ranges are ranges, too.
        """
        above, below = bounds[i][j], bounds[j][i]
        cuts = self._moments if j == self._zero else self._cuts
        found: list[tuple[int, int]] = []
        last = below
        for cut in cuts:
            if _sum(2 * cut + 1, below) < 1 or _sum(above, 1 - 2 * cut) < 1:
                continue
            if _sum(2 * cut, last) > 0:
                found.append((2 * cut, last))
            found.append((2 * cut + 1, 1 - 2 * cut))
            last = -2 * cut
        if not found or _sum(above, last) > 0:
            found.append((above, last))
        return found

    def _times(self, bounds: Bounds, random: Random) -> Times | None:
        """Return times within the bounds; None if there are none in whole microseconds."""
        found = self._drawn(bounds, random)
        if found is None:
            # Closed bounds that are all inclusive leave a choice for every further event.
            whole = _closed([[above - 1 + (above & 1) for above in row] for row in bounds])
            found = None if whole is None else self._drawn(whole, random)
        return found

    def _drawn(self, bounds: Bounds, random: Random) -> Times | None:
        """Return random times within the bounds.

        None: the times chosen for some events leave no whole microsecond for another, which happens
        with exclusive bounds only.
        """
        zero = self._zero
        found: dict[int, int] = {}
        for i in random.sample(range(zero), zero):
            high, low = bounds[i][zero], bounds[zero][i]
            for j, us in found.items():
                high = min(high, _sum(bounds[i][j], 2 * us + 1))
                low = min(low, _sum(bounds[j][i], 1 - 2 * us))
            # The inclusive ends, or the integers next to exclusive ones.
            most, least = (high - 1) >> 1, -((low - 1) >> 1)
            if most < least:
                return None
            quarter = (most - least) // 4
            central = random.randint(least + quarter, most - quarter)
            found[i] = random.choice((least, most, central))
        return tuple([found[i] for i in range(zero)])


def moved_apart(
    times: Times, events: Sequence[Occurrence], durations_us: Sequence[int]
) -> Times | None:
    """Return times moved by some microseconds so that time alone gives the order of local clocks.

    One event is before another if and only if it was, or precedes it in the same microsecond. Two
    events are within a duration if and only if they were.

    None: there are no such times. Either an event shares a microsecond with two ordered events and
    is in no order with them, or some distance differs from a duration by less than the moves.

    Parameters
    ----------
    times : tuple of int
        Microseconds: one time per event, then any other moments.
    events : sequence of Occurrence
    durations_us : sequence of int
        The durations with which differences of times are compared, sorted.

    Complexity: O(n² log d) for n events and d durations.
    """
    moved = list(times)
    by_time: dict[int, list[int]] = {}
    for number, us in enumerate(times):
        by_time.setdefault(us, []).append(number)
    exactly = frozenset(durations_us)
    for us in sorted(by_time, reverse=True):
        numbers = by_time[us]
        known = [n for n in numbers if n < len(events)]
        rank = {n: sum(precedes(events[m], events[n]) for m in known) for n in known}
        if any(precedes(events[m], events[n]) != (rank[m] < rank[n]) for m in known for n in known):
            return None
        # An event at exactly a duration before another moves no farther than that other moves.
        shift_us = max(
            (moved[m] - at_us for m, at_us in enumerate(times) if at_us - us in exactly), default=0
        )
        for _, same in groupby(sorted(known, key=rank.__getitem__), rank.__getitem__):
            for n in same:
                moved[n] = us + shift_us
            shift_us += 1
        for n in numbers[len(known) :]:
            moved[n] = us + shift_us
    for m, n in combinations(range(len(times)), 2):
        was_us, is_us = times[n] - times[m], moved[n] - moved[m]
        if was_us and was_us * is_us <= 0:
            return None
        if bisect_left(durations_us, abs(was_us)) != bisect_left(durations_us, abs(is_us)):
            return None
    return tuple(moved)


def _sum(a: int, b: int) -> int:
    """Return the bound on a sum from the bounds on its terms; below 1: infeasible."""
    return ((a >> 1) + (b >> 1)) * 2 + (a & b & 1)


def _tightened(bounds: Bounds, i: int, j: int, bound: int) -> Bounds:
    """Return `bounds` with another feasible bound on the difference of i and j, closed."""
    if bound >= bounds[i][j]:
        return bounds
    across = bounds[j]
    return [
        [min(old, _sum(through, further)) for old, further in zip(row, across, strict=True)]
        for row in bounds
        for through in (_sum(row[i], bound),)
    ]


def _closed(bounds: Bounds) -> Bounds | None:
    """Close `bounds` in place and return them; None if they are infeasible."""
    for k, through in enumerate(bounds):
        for row in bounds:
            first = row[k]
            if first < _NO_BOUND:
                for j, further in enumerate(through):
                    row[j] = min(row[j], _sum(first, further))
    return None if any(bounds[i][i] < 1 for i in range(len(bounds))) else bounds
