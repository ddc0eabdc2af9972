"""Verification of matches in worlds: true times of all events, decided by exact detection.

The matches of an expression depend on how differences of true times compare with its durations:
which of two events was first, whether a window was over. Worlds in which all these comparisons
have the same outcome make the same matches; such a set of worlds is a *cell*.

Constraints are bounds on differences, closed under the triangle inequality (difference bound
matrices; D. Dill, "Timing Assumptions and Verification of Finite-State Concurrent Systems", 1989).
A bound is an int: ``2 v + 1`` for "at most v", ``2 v`` for "less than v".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby, pairwise
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from activedb.events._accuracy import AccuracyInterval
from activedb.events._choices import Context
from activedb.events._expressions import (
    Combination,
    Expression,
    Kleene,
    Negation,
    Periodic,
    Plus,
    Primitive,
    TimedOut,
)
from activedb.events._expressions import Sequence as Sequence_
from activedb.events._occurrence import Occurrence, precedes
from activedb.events.detection._traits import is_timed, walk
from activedb.events.detection._uncertain import moments

if TYPE_CHECKING:
    from activedb.events._detector import Detector

__all__ = ["Decision", "Times", "WorldChecker", "Worlds", "leaves", "moved_apart"]


Bounds = list[list[int]]
Times = tuple[int, ...]

_NO_BOUND = 2**62
_TRIES = 8


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
        """Return times within the bounds; None if no times in whole microseconds were found."""
        for number in range(_TRIES):
            found = self._drawn(bounds, random, is_central=number == _TRIES - 1)
            if found is not None:
                return found
        return None

    def _drawn(self, bounds: Bounds, random: Random, *, is_central: bool) -> Times | None:
        """Return random times within the bounds, or None.

        The times chosen for some events may leave no whole microsecond for the others. Central
        times leave the most room.
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
            found[i] = central if is_central else random.choice((least, most, central))
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


# -- verification of matches in worlds: true times of all events, decided by exact detection -------


_WORLDS = 24
"""Number of worlds drawn, of each kind, if there are too many to enumerate."""
_CELLS_MAX = 512
"""Upper bound on the worlds enumerated one by one."""
_EVENTS_FEW = 8
"""Upper bound on the events for which worlds are enumerated."""
_EVENTS_MAX = 64
"""Upper bound on the events of a world; beyond it nothing is proved."""
_DURATIONS_MAX = 128

Identity = frozenset[tuple[str, Any]]
Decision = tuple[Occurrence, bool]
"""A match, and whether it was chosen, as decided by the caller of `Detector.resolve`."""


class _Made(NamedTuple):
    """Matches made in a world.

    Attributes
    ----------
    found : set of Identity
    proves : bool
        True if each match found is made in some world of the events.
    refutes : bool
        True if each match not found is missing in some world of the events.
    """

    found: set[Identity]
    proves: bool = True
    refutes: bool = True


