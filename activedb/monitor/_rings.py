"""What has just happened, within a bound, for those who come back and ask what is new."""

from __future__ import annotations

from collections import deque
from typing import Generic, NamedTuple, TypeVar

__all__ = ["News", "Rings"]

T = TypeVar("T")


class News(NamedTuple, Generic[T]):
    """What is new since an earlier look.

    Attributes
    ----------
    entries : list of list of (int, T)
        For each ring its newest entries with their numbers, the newest last.
    last : int
        Number of the newest entry of all rings: the `since` of the next look.
    skipped : int
        Entries between the two looks that are not told, because there were too many.
    """

    entries: list[list[tuple[int, T]]]
    last: int
    skipped: int


class Rings(Generic[T]):
    """Several rings whose entries are numbered together, from 1 on.

    Whoever gives the `last` of one look as `since` of the next gets each entry once, and is told
    exactly how many he has missed: ``last - since == entries told + skipped``.

    Not thread-safe: who owns it holds a latch.

    Parameters
    ----------
    *sizes : int
        How many entries each ring keeps; for more the oldest are forgotten.
    """

    def __init__(self, *sizes: int):
        self._rings: tuple[deque[tuple[int, T]], ...] = tuple(deque(maxlen=n) for n in sizes)
        self.last = 0

    def add(self, ring: int, entry: T) -> int:
        """Add an entry to a ring; returns its number."""
        self.last += 1
        self._rings[ring].append((self.last, entry))
        return self.last

    def since(self, since: int) -> News[T]:
        """What was added after number `since`. O(what is told).

        A number that was not given yet is one of another process: then all is new.
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
