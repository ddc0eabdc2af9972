"""Stable events: those that nothing still on its way can precede or overlap.

After C. Liebig, M. Cilia, A. Buchmann, "Event Composition in Time-dependent Distributed Systems",
1999, section V. See README-time.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from activedb.errors import BadEvent
from activedb.events._accuracy import AccuracyInterval
from activedb.events._occurrence import Occurrence
from activedb.events._precedence import precedes
from activedb.events._producers import Key, Producers

__all__ = ["POList", "Stabilizer"]

# (high_us, low_us, id or "", arrival, occurrence), and the same with the ends changed round.
# Arrivals differ, so comparing never reaches the occurrence.
_Entry = tuple[int, int, str, int, Occurrence]


class Stabilizer:
    """Holds events back until they are stable, and hands them out in order.

    An event x is *stable* when the sync points of all producers of the types are past
    ``x.high_us``: then no event still to come can be before it or overlap it. Events that arrive
    too late for what has been declared stable are kept apart, for `take_late`; none is dropped. Not
    safe to share unlatched.

    Parameters
    ----------
    producers : Producers
        Those that are waited for. Several stabilizers may share them.
    keys : iterable of (str, str), optional
        The event types that are waited for, as in `Expression.keys`; None: any.

    Attributes
    ----------
    late_count : int
        How many events were late so far.
    """

    def __init__(self, producers: Producers, keys: Iterable[Key] | None = None):
        self.producers = producers
        self.keys = None if keys is None else frozenset(keys)
        self.late_count = 0
        self._by_high: list[_Entry] = []  # sorted; those that wait
        self._by_low: list[_Entry] = []  # the same, sorted by (low_us, high_us, …)
        self._late: list[Occurrence] = []
        self._arrivals = 0
        self._stable_us = Producers.NOT_YET_US

    def __len__(self) -> int:
        """How many events wait."""
        return len(self._by_high)

    @property
    def stable_us(self) -> int:
        """The moment before which everything has been handed out; only ever later."""
        return self._stable_us

    def add(self, o: Occurrence, producer: str | None = None) -> None:
        """Take an event of `producer` (None: of its node), and move that one's sync points.

        O(log n), plus a memory move, with n events waiting. An event whose interval begins before
        `stable_us` is late.

        Raises
        ------
        BadEvent
            As `Producers.observe`, or if it is of none of the types. Nothing has changed then.
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

        They are in the order of (high_us, low_us, id, arrival), and so is all that is ever
        returned: what a later call returns ends later. O(p + k log n), plus memory moves, with p
        producers and k events returned.
        """
        sync_us = self.producers.sync_us(self.keys)
        end = bisect_left(self._by_high, sync_us, key=lambda entry: entry[0])
        taken = self._by_high[:end]
        del self._by_high[:end]
        for high_us, low_us, name, arrival, o in taken:
            del self._by_low[bisect_left(self._by_low, (low_us, high_us, name, arrival, o))]
        if sync_us >= Producers.NEVER_US:
            # Nobody is left to send, but somebody may join: stable is what there was.
            sync_us = taken[-1][0] + 1 if taken else self._stable_us
        if sync_us > self._stable_us:
            self._stable_us = sync_us
            self.producers.note_stable(sync_us)
        return [entry[-1] for entry in taken]

    def take_late(self) -> list[Occurrence]:
        """Return the events that came too late since the last call, as they came."""
        late, self._late = self._late, []
        return late

    def contemporaries(self, x: Occurrence) -> list[Occurrence]:
        """Return the events that wait and overlap `x`, by low_us; of a stable x, all there can be.

        O(log n + k), with k of them beginning before x ends.
        """
        begun = bisect_right(self._by_low, x.high_us, key=lambda entry: entry[0])
        return [
            entry[-1]
            for entry in self._by_low[:begun]
            if entry[1] >= x.low_us and entry[-1] is not x
        ]


class POList:
    """A partially ordered list: the events of one operand (section V).

    Parameters
    ----------
    producers : Producers
        Those that `is_stable` asks.
    keys : iterable of (str, str), optional
        The event types of the operand; None: any.
    """

    def __init__(self, producers: Producers, keys: Iterable[Key] | None = None):
        self._producers = producers
        self._keys = None if keys is None else frozenset(keys)
        self._events: dict[Occurrence, None] = {}  # in the order of arrival; equality is identity

    def __iter__(self) -> Iterator[Occurrence]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def add(self, o: Occurrence) -> None:
        """Put an event into the list; O(1)."""
        self._events[o] = None

    def remove(self, o: Occurrence) -> None:
        """Take an event out of the list; O(1).

        Raises
        ------
        KeyError
            If it is not in there.
        """
        del self._events[o]

    def oldest(self) -> list[Occurrence]:
        """Return the events that no other precedes, as they arrived.

        O(n), plus O(n) for each event that overlaps the one which ends first.
        """
        return _minimal(list(self._events))

    def oldest_following(self, events: Iterable[Occurrence]) -> list[Occurrence]:
        """Return the oldest of the events that do not precede the oldest of `events`.

        The oldest of `events`, at least one, is the one that begins first. What follows it or is
        uncertain to it counts, as there may be a sequence; what is exactly at its time does not, as
        there is none. O(n), as `oldest`.
        """
        first = min(events, key=lambda o: o.low_us)
        return _minimal([o for o in self._events if _may_follow(o, first)])

    def newest(self) -> list[Occurrence]:
        """Return the events that precede no other, as they arrived; O(n), as `oldest`."""
        begins_us = max((o.low_us for o in self._events), default=0)
        return [
            o
            for o in self._events
            if o.high_us >= begins_us and not any(precedes(o, other) for other in self._events)
        ]

    def is_stable(self, events: Iterable[Occurrence]) -> bool:
        """Whether no event still to come can belong to `events`, an oldest set; O(k p).

        That is so if one of them is certain to be followed by everything that is still to come:
        the section's predicate, ``min upper < min sync point``, and, where the local clock of the
        event's own node can tell, that. The empty set is not stable.
        """
        return any(self._producers.is_past(o, self._keys) for o in events)


def _may_follow(o: Occurrence, first: Occurrence) -> bool:
    if o is first or precedes(o, first):
        return False
    return not o.low_us == o.high_us == first.low_us == first.high_us


def _minimal(events: list[Occurrence]) -> list[Occurrence]:
    ends_us = min((o.high_us for o in events), default=0)
    # What begins later is preceded; of the others only a local clock can tell.
    return [
        o for o in events if o.low_us <= ends_us and not any(precedes(other, o) for other in events)
    ]
