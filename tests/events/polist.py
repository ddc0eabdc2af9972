"""Partially ordered lists of the paper, which show what the sync points of `Producers` decide.

After C. Liebig, M. Cilia, A. Buchmann, "Event Composition in Time-dependent Distributed Systems",
1999, section V.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from activedb.events import Occurrence, Producers, precedes


class POList:
    """A partially ordered list: the events of one operand (section V).

    Parameters
    ----------
    producers : Producers
        The producers that `is_stable` consults.
    keys : iterable of (str, str), optional
        The event types of the operand; None: any.
    """

    def __init__(self, producers: Producers, keys: Iterable[tuple[str, str]] | None = None):
        self._producers = producers
        self._keys = None if keys is None else frozenset(keys)
        self._events: dict[Occurrence, None] = {}  # in the order of arrival; compared by identity

    def __iter__(self) -> Iterator[Occurrence]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def add(self, o: Occurrence) -> None:
        """Add an event to the list; O(1)."""
        self._events[o] = None

    def remove(self, o: Occurrence) -> None:
        """Remove an event from the list; O(1).

        Raises
        ------
        KeyError
            If the event is not in the list.
        """
        del self._events[o]

    def oldest(self) -> list[Occurrence]:
        """Return the events that no other event precedes, in the order of arrival.

        O(n), plus O(n) for each event that overlaps the event with the earliest upper end.
        """
        return _minimal(list(self._events))

    def oldest_following(self, events: Iterable[Occurrence]) -> list[Occurrence]:
        """Return the oldest of the events that do not precede the oldest of `events`.

        The oldest of `events`, which must not be empty, is the one that begins first. Events that
        follow it or are in uncertain order with it count, as they may form a sequence. Events at
        exactly its time do not count, as they form none. O(n), as for `oldest`.
        """
        first = min(events, key=lambda o: o.low_us)
        return _minimal([o for o in self._events if _may_follow(o, first)])

    def newest(self) -> list[Occurrence]:
        """Return the events that precede no other, in the order of arrival; O(n), as `oldest`."""
        begins_us = max((o.low_us for o in self._events), default=0)
        return [
            o
            for o in self._events
            if o.high_us >= begins_us and not any(precedes(o, other) for other in self._events)
        ]

    def is_stable(self, events: Iterable[Occurrence]) -> bool:
        """Return whether no event still to come can join `events`, an oldest set; O(k p).

        That holds if everything still to come is certain to follow one of the events. The test is
        the predicate of section V, ``min upper < min sync point``; for the event's own node, the
        local sync point is sufficient too. The empty set is not stable.
        """
        return any(self._producers.is_past(o, self._keys) for o in events)


def _may_follow(o: Occurrence, first: Occurrence) -> bool:
    if o is first or precedes(o, first):
        return False
    return not o.low_us == o.high_us == first.low_us == first.high_us


def _minimal(events: list[Occurrence]) -> list[Occurrence]:
    ends_us = min((o.high_us for o in events), default=0)
    # An event that begins later is preceded. Among the others, only a local clock can give an
    # order.
    return [
        o for o in events if o.low_us <= ends_us and not any(precedes(other, o) for other in events)
    ]
