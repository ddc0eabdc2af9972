"""Temporal relations of events with uncertain times, and the policies on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from activedb.errors import PatternError
from activedb.events._occurrence import Occurrence, precedes
from activedb.events.detection._entry import Entry
from activedb.functions import checked_function

__all__ = ["OccurrenceOrder", "Policy", "is_exact", "moments"]

_NAMES = ("raise", "certain", "possible", "reading")

Range = tuple[int, int]
"""Earliest and latest time in microseconds, both inclusive."""


class OccurrenceOrder:
    """Order of occurrences, by their intervals and local clocks.

    A composite is before another if all its constituents are before all constituents of the other.
    Its extent alone does not decide: that is not an interval of uncertainty.
    """

    def begins(self, o: Occurrence) -> Range:
        """Return the interval of the occurrence's first moment."""
        if not o.parts:
            return o.low_us, o.high_us
        return o.low_us, min([leaf.high_us for leaf in moments(o)])

    def ends(self, o: Occurrence) -> Range:
        """Return the interval of the occurrence's last moment."""
        if not o.parts:
            return o.low_us, o.high_us
        return max([leaf.low_us for leaf in moments(o)]), o.high_us

    def begin_together(self, a: Occurrence, b: Occurrence) -> bool:
        """Return whether both certainly begin in one microsecond, even if a clock orders them."""
        x, y = self.begins(a), self.begins(b)
        if x == y and x[0] == x[1]:
            return True
        if any(
            first_us[0] == then_us[1] and self.precedes(first, then)
            for first, first_us, then, then_us in ((a, x, b, y), (b, y, a, x))
        ):
            return True
        first = self._first_moment(a)
        return first is not None and first is self._first_moment(b)

    def may_begin_together(self, a: Occurrence, b: Occurrence) -> bool:
        """Return whether both may begin in one microsecond."""
        if self.begin_together(a, b):
            return True
        first, other = self._first_moment(a), self._first_moment(b)
        if first is not None and other is not None:
            return not (self.precedes(first, other) or self.precedes(other, first))
        x, y = self.begins(a), self.begins(b)
        return x[0] <= y[1] and y[0] <= x[1]

    def _first_moment(self, o: Occurrence) -> Occurrence | None:
        """Return the moment of `o` that is certainly before all others; None if none is."""
        found = moments(o)
        for moment in found:
            if all(other is moment or self.precedes(moment, other) for other in found):
                return moment
        return None

    def precedes(self, a: Occurrence, b: Occurrence) -> bool:
        """Return whether a is certainly before b."""
        if not (a.parts or b.parts):
            return precedes(a, b)
        if a.high_us < b.low_us:
            return True
        if self.ends(a)[0] > self.begins(b)[1]:
            return False
        return all(precedes(x, y) for x in moments(a) for y in moments(b))

    def may_precede(self, a: Occurrence, b: Occurrence) -> bool:
        """Return whether a may be before b; nothing is before an event that it contains."""
        if not (a.parts or b.parts):
            if a.high_us < b.low_us:
                return True
            if a is b:
                return False
            if a.low_us >= b.high_us:
                return precedes(a, b)
            return not precedes(b, a) or precedes(a, b)
        return all(self.may_precede(x, y) for x in moments(a) for y in moments(b))

    def is_behind(self, a: Entry, b: Entry) -> bool:
        """Return whether the place of b is certainly behind that of a.

        The place of a composite is where it ends. Ids break ties of time, then arrivals.
        """
        x, y = a[3], b[3]
        if x.parts or y.parts:
            if is_exact(x) and is_exact(y):
                return a[:3] < b[:3]
            return self._ends_before(x, y)
        if x.high_us == y.low_us:
            if a[1:3] < b[1:3]:
                return True
            return x.low_us < y.high_us and precedes(x, y)
        return precedes(x, y)

    def is_later_step(self, a: Entry, b: Entry) -> bool:
        """Return whether b certainly comes in a later step than a, if events are fed in order."""
        x, y = a[3], b[3]
        if x.parts or y.parts:
            return self._ends_before(x, y)
        return precedes(x, y) or (x.high_us == y.low_us and a[2] < b[2])

    def _ends_before(self, x: Occurrence, y: Occurrence) -> bool:
        if self.ends(x)[1] < self.ends(y)[0]:
            return True
        ours = moments(x)
        return any(all(precedes(leaf, other) for leaf in ours) for other in moments(y))


