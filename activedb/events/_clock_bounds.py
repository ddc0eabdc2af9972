"""Events that tell, by a local clock, when others can have happened, though no match needs them."""

from __future__ import annotations

from collections.abc import Iterable

from activedb.events._occurrence import Occurrence, precedes
from activedb.events.detection._journal import Journal, assign, delete

__all__ = ["ClockBounds"]

_KEPT_MAX = 64
"""Upper bound on the events kept for one clock; beyond it the oldest is forgotten."""


class ClockBounds:
    """Fed events of local clocks that bound the times of others of the same clock.

    An event bounds an earlier one that may have ended as late, and a later one that may have begun
    as early. Of those that bound nothing so far, the one that begins last is kept: it may bound
    later events. So exact events leave one event for each clock.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        # By identity: the event, and whether it bounds another one.
        self._kept: dict[int, tuple[Occurrence, bool]] = {}

    def note(self, o: Occurrence, journal: Journal) -> None:
        """Remember an event that is fed. O(n) for n events kept."""
        clock = _clock_of(o)
        if clock is None:
            return
        bounds = False
        before = [kept for kept in self._kept.values() if _clock_of(kept[0]) == clock]
        for number, (each, bounds_another) in enumerate(before):
            bounds |= _is_upper_bound(o, each)
            is_used = bounds_another or _is_lower_bound(each, o)
            is_idle = not is_used and precedes(each, o) and each.low_us <= o.low_us
            if is_idle or number <= len(before) - _KEPT_MAX:
                delete(self._kept, id(each), journal)
            elif is_used != bounds_another:
                assign(self._kept, id(each), (each, is_used), journal)
        assign(self._kept, id(o), (o, bounds), journal)

    def bounding(
        self, events: Iterable[Occurrence], others: Iterable[Occurrence]
    ) -> list[Occurrence]:
        """Return what bounds each event most, from below and from above: kept, or of `others`."""
        every = [*(o for o, _ in self._kept.values()), *others]
        found: dict[int, Occurrence] = {}
        for o in events:
            clock = _clock_of(o)
            same = [x for x in every if x is not o and _clock_of(x) == clock] if clock else ()
            below = [x for x in same if _is_lower_bound(x, o)]
            above = [x for x in same if _is_upper_bound(x, o)]
            if below:
                most = max(below, key=lambda x: x.low_us)
                found[id(most)] = most
            if above:
                most = min(above, key=lambda x: x.high_us)
                found[id(most)] = most
        return list(found.values())

    def forget(self, o: Occurrence) -> None:
        """Forget an event that was withdrawn."""
        self._kept.pop(id(o), None)

    def trim(self, before_us: int) -> None:
        """Forget the events that ended before this time."""
        for number in [n for n, (o, _) in self._kept.items() if o.high_us < before_us]:
            del self._kept[number]

    @property
    def state(self) -> list[tuple[Occurrence, bool]]:
        """The events kept, and whether each bounds another."""
        return list(self._kept.values())

    @state.setter
    def state(self, state: Iterable[tuple[Occurrence, bool]]) -> None:
        self._kept = {id(kept[0]): kept for kept in state}


def _clock_of(o: Occurrence) -> object:
    """Return the local clock that stamped an event, or None if there is none."""
    stamp = o.stamp
    return None if stamp is None or stamp.local_clock is None else (stamp.node, stamp.local_clock)


def _is_lower_bound(one: Occurrence, o: Occurrence) -> bool:
    return one.low_us >= o.low_us and precedes(one, o)


def _is_upper_bound(one: Occurrence, o: Occurrence) -> bool:
    return one.high_us <= o.high_us and precedes(o, one)
