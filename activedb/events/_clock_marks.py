"""Events that tell, by a local clock, when others can have happened, though no match needs them."""

from __future__ import annotations

from collections.abc import Iterable

from activedb.events._occurrence import Occurrence, precedes
from activedb.events.detection._journal import Journal, add, assign, delete

__all__ = ["ClockMarks", "clock_of"]

_MARKS_MAX = 64
"""Upper bound on the events kept for one clock; beyond it the oldest is forgotten."""


def clock_of(o: Occurrence) -> object:
    """Return the local clock that stamped an event, or None if there is none."""
    stamp = o.stamp
    return None if stamp is None or stamp.local_clock is None else (stamp.node, stamp.local_clock)


class ClockMarks:
    """Fed events of local clocks that bound the times of others of the same clock.

    An event bounds an earlier one that may have ended as late, and a later one that may have begun
    as early. Of those that bound nothing so far, the one that begins last is kept: it may bound
    later events. So exact events leave one mark for each clock.
    """

    __slots__ = ("_marks", "_used")

    def __init__(self) -> None:
        self._marks: dict[int, Occurrence] = {}  # by identity, in the order of arrival
        self._used: set[int] = set()  # identities of those that bound an event

    def note(self, o: Occurrence, journal: Journal) -> None:
        """Remember an event that is fed. O(m) for m marks."""
        clock = clock_of(o)
        if clock is None:
            return
        marks = [each for each in self._marks.values() if clock_of(each) == clock]
        for number, each in enumerate(marks):
            if _is_lower_bound(each, o):
                add(self._used, id(each), journal)
            elif _is_upper_bound(o, each):
                add(self._used, id(o), journal)
            is_first = number <= len(marks) - _MARKS_MAX
            is_idle = id(each) not in self._used and precedes(each, o)
            if is_first or (is_idle and each.low_us <= o.low_us):
                delete(self._marks, id(each), journal)
        assign(self._marks, id(o), o, journal)

    def bounding(
        self, events: Iterable[Occurrence], others: Iterable[Occurrence]
    ) -> list[Occurrence]:
        """Return what bounds each event most from below, and from above: marks, or others."""
        every = [*self._marks.values(), *others]
        found: dict[int, Occurrence] = {}
        for o in events:
            clock = clock_of(o)
            same = [x for x in every if x is not o and clock_of(x) == clock] if clock else ()
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
        self._marks.pop(id(o), None)
        self._used.discard(id(o))

    def trim(self, before_us: int) -> None:
        """Forget the events that ended before this time."""
        for number in [n for n, o in self._marks.items() if o.high_us < before_us]:
            del self._marks[number]
            self._used.discard(number)

    @property
    def state(self) -> list[tuple[Occurrence, bool]]:
        """The events kept, in the order of arrival, and whether each bounds another."""
        return [(o, number in self._used) for number, o in self._marks.items()]

    @state.setter
    def state(self, state: Iterable[tuple[Occurrence, bool]]) -> None:
        for o, is_used in state:
            self._marks[id(o)] = o
            if is_used:
                self._used.add(id(o))


def _is_lower_bound(mark: Occurrence, o: Occurrence) -> bool:
    return mark.low_us >= o.low_us and precedes(mark, o)


def _is_upper_bound(mark: Occurrence, o: Occurrence) -> bool:
    return mark.high_us <= o.high_us and precedes(o, mark)
