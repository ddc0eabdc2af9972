"""Certain temporal order of two occurrences."""

from __future__ import annotations

from activedb.events._accuracy import AccuracyInterval, certainly_before
from activedb.events._occurrence import Occurrence

__all__ = ["precedes"]


def precedes(a: Occurrence, b: Occurrence) -> bool:
    """Return whether `a` certainly ended before `b` began; equal times are not ordered.

    Either the extents decide, ``a.high_us < b.low_us``, or one node stamped all constituents of
    `a` before all constituents of `b`, and the node's local clock orders them. O(1); O(n m) for
    composites whose extents overlap, with n and m constituents.
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
    """Return the stamps of `o` and of all its constituents, or None if one of them has no stamp."""
    if o.stamp is None:
        return None
    found = [o.stamp]
    for part in o.constituents:
        inner = _stamps(part)
        if inner is None:
            return None
        found += inner
    return found
