"""Timers of all nodes of a detector, in one heap."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heappop, heappush
from itertools import count

from activedb.events.detection._journal import Journal

__all__ = ["Timer", "Timers"]

Timer = tuple[int, int, Hashable]
"""(due_us, index of the node, the node's name for the timer)."""


class Timers:
    """Timers in the order in which they fire: by time, then node, then order of setting.

    Nodes are numbered from the leaves up, in the order in which they are written. Timers of the
    same time fire in that order, and those of a node after those of its parts.
    """

    __slots__ = ("_heap", "_live", "_serials")

    def __init__(self) -> None:
        self._live: dict[Timer, int] = {}  # serials; timers only in the heap are cancelled
        self._heap: list[tuple[int, int, int, Timer]] = []
        self._serials = count()

    def __len__(self) -> int:
        return len(self._live)

    def set(self, timer: Timer, journal: Journal) -> None:
        """Set a timer, unless it is set already."""
        if timer not in self._live:
            self._insert(timer, next(self._serials))
            journal.append((self._live.pop, (timer, None)))

    def cancel(self, timer: Timer, journal: Journal) -> None:
        """Cancel a timer, if it is set."""
        serial = self._live.pop(timer, None)
        if serial is not None:
            journal.append((self._insert, (timer, serial)))

    def first(self) -> Timer | None:
        """Return the timer that fires next, or None."""
        heap, live = self._heap, self._live
        while heap and live.get(heap[0][3]) != heap[0][2]:
            heappop(heap)
        return heap[0][3] if heap else None

    def is_any_before(self, before_us: int, lowest: int, index: int) -> bool:
        """Return whether a timer is set before a time for a node from `lowest` to below `index`."""
        return any(us < before_us and lowest <= node < index for us, node, _ in self._live)

    def take_first(self, before_us: int, journal: Journal) -> list[Timer]:
        """Take the timers of one node and time that fire first, if before `before_us`."""
        found: list[Timer] = []
        while (timer := self.first()) is not None and timer[0] < before_us:
            if found and timer[:2] != found[0][:2]:
                break
            self.cancel(timer, journal)
            found.append(timer)
        return found

    def in_order(self) -> list[Timer]:
        """Return all timers in the order in which they fire."""
        return sorted(self._live, key=lambda timer: (timer[0], timer[1], self._live[timer]))

    def _insert(self, timer: Timer, serial: int) -> None:
        self._live[timer] = serial
        heappush(self._heap, (timer[0], timer[1], serial, timer))
