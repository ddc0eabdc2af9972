"""Recent entries, within a bound, for clients that poll for news."""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

__all__ = ["News", "Rings"]

T = TypeVar("T")


class News(NamedTuple, Generic[T]):
    """Entries that are new since an earlier poll.

    Attributes
    ----------
    entries : list of list of (int, T)
        For each ring, its newest entries with their numbers, the newest last.
    last : int
        Number of the newest entry of all rings: the `since` of the next poll.
    skipped : int
        Entries between the two polls that are left out, because there were too many.
    """

    entries: list[list[tuple[int, T]]]
    last: int
    skipped: int


class Rings(Generic[T]):
    """Several rings whose entries are numbered together, from 1 on.

    A client that passes the `last` of one poll as `since` of the next gets each entry once, and
    learns exactly how many it has missed: ``last - since == entries returned + skipped``.

    Not thread-safe: the owner guards it with a latch.

    Parameters
    ----------
    *sizes : int
        Capacity of each ring; beyond it the oldest entries are forgotten.
    """

    def __init__(self, *sizes: int):
        self._rings: tuple[deque[tuple[int, T]], ...] = tuple(deque(maxlen=n) for n in sizes)
        self.last = 0

    def add(self, ring: int, entry: T) -> int:
        """Add an entry to a ring; return its number."""
        self.last += 1
        self._rings[ring].append((self.last, entry))
        return self.last

    def since(self, since: int) -> News[T]:
        """Return the entries added after number `since`. O(size of the answer).

        A number that has not been assigned yet comes from another process: then all entries are
        new.
        """
        if not 0 <= since <= self.last:
            since = 0
        entries = []
        for ring in self._rings:
            new: list[tuple[int, T]] = []
            for entry in reversed(ring):
                if entry[0] <= since:
                    break
                new.append(entry)
            new.reverse()
            entries.append(new)
        told = sum(map(len, entries))
        return News(entries, self.last, self.last - since - told)
