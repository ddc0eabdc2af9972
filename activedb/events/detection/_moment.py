"""Step that the nodes process, and the timers whose moments are steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from itertools import count

from activedb.events._expressions import Reader
from activedb.events._occurrence import Occurrence
from activedb.events.detection._journal import Journal

__all__ = ["DECISION", "Moment", "Timer", "Timers"]


DECISION = -2
"""Node index of a moment at which an open choice is decided; it concerns all nodes."""


class Moment:
    """Step as the nodes process it: an event that is fed, or the timers due at one node.

    Attributes
    ----------
    o : Occurrence or None
        The event that is fed, or a clock event.
    index : int
        The node whose timers fire, or the number of the clock event; -1: an event is fed.
    us, called :
        The time of the timers, and the node's names for them.
    reader : object
        The transaction through which predicates read the shared store.
    journal : Journal
        The undo operations of the moment.
    said : dict
        Results of readings, by node, reading and the events that they were evaluated for.
    contemporaries : tuple of Occurrence
        Events not fed yet that may be before `o`.
    """

    __slots__ = (
        "_arrival",
        "called",
        "contemporaries",
        "index",
        "journal",
        "o",
        "reader",
        "said",
        "us",
    )

    def __init__(
        self,
        o: Occurrence | None,
        reader: Reader,
        journal: Journal,
        said: dict[Hashable, bool],
        *,
        index: int = -1,
        us: int = 0,
        called: tuple[Hashable, ...] = (),
        contemporaries: tuple[Occurrence, ...] = (),
    ):
        self.o = o
        self.index = index
        self.us = us
        self.called = called
        self.reader = reader
        self.journal = journal
        self.said = said
        self.contemporaries = contemporaries
        self._arrival = -1

    def place(self, arrivals: Iterator[int]) -> tuple[int, str, int]:
        """Return the place of the event that is fed; the same for all nodes.

        The first call takes the event's arrival from `arrivals`.
        """
        o = self.o
        assert o is not None
        if self._arrival < 0:
            self._arrival = next(arrivals)
        return (o.us, o.id or "", self._arrival)


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
