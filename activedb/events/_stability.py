"""Stable events: events that no event still on its way can precede or overlap.

After C. Liebig, M. Cilia, A. Buchmann, "Event Composition in Time-dependent Distributed Systems",
1999, section V. See README-time.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from activedb.errors import BadEvent
from activedb.events._accuracy import AccuracyInterval
from activedb.events._occurrence import Occurrence
from activedb.events._producers import Key, Producers

__all__ = ["Stabilizer"]

# (high_us, low_us, id or "", arrival, occurrence), or the same with both ends swapped.
# Arrivals differ, so a comparison never reaches the occurrence.
_Entry = tuple[int, int, str, int, Occurrence]


class Stabilizer:
    """Buffer that holds events back until they are stable, and releases them in order.

    An event x is *stable* when the sync points of all producers of the types are past
    ``x.high_us``: then no event still to come can be before it or overlap it. Events that arrive
    after everything at their time was declared stable are kept separately, for `take_late`; none
    is dropped. Not thread-safe: the caller must hold a latch.

    Parameters
    ----------
    producers : Producers
        The producers to wait for. Several stabilizers may share them.
    keys : iterable of (str, str), optional
        The event types to wait for, as in `Expression.keys`; None: any.

    Attributes
    ----------
    late_count : int
        The number of late events so far.
    """

    def __init__(self, producers: Producers, keys: Iterable[Key] | None = None):
        self.producers = producers
        self.keys = None if keys is None else frozenset(keys)
        self.late_count = 0
        self._by_high: list[_Entry] = []  # the waiting events, sorted
        self._by_low: list[_Entry] = []  # the same, sorted by (low_us, high_us, …)
        self._late: list[Occurrence] = []
        self._arrivals = 0
        self._stable_us = Producers.NOT_YET_US

    def __len__(self) -> int:
        """Return the number of waiting events."""
        return len(self._by_high)

    @property
    def stable_us(self) -> int:
        """The moment before which all events have been released; never decreases."""
        return self._stable_us

    def add(self, o: Occurrence, producer: str | None = None) -> None:
        """Add an event of `producer` (None: of its node), and move the producer's sync points.

        O(log n) plus a memory move, with n events waiting. An event whose interval begins before
        `stable_us` is late.

        Raises
        ------
        BadEvent
            As for `Producers.observe`, or if the event has none of the types. The state is
            unchanged.
        """
        if self.keys is not None and o.key not in self.keys:
            raise BadEvent(f"{o.key!r} is not among the event types that are waited for")
        self.producers.observe(o, producer)
        if o.low_us < self._stable_us:
            self.late_count += 1
            self._late.append(o)
            return
        self._arrivals += 1
        name = o.id or ""
        insort(self._by_high, (o.high_us, o.low_us, name, self._arrivals, o))
        insort(self._by_low, (o.low_us, o.high_us, name, self._arrivals, o))

    def heartbeat(self, stamp: AccuracyInterval) -> None:
        """Move the sync points of the stamp's node; see `Producers.heartbeat`."""
        self.producers.heartbeat(stamp)

    def sync(self, producer: str, us: int) -> None:
        """Move a producer's sync point: a punctuation or watermark; see `Producers.sync`."""
        self.producers.sync(producer, us)

    def take_stable(self) -> list[Occurrence]:
        """Return the events that are stable now, and declare them so.

        Events are in the order of (high_us, low_us, id, arrival), across calls too: events of a
        later call end later. O(p + k log n) plus memory moves, with p producers and k events
        returned.
        """
        sync_us = self.producers.sync_us(self.keys)
        end = bisect_left(self._by_high, sync_us, key=lambda entry: entry[0])
        taken = self._by_high[:end]
        del self._by_high[:end]
        for high_us, low_us, name, arrival, o in taken:
            del self._by_low[bisect_left(self._by_low, (low_us, high_us, name, arrival, o))]
        if sync_us >= Producers.NEVER_US:
            # No producer is left, but another may join: only the events so far are stable.
            sync_us = taken[-1][0] + 1 if taken else self._stable_us
        if sync_us > self._stable_us:
            self._stable_us = sync_us
            self.producers.note_stable(sync_us)
        return [entry[-1] for entry in taken]

    def take_late(self) -> list[Occurrence]:
        """Return the events that arrived late since the last call, in the order of arrival."""
        late, self._late = self._late, []
        return late

    def contemporaries(self, x: Occurrence) -> list[Occurrence]:
        """Return the waiting events that overlap `x`, by low_us; all there can be if x is stable.

        O(log n + k), with k waiting events that begin before x ends.
        """
        begun = bisect_right(self._by_low, x.high_us, key=lambda entry: entry[0])
        return [
            entry[-1]
            for entry in self._by_low[:begun]
            if entry[1] >= x.low_us and entry[-1] is not x
        ]
