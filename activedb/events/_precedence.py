"""Which of two occurrences was first, if that is certain."""

from __future__ import annotations

from activedb.events._accuracy import AccuracyInterval, certainly_before
from activedb.events._occurrence import Occurrence

__all__ = ["precedes"]


def precedes(a: Occurrence, b: Occurrence) -> bool:
    """Whether `a` ended before `b` began, for certain; equal times are no order.

    By their extents, ``a.high_us < b.low_us``, or else because all that `a` is made of was stamped
    by one node before all that `b` is made of, and the node's local clock orders them. O(1); of
    composites whose extents overlap O(n m) in the numbers of their constituents.
    """
    if a.high_us < b.low_us:
        return True
    if a.stamp is None or b.stamp is None:
        return False
    if not a.parts and not b.parts:
        return certainly_before(a.stamp, b.stamp)
    ends, starts = _stamps(a), _stamps(b)
    if ends is None or starts is None:
        return False
    return all(certainly_before(end, start) for end in ends for start in starts)


def _stamps(o: Occurrence) -> list[AccuracyInterval] | None:
    """Return the stamps of `o` and of all its constituents; None if one of them has none."""
    if o.stamp is None:
        return None
    found = [o.stamp]
    for part in o.constituents:
        inner = _stamps(part)
        if inner is None:
            return None
        found += inner
    return found