class ByReading(OccurrenceOrder):
    """Order of occurrences as if the readings were exact."""

    def begins(self, o: Occurrence) -> Range:
        us = min([leaf.us for leaf in moments(o)])
        return us, us

    def ends(self, o: Occurrence) -> Range:
        us = max([leaf.us for leaf in moments(o)])
        return us, us

    def precedes(self, a: Occurrence, b: Occurrence) -> bool:
        return self.ends(a)[1] < self.begins(b)[0]

    def may_precede(self, a: Occurrence, b: Occurrence) -> bool:
        return self.precedes(a, b)

    def is_behind(self, a: Entry, b: Entry) -> bool:
        return a[:3] < b[:3]


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy on uncertain order.

    Attributes
    ----------
    name : str
        One of raise, certain, possible, reading, or call.
    call : callable or None
        It is called with an `UncertainOrder` and returns those of its candidates to make.
    relation : OccurrenceOrder
        The temporal relation that it uses.
    """

    name: str
    call: Callable[..., Any] | None
    relation: OccurrenceOrder

    @classmethod
    def of(cls, policy: str | Callable[..., Any]) -> Policy:
        """Return the policy after validating the argument.

        Raises
        ------
        PatternError
            If the policy is unknown.
        """
        if callable(policy):
            checked_function(policy, "on_uncertain=")
            return cls("call", policy, OccurrenceOrder())
        if policy not in _NAMES:
            raise PatternError(
                f"on_uncertain takes one of {', '.join(map(repr, _NAMES))} or a function, "
                f"not {policy!r}"
            )
        return cls(policy, None, ByReading() if policy == "reading" else OccurrenceOrder())

    @property
    def wants_possible(self) -> bool:
        """True if candidates that are not certain may be made."""
        return self.name in ("possible", "call")

    @property
    def doubts(self) -> bool:
        """True if uncertain matches stay open."""
        return self.name != "reading"

    def misses(self, entry: Entry, ended_us: int) -> bool:
        """Return whether the policy must report that an event may precede events not kept.

        Only an interval can, as others can follow it: an exact event that is fed late completes
        nothing. Only the policy "raise" reports it. Policies that make possible matches keep all
        events; for the others it makes no difference, as matches completed so are not certain.

        Parameters
        ----------
        ended_us : int
            The time of the latest event that was not kept.
        """
        o = entry[3]
        return self.name == "raise" and o.low_us < ended_us and not is_exact(o)


def is_exact(o: Occurrence) -> bool:
    """Return whether its time alone determines its order; for a composite, of all constituents."""
    if not o.parts:
        stamp = o.stamp
        return stamp is None or (o.low_us == o.high_us and stamp.local_clock is None)
    return all(is_exact(part) for part in moments(o))


def moments(o: Occurrence) -> list[Occurrence]:
    """Return the primitive events of `o`, and the moment that completed it if it is none of these.

    That moment is represented by an event without parts.
    """
    if not o.parts:
        return [o]
    found = [leaf for part in o.constituents for leaf in moments(part)]
    if not any(_is_moment_of(leaf, o) for leaf in found):
        found.append(Occurrence(o.name, o.timestamp))
    return found


def _is_moment_of(leaf: Occurrence, o: Occurrence) -> bool:
    """Return whether a composite occurs with an event, not at a moment that may only look alike.

    A moment without a clock beside an event of the same interval changes no relation.
    """
    if leaf.timestamp is o.timestamp:
        return True
    if o.low_us == o.high_us:
        return leaf.low_us == leaf.high_us == o.us
    return leaf.stamp == o.stamp is not None and o.stamp.local_clock is not None
