"""Buffer of events that wait for the punctuation, in event-time order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from activedb.columns import Arrival
from activedb.events import Occurrence

__all__ = ["EventTimeBuffer"]


class EventTimeBuffer:
    """Sorted buffer that releases events in event-time order once a punctuation has passed them.

    Adding k arrivals to n costs O((n + k) log k) at worst and is close to linear in practice,
    because the sort finds two runs.
    """

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._arrivals)

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, arrivals: Iterable[Arrival]) -> None:
        """Add arrivals in any order."""
        self._arrivals += arrivals
        self._arrivals.sort(key=lambda a: a.order)

    def first(self, punctuation_us: int | None, count_max: int) -> tuple[list[Arrival], int | None]:
        """Return the first arrivals that the punctuation has passed, about `count_max` of them.

        Events with equal timestamps stay together, and so do events that overlap one that ends
        later, so that a punctuation can separate them from the rest. O(arrivals returned).

        Parameters
        ----------
        punctuation_us : int or None
            None: the end of the stream; all arrivals are passed.

        Returns
        -------
        arrivals : list of Arrival
        next_us : int or None
            Punctuation that has passed exactly these arrivals; None if they are all.
        """
        ends_us = -(2**63)
        for place, arrival in enumerate(self._arrivals):
            high_us = arrival.occurrence.high_us
            if punctuation_us is not None and high_us >= punctuation_us:
                return self._arrivals[:place], None
            if place >= count_max and high_us > ends_us:
                return self._arrivals[:place], high_us
            ends_us = max(ends_us, high_us)
        return self._arrivals[:], None

    def passed(self, punctuation_us: int | None, more: Iterable[Arrival] = ()) -> int:
        """Return the number of leading arrivals that a punctuation has passed.

        Counting stops at the first arrival not passed. O(arrivals passed).

        Parameters
        ----------
        punctuation_us : int or None
            None: unknown; no arrivals are passed.
        more : iterable of Arrival
            Arrivals to count as if they were in the buffer; O((n + k) log k).
        """
        arrivals = self._arrivals
        if more := list(more):
            arrivals = sorted([*arrivals, *more], key=lambda a: a.order)
        if punctuation_us is None:
            return 0
        for place, arrival in enumerate(arrivals):
            if arrival.occurrence.high_us >= punctuation_us:
                return place
        return len(arrivals)

    def overlapping(self, place: int) -> list[Occurrence]:
        """Return the later events that may be before the event at `place`; O(events returned)."""
        o = self._arrivals[place].occurrence
        found = []
        for behind in range(place + 1, len(self._arrivals)):
            other = self._arrivals[behind].occurrence
            if other.low_us >= o.high_us:
                break
            found.append(other)
        return found

    def behind(self, count: int) -> list[Occurrence]:
        """Return the events after the first `count` that may be before one of these; O(count)."""
        ends_us = max((a.occurrence.high_us for a in self._arrivals[:count]), default=-(2**63))
        later = (self._arrivals[place].occurrence for place in range(count, len(self._arrivals)))
        return list(takewhile(lambda o: o.low_us < ends_us, later))

    def lowest_us(self, place: int = 0) -> int | None:
        """Return the start of the first arrival from `place` on; None if there is none."""
        return self._arrivals[place].occurrence.low_us if place < len(self._arrivals) else None

    def remove_first(self, count: int) -> None:
        """Drop the first `count` arrivals, after they have been processed durably."""
        del self._arrivals[:count]

    def newest_us(self) -> int | None:
        """Return the latest end of all arrivals; None if the buffer is empty; O(arrivals)."""
        return max((a.occurrence.high_us for a in self._arrivals), default=None)
