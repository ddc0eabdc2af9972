"""Matches that are possible, proved by worlds: true times of all events at which they are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from activedb.events._accuracy import AccuracyInterval
from activedb.events._occurrence import Occurrence
from activedb.events._precedence import precedes
from activedb.events.detection._uncertain import moments

if TYPE_CHECKING:
    from activedb.events._detector import Detector

__all__ = ["witnessed"]

_WORLDS = 32
"""Bound on the worlds tried for a match."""
_EVENTS_MAX = 64
"""Bound on the events of a world; beyond it nothing is proved."""

Identity = frozenset[tuple[str, Any]]


def witnessed(
    match: Occurrence,
    events: Sequence[Occurrence],
    until_us: int,
    detector: Callable[[], Detector],
) -> bool:
    """Return whether a world was found in which a match is made.

    Parameters
    ----------
    match : Occurrence
        Of some of the events.
    events : sequence of Occurrence
        All that decide about it, in the order of arrival; primitive ones.
    until_us : int
        Up to when time is told.
    detector : callable
        ``detector()`` is a new detector of the expression.

    Complexity: at most 32 runs of a detector over 64 events.
    """
    if len(events) > _EVENTS_MAX:
        return False
    random = Random(0)  # noqa: S311  # the same in a replay
    wanted = _identity(match, {id(o): o for o in events})
    return any(
        wanted in set(_made(events, times, until_us, detector()))
        for times in _worlds(match, events, random)
    )


def _worlds(
    match: Occurrence, events: Sequence[Occurrence], random: Random
) -> Iterator[dict[int, int]]:
    """Yield true times by the identity of the event: those of the match in order, if they can."""
    chain = [leaf for leaf in moments(match) if any(leaf is o for o in events)]
    clocked = [o for o in events if o.stamp is not None and o.stamp.local_clock is not None]
    for number in range(_WORLDS):
        mode = number % 4
        times: dict[int, int] = {}
        if mode != 3:
            least = -(2**62)
            for place, o in enumerate(chain):
                low = max(o.low_us, least + 1)
                high = min([other.high_us for other in chain[place:]])
                times[id(o)] = least = min(_drawn(low, high, mode, random), o.high_us)
        for o in events:
            if id(o) not in times:
                times[id(o)] = _drawn(o.low_us, o.high_us, random.randrange(4), random)
        if all(o.low_us <= times[id(o)] <= o.high_us for o in chain) and all(
            times[id(a)] < times[id(b)] or (a.low_us == b.high_us)
            for a in clocked
            for b in clocked
            if precedes(a, b)
        ):
            yield times


def _drawn(low: int, high: int, mode: int, random: Random) -> int:
    if low >= high or mode == 0:
        return low
    return high if mode == 1 else random.randint(low, high)


def _made(
    events: Sequence[Occurrence], times: dict[int, int], until_us: int, detector: Detector
) -> Iterator[Identity]:
    """Yield what is made if the events happened at these times."""
    originals: dict[int, Occurrence] = {}
    steps = sorted(enumerate(events), key=lambda item: (times[id(item[1])], item[0]))
    kept: list[Occurrence] = []  # so that no identity is used twice
    found: list[Occurrence] = []
    for _, o in steps:
        us = times[id(o)]
        happened = _happened(o, us)
        kept.append(happened)
        originals[id(happened)] = o
        found += detector.advance(us)
        found += detector.feed(happened)
    found += detector.advance(until_us)
    for match in found:
        yield _identity(match, originals)


def _happened(o: Occurrence, us: int) -> Occurrence:
    stamp = o.stamp
    if stamp is None:
        return o
    timestamp = AccuracyInterval(us, us, us, stamp.status)
    if o.old is None and o.new is None:
        return Occurrence(o.name, timestamp, o.params, id=o.id, kind=o.key[0])
    return Occurrence(o.name, timestamp, id=o.id, old=o.old, new=o.new)


def _identity(match: Occurrence, originals: dict[int, Occurrence]) -> Identity:
    found: list[tuple[str, Any]] = []
    for name, part in (match.parts or {match.name: match}).items():
        elements: Iterable[Occurrence] = part if isinstance(part, tuple) else (part,)
        found.append((name, frozenset(_told(o, originals, n) for n, o in enumerate(elements))))
    return frozenset(found)


def _told(o: Occurrence, originals: dict[int, Occurrence], number: int) -> Any:
    if o.parts:
        return _identity(o, originals)
    original = originals.get(id(o))
    if original is not None:
        return id(original)
    # A clock's moment is the same in every world; when a tick is, depends on the world.
    return (o.name, o.us if o.key[0] == "clock" else number)
