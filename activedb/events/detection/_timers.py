"""What falls due: one heap for all nodes of a detector."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count

from activedb.events.detection._journal import Journal

__all__ = ["Timer", "Timers"]

Timer = tuple[int, int, Hashable]
"""(due_us, index of the node, what the node calls it)."""


class Timers:
    """Timers in the order in which they fire: by time, then node, then the order of setting.

    Nodes are numbered from the leaves up, in the order in which they are written: what is at one
    time comes in that order, and to a node after its parts.
    """

    __slots__ = ("_heap", "_live", "_serials")

    def __init__(self) -> None:
        self._live: dict[Timer, int] = {}  # and its serial; what is only in the heap is a leftover
        self._heap: list[tuple[int, int, int, Timer]] = []
        self._serials = count()

    def __len__(self) -> int:
        return len(self._live)

    def set(self, timer: Timer, journal: Journal) -> None:
        """Set a timer, unless it is set."""
        if timer not in self._live:
            self._insert(timer, next(self._serials))
            journal.append((self._live.pop, (timer, None)))

    def cancel(self, timer: Timer, journal: Journal) -> None:
        """Take back a timer, if it is set."""
        serial = self._live.pop(timer, None)
        if serial is not None:
            journal.append((self._insert, (timer, serial)))

    def first(self) -> Timer | None:
        """The one that fires next."""
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][3]) != heap[0][2]:
            heappop(heap)
        return heap[0][3] if heap else None

    def is_any_before(self, before_us: int, lowest: int, index: int) -> bool:
        """Return whether one is set before a time for a node from `lowest` up to below `index`."""
        return any(us < before_us and lowest <= node < index for us, node, _ in self._live)

    def take_first(self, before_us: int, journal: Journal) -> list[Timer]:
        """Take all that fire first, those of one node at one time, if it is before `before_us`."""
        found: list[Timer] = []
        while (timer := self.first()) is not None and timer[0] < before_us:
            if found and timer[:2] != found[0][:2]:
                break
            self.cancel(timer, journal)
            found.append(timer)
        return found

    def in_order(self) -> list[Timer]:
        """All that are set, in the order in which they fire."""
        return sorted(self._live, key=lambda timer: (timer[0], timer[1], self._live[timer]))

    def _insert(self, timer: Timer, serial: int) -> None:
        self._live[timer] = serial
        heappush(self._heap, (timer[0], timer[1], serial, timer))
