"""Events that wait for the punctuation, in event-time order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from activedb.streams._arrivals import Arrival

__all__ = ["EventTimeBuffer"]


class EventTimeBuffer:
    """A sorted buffer; what a punctuation has passed comes out in event-time order.

    Adding k arrivals to n costs O((n + k) log k) at worst and is close to linear in practice,
    because the sort finds two runs.
    """

    def __init__(self) -> None:
        self._arrivals: list[Arrival] = []

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(self, arrivals: Iterable[Arrival]) -> None:
        """Add arrivals in any order."""
        self._arrivals += arrivals
        self._arrivals.sort(key=lambda a: a.order)

    def first(self, punctuation_us: int | None, count_max: int) -> tuple[list[Arrival], int | None]:
        """The first arrivals before the punctuation, about `count_max` of them.

        Events of one timestamp stay together, so that a punctuation can part them from the rest.

        Parameters
        ----------
        punctuation_us : int or None
            None: the end of the stream, everything is passed.

        Returns
        -------
        arrivals : list of Arrival
        next_us : int or None
            Time of the next arrival before the punctuation, None if these are all.
        """
        everything = self._arrivals
        end = len(everything)
        if punctuation_us is not None:
            end = bisect_left(everything, punctuation_us, key=lambda a: a.occurrence.us)
        if end <= count_max:
            return everything[:end], None
        last_us = everything[count_max - 1].occurrence.us
        cut = bisect_left(everything, last_us + 1, lo=count_max, key=lambda a: a.occurrence.us)
        if cut >= end:
            return everything[:end], None
        return everything[:cut], everything[cut].occurrence.us

    def remove_first(self, count: int) -> None:
        """Drop the first `count` arrivals: they have been processed durably."""
        del self._arrivals[:count]

    def newest_us(self) -> int | None:
        """Time of the newest arrival, None if the buffer is empty."""
        return self._arrivals[-1].occurrence.us if self._arrivals else None
