"""Worlds: every assignment of true times that the timestamps of some events allow.

What an expression makes depends on how the differences of true times compare with the durations in
it: which of two events was first, whether a window was over. Two worlds in which all these
comparisons come out alike make the same. So the worlds fall into finitely many cells, one for each
combination of answers that some times give; `worlds` enumerates the cells and gives times for each.

Constraints are bounds on differences, closed under the triangle inequality (difference bound
matrices). A bound is an int: ``2 v + 1`` for "at most v", ``2 v`` for "less than v".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, permutations, product
from random import Random
from typing import Any

from activedb.events import (
    AccuracyInterval,
    Expression,
    Kleene,
    Negation,
    Occurrence,
    Periodic,
    Plus,
    TimedOut,
    precedes,
)
from activedb.events import Sequence as Seq

from .definition import Made
from .reference import Reference

__all__ = [
    "SECOND_US",
    "Identity",
    "Worlds",
    "durations",
    "has_clock",
    "identity_of",
    "made_at",
    "number_of",
    "tied_orders",
    "told",
]

SECOND_US = 1_000_000

Identity = frozenset[tuple[str, Any]]
"""A match, told from others: per part the set of its primitive events."""

Bounds = list[list[int]]


def number_of(o: Occurrence) -> int:
    """Return which of the events it is: all have a number."""
    number = o.params["n"]
    assert isinstance(number, int)
    return number


def identity_of(parts: Mapping[str, Any]) -> Identity:
    """Return which match it is that has these parts.

    When ticks are, depends on the true time of what they began with: one is told by how long it is
    after that, which is the part before; several are counted.
    """
    found: list[tuple[str, Any]] = []
    start: Any = None
    for name, bound in parts.items():
        if name == "tick" and isinstance(bound, Occurrence) and start is not None:
            found.append((name, bound.us - start.us))
        else:
            found.append((name, _bound(name, bound)))
        start = bound[-1] if isinstance(bound, tuple) and bound else bound
    return frozenset(found)


def _bound(name: str, bound: Any) -> Any:
    elements = bound if isinstance(bound, tuple) else (bound,)
    if any("n" not in o.params and not o.parts for o in elements):
        return (len(elements),) if name == "tick" else tuple(o.us for o in elements)
    return frozenset(identity_of(o.parts) if o.parts else number_of(o) for o in elements)


def durations(expression: Expression, span_us: int) -> frozenset[int]:
    """Return the differences of times at which something may change, none above `span_us`.

    They are the windows and gaps in the expression; where something within it happens at the end
    of one, all sums and differences of these; where a clock or ticks are in it, all multiples of
    a second (then all durations are to be such).
    """
    single: set[int] = set()
    found: set[int] = {0}
    is_timed = False
    for each in _walk(expression):
        if getattr(each, "schedule", None) is not None or isinstance(each, Periodic):
            return frozenset(range(0, span_us + 1, SECOND_US))
        is_timed |= each is not expression and _is_made_by_time(each)
        for name in ("window_us", "gap_us", "delay_us"):
            us = getattr(each, name, None)
            if us is not None:
                single.add(us)
                found |= {abs(sign * us + other) for other in found for sign in (1, -1)}
    if not is_timed:
        found = {0, *single}
    return frozenset(us for us in found if us <= span_us)


def _is_made_by_time(each: Expression) -> bool:
    if isinstance(each, Seq):
        return isinstance(each.parts[-1], Negation | Kleene)
    return isinstance(each, Plus | TimedOut)


def _walk(expression: Expression) -> Iterator[Expression]:
    yield expression
    for child in expression.children:
        yield from _walk(child)


def has_clock(expression: Expression) -> bool:
    """Return whether moments of a clock are in it."""
    return any(getattr(each, "schedule", None) is not None for each in _walk(expression))


class Worlds:
    """The worlds that some events allow.

    Parameters
    ----------
    events : sequence of Occurrence
        In the order of arrival, which orders those that happen at one time. Each has its number in
        it as the parameter ``n``. Ends are whole seconds, so that there is room for times between.
    differences_us : iterable of int
        The durations with which differences of times are compared.
    clock : bool
        Whether times are compared with multiples of these durations, too.
    """

    def __init__(
        self, events: Sequence[Occurrence], differences_us: Iterable[int], *, clock: bool = False
    ):
        assert [number_of(o) for o in events] == list(range(len(events)))
        self.events = events
        self._cuts = sorted({sign * us for us in differences_us for sign in (1, -1)})
        size = len(events) + 1  # the last one stands for time 0
        numbers = range(size) if clock else range(size - 1)
        self._pairs = list(combinations(numbers, 2))
        self._ranges = _ranges_between(self._cuts)
        self._start = self._allowed(is_strict=True) or self._allowed(is_strict=False)

    @property
    def are_possible(self) -> bool:
        """Return whether there is a world at all: clocks that contradict each other allow none."""
        return self._start is not None

    def _allowed(self, *, is_strict: bool) -> Bounds | None:
        events, zero = self.events, len(self.events)
        bounds: Bounds = [[_NO_BOUND] * (zero + 1) for _ in range(zero + 1)]
        for i in range(zero + 1):
            bounds[i][i] = 1
        for i, o in enumerate(events):
            bounds[i][zero], bounds[zero][i] = 2 * o.high_us + 1, 2 * -o.low_us + 1
        for i, a in enumerate(events):
            for j, b in enumerate(events):
                if i != j and precedes(a, b):
                    # Two that a local clock has ordered may be within one microsecond.
                    is_below = is_strict and a.low_us < b.high_us
                    bounds[i][j] = min(bounds[i][j], 0 if is_below else 1)
        return _closed(bounds)

    def cells(self, random: Random | None = None) -> Iterator[Bounds]:
        """Every combination of answers, as bounds; in random order if there is a source."""
        if self._start is not None:
            yield from self._split(self._start, 0, random)

    def worlds(self, random: Random) -> Iterator[tuple[int, ...]]:
        """One world of each cell, the cells in random order: a true time for each event."""
        return (self._times(cell, random) for cell in self.cells(random))

    def some(self, random: Random, count: int) -> Iterator[tuple[int, ...]]:
        """Yield `count` worlds of random cells, some more than once."""
        for _ in range(count if self.are_possible else 0):
            yield next(self.worlds(random))

    def _split(self, bounds: Bounds, place: int, random: Random | None) -> Iterator[Bounds]:
        while place < len(self._pairs):
            i, j = self._pairs[place]
            ranges = [
                (above, below)
                for above, below in self._ranges
                if _sum(min(above, bounds[i][j]), min(below, bounds[j][i])) > 0
            ]
            place += 1
            if len(ranges) > 1:
                break
        else:
            yield bounds
            return
        if random is not None:
            random.shuffle(ranges)
        for above, below in ranges:
            yield from self._split(
                _tightened(_tightened(bounds, i, j, above), j, i, below), place, random
            )

    def _times(self, bounds: Bounds, random: Random) -> tuple[int, ...]:
        zero = len(self.events)
        found: dict[int, int] = {}
        for i in random.sample(range(zero), zero):
            high, low = bounds[i][zero], bounds[zero][i]
            least, most = -(low >> 1), high >> 1
            choices = [least] * (low & 1) + [most] * (high & 1)
            if most - least > 1:
                quarter = (most - least) // 4
                choices += [random.randint(least + max(quarter, 1), most - max(quarter, 1))]
            found[i] = us = random.choice(choices)
            bounds = _tightened(_tightened(bounds, i, zero, 2 * us + 1), zero, i, 1 - 2 * us)
        return tuple(found[i] for i in range(zero))


# Bounds: "at most v" is 2 v + 1, "less than v" is 2 v.


_NO_BOUND = 2**62


def _sum(a: int, b: int) -> int:
    """The bound on a sum, from those on its terms; it is below 1 if nothing fulfils both."""
    return ((a >> 1) + (b >> 1)) * 2 + (a & b & 1)


def _ranges_between(cuts: Sequence[int]) -> list[tuple[int, int]]:
    """The ranges that the cuts leave, and the cuts: bounds on a difference and on its negative."""
    found = [(2 * cuts[0], _NO_BOUND)]
    for cut, following in zip(cuts, [*cuts[1:], None], strict=True):
        found.append((2 * cut + 1, 1 - 2 * cut))
        found.append((_NO_BOUND if following is None else 2 * following, -2 * cut))
    return found


def _tightened(bounds: Bounds, i: int, j: int, bound: int) -> Bounds:
    """Return bounds with one more, which leaves something, on the difference of i and j."""
    if bound >= bounds[i][j]:
        return bounds
    return [
        [
            min(old, _sum(_sum(row[i], bound), across))
            for old, across in zip(row, bounds[j], strict=True)
        ]
        for row in bounds
    ]


def _closed(bounds: Bounds) -> Bounds | None:
    """All bounds that follow; None if nothing fulfils them."""
    for k, through in enumerate(bounds):
        for row in bounds:
            for j, across in enumerate(through):
                row[j] = min(row[j], _sum(row[k], across))
    return None if any(bounds[i][i] < 1 for i in range(len(bounds))) else bounds


def made_at(
    expression: Expression,
    events: Sequence[Occurrence],
    times: Sequence[int],
    end_us: int,
    ranks: Sequence[int] | None = None,
) -> Counter[Identity]:
    """Return what the definition makes of the events if they happened at these times.

    They are told to it in the order of these times, those of one time by their ranks, by default in
    the order given; time is advanced to each, from 0, and to the end.
    """
    return Counter(map(_identity_of_made, told(expression, events, times, end_us, ranks)[1]))


def told(
    expression: Expression,
    events: Sequence[Occurrence],
    times: Sequence[int],
    end_us: int,
    ranks: Sequence[int] | None = None,
) -> tuple[Reference, list[Made]]:
    """Return the reference that was told as in `made_at`, and what it made."""
    reference = Reference(expression)
    found = reference.advance(0)
    ranks = range(len(events)) if ranks is None else ranks
    for us, _, o in sorted(zip(times, ranks, events, strict=True), key=lambda each: each[:2]):
        found += reference.advance(us)
        found += reference.feed(_happened(o, us))
    return reference, found + reference.advance(end_us)


def tied_orders(events: Sequence[Occurrence], times: Sequence[int]) -> Iterator[list[int]]:
    """The ranks of the events in every order of those that happened at one time.

    Exact ones of one time stay as they arrived, and so do those that a local clock orders.
    """
    by_time: dict[int, list[int]] = {}
    for number, us in enumerate(times):
        by_time.setdefault(us, []).append(number)
    for orders in product(*(permutations(tied) for tied in by_time.values())):
        ranks = [0] * len(events)
        for order in orders:
            for rank, number in enumerate(order):
                ranks[number] = rank
        if all(
            ranks[i] < ranks[j]
            for tied in by_time.values()
            for i, j in combinations(tied, 2)
            if events[i].low_us == events[i].high_us == events[j].low_us == events[j].high_us
            or precedes(events[i], events[j])
        ):
            yield ranks


def _happened(o: Occurrence, us: int) -> Occurrence:
    stamp = o.stamp
    if stamp is None:
        return o
    local = (stamp.node, stamp.local_us, stamp.local_clock)
    return Occurrence(o.name, AccuracyInterval(us, us, us, stamp.status, *local), o.params, id=o.id)


def _identity_of_made(made: Made) -> Identity:
    if made.event is not None:
        return identity_of({made.event.name: made.event})
    return identity_of(made.parts if made.output is None else made.output.parts)