@dataclass
class WorldChecker:
    """Worlds of some events, in which matches are proved or refuted.

    Attributes
    ----------
    expression : Expression
    events : sequence of Occurrence
        All primitive events that decide about the matches of `expression`, in the order of arrival.
    begun_us, until_us : int or None, int
        The first time that the detector is told, and the time to which it is advanced.
    decisions : sequence of Decision
        Worlds in which these have another outcome do not count.
    detector : callable
        ``detector()`` returns a new detector of the expression, which makes certain matches.
    is_sound : bool
        True if that detector is right without verification in worlds.

    Complexity: at most 512 runs of a detector over 8 events, or 24 runs over 64.
    """

    expression: Expression
    events: Sequence[Occurrence]
    begun_us: int | None
    until_us: int
    decisions: Sequence[Decision]
    detector: Callable[[], Detector]
    is_sound: bool

    def __post_init__(self) -> None:
        self._random = Random(0)  # noqa: S311  # the same in a replay
        self._numbers = {id(o): number for number, o in enumerate(self.events)}
        self._known: dict[Times, _Made | None] = {}

    def prove(self, match: Occurrence) -> bool:
        """Return whether a world was found in which `match` is made."""
        return self._with(match)._prove(match)

    def refute(self, match: Occurrence) -> bool:
        """Return whether a world was found in which `match` is not made."""
        return self._with(match)._refute(match)

    def _prove(self, match: Occurrence) -> bool:
        if len(self.events) > _EVENTS_MAX:
            return False
        wanted = self._identity(match)
        return any(
            wanted in made.found and made.proves and self._are_in_order(match, times)
            for times, made in self._made(self._likely(match))
        )

    def _refute(self, match: Occurrence) -> bool:
        if len(self.events) > _EVENTS_MAX:
            return False
        wanted = self._identity(match)
        worlds = self._drawn if self._all is None else self._all
        return any(wanted not in made.found and made.refutes for _, made in self._made(worlds))

    def _are_in_order(self, match: Occurrence, times: Times) -> bool:
        """Return whether elements of Kleene parts were, at these times, in the order of the match.

        An identity has no order: with the same elements in another order it is another match. In
        the cumulative context there is only one match of them.
        """
        if self._is_cumulative:
            return True
        for part in match.parts.values():
            elements: Sequence[Occurrence] = part if isinstance(part, tuple) else ()
            known = [times[n] for o in elements if (n := self._numbers.get(id(o))) is not None]
            if any(a > b for a, b in pairwise(known)):
                return False
        return all(self._are_in_order(o, times) for o in match.constituents if o.parts)

    @cached_property
    def _is_cumulative(self) -> bool:
        return any(
            isinstance(each, Combination) and each.consumption is Context.CUMULATIVE
            for each in walk(self.expression)
        )

    def _with(self, match: Occurrence) -> WorldChecker:
        """Return worlds that include the events of `match`, some of which may be forgotten."""
        missing = [o for o in leaves(match) if id(o) not in self._numbers and o.key in self.keys]
        return replace(self, events=[*missing, *self.events]) if missing else self

    # -- choice of worlds --------------------------------------------------------------------

    @cached_property
    def keys(self) -> frozenset[tuple[str, str]]:
        return self.expression.keys

    @cached_property
    def _worlds(self) -> Worlds:
        differences_us, moments_us = self._compared
        return Worlds(self.events, differences_us, moments_us)

    @cached_property
    def _all(self) -> list[Times] | None:
        """One world of each cell, or None if there are too many cells."""
        if len(self.events) > _EVENTS_FEW or len(self._compared[0]) > _DURATIONS_MAX:
            return None
        return self._worlds.all(_CELLS_MAX, self._random)

    @cached_property
    def _drawn(self) -> list[Times]:
        return list(self._worlds.some(_WORLDS, self._random))

    def _likely(self, match: Occurrence) -> Iterator[Times]:
        """Yield worlds in which `match` may be made; the last ones have its parts in order."""
        # The first worlds are the same for all matches.
        yield from self._drawn if self._all is None else self._all
        chain = [self._numbers[id(o)] for o in moments(match) if id(o) in self._numbers]
        in_order = self._worlds.in_order(list(dict.fromkeys(chain)))
        if in_order is not None:
            yield from in_order.some(_WORLDS, self._random)

    @cached_property
    def _durations_us(self) -> list[int] | None:
        """The durations that matter, sorted; None if absolute moments matter too."""
        if any(
            isinstance(each, Periodic)
            or (isinstance(each, Primitive) and each.schedule is not None)
            for each in walk(self.expression)
        ):
            return None
        return sorted(self._compared[0] - {0})

    @cached_property
    def _timed(self) -> list[Expression]:
        """The expression and those of its subexpressions that time completes."""
        return [each for each in walk(self.expression) if is_timed(each)]

    @cached_property
    def _compared(self) -> tuple[set[int], set[int]]:
        """The durations and the moments with which the expression compares times."""
        low_us = min((o.low_us for o in self.events), default=0)  # no events: clock events only
        span_us = max((o.high_us for o in self.events), default=0) - low_us
        single: set[int] = set()
        repeated: set[int] = set()
        moments_us: set[int] = set()
        adds_up = False
        for each in walk(self.expression):
            if isinstance(each, Combination):
                given = (each.window_us, getattr(each, "gap_us", None))
                single |= {us for us in given if us is not None}
                adds_up |= (
                    each is not self.expression
                    and isinstance(each, Sequence_)
                    and isinstance(each.parts[-1], Negation | Kleene)
                )
            elif isinstance(each, Plus):
                single.add(each.delay_us)
                adds_up = True
            elif isinstance(each, TimedOut):
                adds_up = True
            elif isinstance(each, Periodic):
                repeated.add(each.period_us)
            elif isinstance(each, Primitive) and each.schedule is not None:
                us = each.schedule.next_us(low_us - 1)
                while us is not None and us <= low_us + span_us:
                    moments_us.add(us)
                    us = each.schedule.next_us(us) if len(moments_us) < _DURATIONS_MAX else None
        found = {0, *single}
        for period_us in repeated:
            count = min(span_us // period_us + 1, _DURATIONS_MAX)
            found |= {period_us * n for n in range(count + 1)}
        if adds_up or repeated or moments_us:
            for us in single:
                found |= {abs(other + sign * us) for other in found for sign in (1, -1)}
        around = {us + sign * other for us in moments_us for other in found for sign in (1, -1)}
        return {us for us in found if us <= span_us}, around

    # -- matches made in worlds ----------------------------------------------------------------

    def _made(self, worlds: Iterable[Times]) -> Iterator[tuple[Times, _Made]]:
        """Yield each world that agrees with the decisions, and the matches made in it."""
        wanted = [(self._identity(o), is_made) for o, is_made in self.decisions]
        for times in worlds:
            if times not in self._known:
                self._known[times] = self._made_in(times)
            known = self._known[times]
            if known is None:
                yield times, _Made(set())
            elif all((identity in known.found) is is_made for identity, is_made in wanted):
                yield times, known

    def _made_in(self, times: Sequence[int]) -> _Made | None:
        """Return the matches made if the events happened at `times`.

        The result is incomplete if there are too many matches or a predicate raises.

        Events of one moment that a local clock orders are moved apart. If that is impossible, they
        have no exact times: only certain matches are known then, and not all of them. None: nothing
        is known, as the detector may be wrong.
        """
        events, until_us = self.events, self.until_us
        ordered = {
            number
            for a, b in combinations(range(len(events)), 2)
            if times[a] == times[b]
            and (precedes(events[a], events[b]) or precedes(events[b], events[a]))
            for number in (a, b)
        }
        is_split = False
        if ordered:
            apart = self._apart(times)
            if apart is not None:
                (*times, until_us), is_split = apart
                ordered = set()
            elif not self.is_sound:
                return None
        steps = sorted(range(len(events)), key=lambda number: (times[number], number))
        if ordered:
            steps = _in_local_order(steps, times, events)
        happened = [
            _happened(o, us, is_ordered=number in ordered)
            for number, (o, us) in enumerate(zip(events, times, strict=True))
        ]
        originals = {id(o): original for o, original in zip(happened, events, strict=True)}
        detector = self.detector()
        found: list[Occurrence] = []
        try:
            if self.begun_us is not None:
                detector.advance(self.begun_us)
            for place, number in enumerate(steps):
                o, us = happened[number], times[number]
                later = [happened[n] for n in steps[place + 1 :] if ordered and times[n] == us]
                found += detector.advance(us)
                found += detector.feed(o, None, [x for x in later if not precedes(o, x)])
            found += detector.advance(until_us)
        except Exception:
            return _Made(set(), refutes=False)
        return _Made(
            {_identity(match, originals) for match in found},
            proves=not is_split,
            refutes=not ordered and not detector.truncated,
        )

    def _apart(self, times: Sequence[int]) -> tuple[Times, bool] | None:
        """Return times, and an end, at which time alone gives the order of local clocks.

        The flag is true if events due in one step become due in several steps at these times, which
        may make other matches. None: there are no such times, or a part that time completes is due
        in the same microsecond as something else, and moving it would impose an order.
        """
        if self._durations_us is None:
            return None
        durations_us, told = self._durations_us, (*times, self.until_us)
        moved = moved_apart(told, self.events, durations_us)
        if moved is None:
            return None
        if not self._timed:
            return moved, False
        keys = frozenset[tuple[str, str]]().union(*map(_begins, self._timed))
        begun = {(times[n], moved[n]) for n, o in enumerate(self.events) if o.key in keys}
        is_split = len({us for us, _ in begun}) < len(begun)
        exactly = frozenset(durations_us)
        if self._timed != [self.expression] and (
            is_split or any(abs(a - b) in exactly for a, b in combinations(told, 2))
        ):
            return None
        # Windows that ended by the given end must have ended by the new one.
        until_us = moved[-1] + max((is_us - us for us, is_us in begun), default=0)
        if any(
            (self.until_us - us >= duration_us) != (until_us - is_us >= duration_us)
            for us, is_us in begun
            for duration_us in durations_us
        ):
            return None
        return (*moved[:-1], until_us), is_split

    def _identity(self, match: Occurrence) -> Identity:
        return _identity(match, {id(o): o for o in self.events})


def _begins(timed: Expression) -> frozenset[tuple[str, str]]:
    """Return the keys of events that may start the window or delay of a timed expression."""
    if isinstance(timed, TimedOut):
        timed = timed.sequence
    if not isinstance(timed, Sequence_):
        return timed.keys
    found = frozenset[tuple[str, str]]()
    for part in timed.parts:
        if not isinstance(part, Negation):
            found |= part.keys
            if not (isinstance(part, Kleene) and part.minimum == 0):
                break
    return found


def leaves(o: Occurrence) -> Iterator[Occurrence]:
    """Yield the primitive events that an occurrence is composed of, and its ticks."""
    if not o.parts:
        yield o
    for part in o.constituents:
        yield from leaves(part)


def _in_local_order(
    steps: list[int], times: Sequence[int], events: Sequence[Occurrence]
) -> list[int]:
    """Return the steps with the events of each moment reordered so that local clocks agree."""
    left, found = list(steps), list[int]()
    while left:
        first = next(
            (
                n
                for n in left
                if times[n] == times[left[0]]
                and not any(
                    precedes(events[m], events[n]) for m in left if times[m] == times[n] and m != n
                )
            ),
            left[0],
        )
        left.remove(first)
        found.append(first)
    return found


def _happened(o: Occurrence, us: int, *, is_ordered: bool) -> Occurrence:
    stamp = o.stamp
    if stamp is None:
        return o
    local: Mapping[str, Any] = {}
    if is_ordered:
        local = {"node": stamp.node, "local_us": stamp.local_us, "local_clock": stamp.local_clock}
    timestamp = AccuracyInterval(us, us, us, stamp.status, **local)
    if o.old is None and o.new is None:
        return Occurrence(o.name, timestamp, o.params, id=o.id, kind=o.key[0])
    return Occurrence(o.name, timestamp, id=o.id, old=o.old, new=o.new)


def _identity(match: Occurrence, originals: Mapping[int, Occurrence]) -> Identity:
    found: list[tuple[str, Any]] = []
    start_us = 0
    for name, part in (match.parts or {match.name: match}).items():
        elements: Sequence[Occurrence]
        if isinstance(part, tuple):
            elements = part
            told = [_told(o, originals, number) for number, o in enumerate(part)]
        else:
            elements = (part,)
            told = [_told(part, originals, part.us - start_us)]
        found.append((name, frozenset(told)))
        start_us = elements[-1].us if elements else start_us
    return frozenset(found)


def _told(o: Occurrence, originals: Mapping[int, Occurrence], number: int) -> Any:
    if o.parts:
        return _identity(o, originals)
    original = originals.get(id(o))
    if original is not None:
        return id(original)
    # A clock event has the same time in every world; a tick has the same distance from its start.
    return (o.name, o.us if o.key[0] == "clock" else number)
