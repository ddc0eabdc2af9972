"""Verification of matches in worlds: true times of all events, decided by exact detection."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from random import Random
from typing import Any, NamedTuple, Protocol

from activedb.events._accuracy import AccuracyInterval
from activedb.events._expressions import (
    Combination,
    Expression,
    Kleene,
    Negation,
    Periodic,
    Plus,
    Primitive,
    TimedOut,
    walk,
)
from activedb.events._expressions import Sequence as Sequence_
from activedb.events._occurrence import Occurrence, leaves, precedes
from activedb.events._worlds import Times, Worlds, moved_apart
from activedb.events.detection._traits import is_timed
from activedb.events.detection._uncertain import moments

__all__ = ["Decision", "ExactDetector", "WorldChecker"]


_WORLDS = 24
"""Number of worlds drawn, of each kind, if there are too many to enumerate."""
_FEW = 4
"""Number of worlds drawn before all are enumerated."""
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


class ExactDetector(Protocol):
    """Detector, as it is run in a world."""

    @property
    def truncated(self) -> int:
        """Number of times that matches were left out because one event completed too many."""

    def advance(self, us: int) -> list[Occurrence]:
        """Announce that no event before `us` follows; return what time completes before `us`."""

    def feed(
        self, o: Occurrence, reader: None = None, contemporaries: Sequence[Occurrence] = ()
    ) -> list[Occurrence]:
        """Process `o`; return the matches that it completes."""


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
    is_cumulative : bool
        True if the elements of a part are compared without their order, as those of a match that is
        merged of several candidates.
    stamped : dict
        Filled with the events of each world that is tried: by identity, the event as it is stamped.

    Complexity: at most 512 runs of a detector over 8 events, or 24 runs over 64.
    """

    expression: Expression
    events: Sequence[Occurrence]
    begun_us: int | None
    until_us: int
    decisions: Sequence[Decision]
    detector: Callable[[], ExactDetector]
    is_sound: bool
    is_cumulative: bool
    stamped: dict[int, Occurrence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = Random(0)  # noqa: S311  # the same in a replay
        self._numbers = {id(o): number for number, o in enumerate(self.events)}
        self._known: dict[Times, _Made | None] = {}

    def prove(self, match: Occurrence) -> bool:
        """Return whether a world was found in which `match` is made."""
        return self._with([match])._prove(match)

    def refute(self, match: Occurrence) -> bool:
        """Return whether a world was found in which `match` is not made."""
        return self._with([match])._refute(match)

    def allow(
        self,
        matches: Sequence[Occurrence],
        without: Sequence[Occurrence] = (),
        *,
        merged: Collection[str] = (),
        are_whole: bool = True,
    ) -> bool | None:
        """Return whether some world makes `matches` and not `without`; None if that is not known.

        It is known for up to 8 events that are in the order of arrival, if there is a world for
        each combination of results of all comparisons.

        Parameters
        ----------
        matches, without : sequence of Occurrence
        merged : collection of str
            Names of parts of which the match that a world makes may have more elements.
        are_whole : bool
            True if that is so for `without` only.
        """
        worlds = self._with([*matches, *without])
        wanted, unwanted = (list(map(worlds._identity, each)) for each in (matches, without))

        def has(made: _Made, match: Identity, names: Collection[str]) -> bool:
            return match in made.found or (
                bool(names) and any(_is_within(match, found, names) for found in made.found)
            )

        def is_so(made: _Made) -> bool:
            return all(has(made, each, () if are_whole else merged) for each in wanted) and not any(
                has(made, each, merged) for each in unwanted
            )

        return worlds._allow(matches, is_so, must_refute=bool(unwanted))

    def _prove(self, match: Occurrence) -> bool:
        if len(self.events) > _EVENTS_MAX:
            return False
        wanted = self._identity(match)
        return any(wanted in made.found and made.proves for made in self._made(self._likely(match)))

    def _refute(self, match: Occurrence) -> bool:
        if len(self.events) > _EVENTS_MAX:
            return False
        wanted = self._identity(match)
        worlds = self._drawn if self._all is None else self._all
        return any(wanted not in made.found and made.refutes for made in self._made(worlds))

    def _allow(
        self, matches: Sequence[Occurrence], is_so: Callable[[_Made], bool], *, must_refute: bool
    ) -> bool | None:
        """Return whether something is so in some world; `matches` tell which to try first."""
        events = self.events
        is_known = (
            len(events) <= _EVENTS_FEW
            and len(self._numbers) == len(events)
            and len(self._compared[1]) < _DURATIONS_MAX
            and not any(precedes(b, a) for a, b in combinations(events, 2))
        )
        if not is_known:
            return None

        def shows(made: _Made) -> bool:
            return made.proves and (made.refutes or not must_refute) and is_so(made)

        if any(map(shows, self._made(self._in_order(matches)))):
            return True
        if self._all is None:
            return None
        met = list(self._made(self._all))
        if any(map(shows, met)):
            return True
        # Without any world that agrees with the decisions, these say nothing.
        return False if met and all(made.proves and made.refutes for made in met) else None

    def _with(self, matches: Sequence[Occurrence]) -> WorldChecker:
        """Return worlds that include the events of `matches`, some of which may be forgotten."""
        missing = {
            id(o): o
            for match in matches
            for o in leaves(match)
            if id(o) not in self._numbers and o.key in self.keys
        }
        return replace(self, events=[*missing.values(), *self.events]) if missing else self

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
        yield from self._in_order([match], _WORLDS)

    def _in_order(self, matches: Sequence[Occurrence], count: int = _FEW) -> Iterator[Times]:
        """Yield worlds in which the parts of each match are in order; nothing if there is none."""
        worlds: Worlds | None = self._worlds
        for match in matches:
            chain = [self._numbers[id(o)] for o in moments(match) if id(o) in self._numbers]
            worlds = worlds and worlds.in_order(list(dict.fromkeys(chain)))
        if worlds is not None:
            yield from worlds.some(count, self._random)

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
        single: list[int] = []  # a duration that occurs twice may add up with itself
        repeated: set[int] = set()
        moments_us: set[int] = set()
        adds_up = False
        for each in walk(self.expression):
            if isinstance(each, Combination):
                given = (each.window_us, getattr(each, "gap_us", None))
                single += [us for us in given if us is not None]
                adds_up |= (
                    each is not self.expression
                    and isinstance(each, Sequence_)
                    and isinstance(each.parts[-1], Negation | Kleene)
                )
            elif isinstance(each, Plus):
                single.append(each.delay_us)
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
        found = {0}
        for period_us in repeated:
            count = min(span_us // period_us + 1, _DURATIONS_MAX)
            found |= {period_us * n for n in range(count + 1)}
        if adds_up or repeated or moments_us:
            for us in single:
                found |= {abs(other + sign * us) for other in found for sign in (1, -1)}
        else:
            found.update(single)
        around = {us + sign * other for us in moments_us for other in found for sign in (1, -1)}
        return {us for us in found if us <= span_us}, around

    # -- matches made in worlds ----------------------------------------------------------------

    def _made(self, worlds: Iterable[Times]) -> Iterator[_Made]:
        """Yield the matches made in each world that agrees with the decisions."""
        wanted = [(self._identity(o), is_made) for o, is_made in self.decisions]
        for times in worlds:
            if times not in self._known:
                self._known[times] = self._made_in(times)
            known = self._known[times]
            if known is None:
                yield _Made(set(), proves=False)
            elif all((identity in known.found) is is_made for identity, is_made in wanted):
                yield known

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
        self.stamped.clear()
        self.stamped.update(originals)
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
            {_identity(match, originals, self.is_cumulative) for match in found},
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
        return _identity(match, {id(o): o for o in self.events}, self.is_cumulative)


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


def _identity(
    match: Occurrence, originals: Mapping[int, Occurrence], is_cumulative: bool
) -> Identity:
    """Return what tells a match from others: the events of each part, in the order of their times.

    In the cumulative context there is only one match of them, in any order.
    """
    collect = frozenset[Any] if is_cumulative else tuple[Any, ...]
    found: list[tuple[str, Any]] = []
    start_us = 0
    for name, part in (match.parts or {match.name: match}).items():
        elements: Sequence[Occurrence] = part if isinstance(part, tuple) else (part,)
        numbers = range(len(elements)) if isinstance(part, tuple) else [part.us - start_us]
        told = [
            _told(o, originals, number, is_cumulative)
            for o, number in zip(elements, numbers, strict=True)
        ]
        found.append((name, collect(told)))
        start_us = elements[-1].us if elements else start_us
    return frozenset(found)


def _told(
    o: Occurrence, originals: Mapping[int, Occurrence], number: int, is_cumulative: bool
) -> Any:
    if o.parts:
        return _identity(o, originals, is_cumulative)
    original = originals.get(id(o))
    if original is not None:
        return id(original)
    # A clock event has the same time in every world; a tick has the same distance from its start.
    return (o.name, o.us if o.key[0] == "clock" else number)


def _is_within(one: Any, other: Any, merged: Collection[str]) -> bool:
    """Return whether a match is the other one, but for elements of `merged` parts that it lacks.

    The matches that are elements of its parts may lack such elements, too.
    """
    if not isinstance(one, frozenset):
        return bool(one == other)
    if not isinstance(other, frozenset):
        return False
    ours, theirs = dict(one), dict(other)
    return ours.keys() <= theirs.keys() and all(
        (name in merged or len(own) == len(whole))
        and all(any(_is_within(each, it, merged) for it in whole) for each in own)
        for name, whole in theirs.items()
        for own in (ours.get(name, ()),)
    )
