"""Relations of events whose times are not known exactly, and the policies on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from activedb.errors import PatternError
from activedb.events._occurrence import Occurrence
from activedb.events._precedence import precedes
from activedb.events.detection._entry import Entry
from activedb.functions import checked_function

__all__ = ["Policy", "Relation", "is_exact", "moments"]

_NAMES = ("raise", "certain", "possible", "reading")

Range = tuple[int, int]
"""From when to when something may be, in microseconds, ends included."""


class Relation:
    """Order of occurrences, by their intervals and local clocks.

    A composite is before another if all that it is made of is before all that the other is made of.
    Its extent alone does not tell: that is no interval of uncertainty.
    """

    def begins(self, o: Occurrence) -> Range:
        """Interval of its first moment."""
        if not o.parts:
            return o.low_us, o.high_us
        return o.low_us, min([leaf.high_us for leaf in moments(o)])

    def ends(self, o: Occurrence) -> Range:
        """Interval of its last moment."""
        if not o.parts:
            return o.low_us, o.high_us
        return max([leaf.low_us for leaf in moments(o)]), o.high_us

    def begin_together(self, a: Occurrence, b: Occurrence) -> bool:
        """Whether two begin in one microsecond for certain, also if a clock orders them in it."""
        x, y = self.begins(a), self.begins(b)
        return (x == y and x[0] == x[1]) or any(
            first_us[0] == then_us[1] and self.precedes(first, then)
            for first, first_us, then, then_us in ((a, x, b, y), (b, y, a, x))
        )

    def precedes(self, a: Occurrence, b: Occurrence) -> bool:
        """Whether a is before b for certain."""
        if not (a.parts or b.parts):
            return precedes(a, b)
        if a.high_us < b.low_us:
            return True
        if self.ends(a)[0] > self.begins(b)[1]:
            return False
        return all(precedes(x, y) for x in moments(a) for y in moments(b))

    def may_precede(self, a: Occurrence, b: Occurrence) -> bool:
        """Whether a may be before b."""
        if not (a.parts or b.parts):
            if a.high_us < b.low_us:
                return True
            if a.low_us >= b.high_us:
                return precedes(a, b)
            return not precedes(b, a) or precedes(a, b)
        return all(self.may_precede(x, y) for x in moments(a) for y in moments(b))

    def is_behind(self, a: Entry, b: Entry) -> bool:
        """Return whether the place of b is behind that of a for certain.

        The place of a composite is where it ends. At one time ids decide, and then arrivals.
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
        """Return whether b comes in a later step than a for certain, if all is fed in order."""
        x, y = a[3], b[3]
        if x.parts or y.parts:
            return self._ends_before(x, y)
        return precedes(x, y) or (x.high_us == y.low_us and a[2] < b[2])

    def _ends_before(self, x: Occurrence, y: Occurrence) -> bool:
        if self.ends(x)[1] < self.ends(y)[0]:
            return True
        ours = moments(x)
        return any(all(precedes(leaf, other) for leaf in ours) for other in moments(y))


class ByReading(Relation):
    """The same as if the readings were exact."""

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
    """A policy on uncertain order.

    Attributes
    ----------
    name : str
        One of raise, certain, possible, reading, or call.
    call : callable or None
        It is given an `UncertainOrder` and returns those of its candidates that are made.
    relation : Relation
        By which it orders.
    """

    name: str
    call: Callable[..., Any] | None
    relation: Relation

    @classmethod
    def of(cls, policy: str | Callable[..., Any]) -> Policy:
        """Checked.

        Raises
        ------
        PatternError
            If there is no such policy.
        """
        if callable(policy):
            checked_function(policy, "on_uncertain=")
            return cls("call", policy, Relation())
        if policy not in _NAMES:
            raise PatternError(
                f"on_uncertain takes one of {', '.join(map(repr, _NAMES))} or a function, "
                f"not {policy!r}"
            )
        return cls(policy, None, ByReading() if policy == "reading" else Relation())

    @property
    def wants_possible(self) -> bool:
        """Whether candidates that are not certain may be made."""
        return self.name in ("possible", "call")

    @property
    def doubts(self) -> bool:
        """Return whether what is not certain stays open."""
        return self.name != "reading"

    def misses(self, entry: Entry, ended_us: int) -> bool:
        """Return whether an event may precede some that were not kept, and whoever asks is told.

        Only an interval can, such as others can follow: an exact event that is fed late completes
        nothing. And only if the policy is to raise: those that want what is possible keep all, for
        the others what is not kept makes no difference, as what is completed so is not certain.

        Parameters
        ----------
        ended_us : int
            When the latest event happened that was not kept.
        """
        o = entry[3]
        return self.name == "raise" and o.low_us < ended_us and not is_exact(o)


def is_exact(o: Occurrence) -> bool:
    """Return whether its time alone tells its order: of a composite, that of all of it."""
    if not o.parts:
        stamp = o.stamp
        return stamp is None or (o.low_us == o.high_us and stamp.local_clock is None)
    return all(is_exact(part) for part in moments(o))


def moments(o: Occurrence) -> list[Occurrence]:
    """The primitive events that `o` is made of, and the moment that completed it, if that is none.

    That moment is an event without parts, too.
    """
    if not o.parts:
        return [o]
    found = [leaf for part in o.constituents for leaf in moments(part)]
    if not any(leaf.us == o.us for leaf in found):
        found.append(Occurrence(o.name, o.timestamp))
    return found
