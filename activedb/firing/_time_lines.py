"""Assignment of rules to time lines: the time of a stream, or the clock."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Mapping
from heapq import heappop, heappush
from typing import Protocol

from activedb.rules import Subscription

__all__ = ["DueTimes", "TimeLines"]


class _StreamEvents(Protocol):
    """Declared stream, reduced to the events that decide which rules follow its time."""

    @property
    def name(self) -> str: ...

    @property
    def types(self) -> Collection[str]: ...


class TimeLines:
    """Assignment of rules to streams, with a queue of due rules per stream.

    A rule follows the time of a stream if all its events are events of that stream, late ones
    included, or clock events beside them. All other rules follow the clock: rules on data changes,
    on signals, on events of several streams, or on clock events alone.

    Parameters
    ----------
    streams : mapping of str to stream
        The declared streams; more may be added.
    on_clock : callable ``(subscription)``
        Called when the due time of a rule that follows the clock may have changed.

    Attributes
    ----------
    streams : mapping of str to stream
        The assignment changes only with their number.
    """

    def __init__(
        self, streams: Mapping[str, _StreamEvents], on_clock: Callable[[Subscription], object]
    ):
        self.streams = streams
        # The number of streams and the assignment valid for it. They are replaced together, so that
        # a thread that looked for a rule before enters nothing into a later assignment.
        self._known: tuple[int, dict[frozenset[tuple[str, str]], str | None]] = (0, {})
        self._due: dict[str, DueTimes] = {}
        self._on_clock = on_clock

    def stream_of(self, subscription: Subscription) -> str | None:
        """Return the stream whose time a rule follows; None for the clock. O(keys) once."""
        number, (known, by_keys) = len(self.streams), self._known
        if known != number:
            by_keys = {}
            self._known = number, by_keys
        keys = subscription.keys
        if keys not in by_keys:
            by_keys[keys] = self._found(keys)
        return by_keys[keys]

    def due_in(self, stream: str) -> DueTimes:
        """Return the due times of the rules that follow a stream's time."""
        return self._due.setdefault(stream, DueTimes())

    def moved(self, subscription: Subscription) -> None:
        """Update when a subscription is due, after it was fed or advanced."""
        stream = self.stream_of(subscription)
        if stream is None:
            self._on_clock(subscription)
        else:
            self.due_in(stream).set(subscription, subscription.due_us)

    def _found(self, keys: frozenset[tuple[str, str]]) -> str | None:
        found: set[str] = set()
        for kind, name in keys:
            if kind == "late":
                found.add(name)
            elif kind == "event":
                streams = [s.name for s in list(self.streams.values()) if name in s.types]
                if len(streams) != 1:
                    return None
                found.add(streams[0])
            else:
                return None
        return found.pop() if len(found) == 1 and found <= self.streams.keys() else None


# -- queue of the rules whose events time completes, ordered by due time -----------------------


class DueTimes:
    """Queue of subscriptions by due time; a subscription without a due time costs nothing.

    A detector is due when time completes or decides one of its matches. Heap entries with another
    time than its present one are stale.

    Attributes
    ----------
    due_us : dict of object to int
        Present due time by detector.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._heap: list[tuple[int, int, Subscription]] = []
        self.due_us: dict[object, int] = {}
        self._serials = itertools.count()

    def __len__(self) -> int:
        return len(self.due_us)

    def set(self, subscription: Subscription, us: int | None) -> bool:
        """Set when a subscription is due; return whether it is first in the queue now. O(log n)."""
        with self._latch:
            detection = subscription.detection
            if us is None:
                self.due_us.pop(detection, None)
                return False
            if self.due_us.get(detection) != us:
                self.due_us[detection] = us
                heappush(self._heap, (us, next(self._serials), subscription))
            return self._heap[0][0] == us

    def first_us(self) -> int | None:
        """Return the earliest due time; None if the queue is empty."""
        with self._latch:
            self._clean()
            return self._heap[0][0] if self._heap else None

    def take(self, before_us: int) -> tuple[int, list[Subscription]] | None:
        """Take the subscriptions due first, with their time; None if that is not before a time."""
        with self._latch:
            self._clean()
            if not self._heap or self._heap[0][0] >= before_us:
                return None
            us = self._heap[0][0]
            found = []
            while self._heap and self._heap[0][0] == us:
                subscription = heappop(self._heap)[2]
                if self.due_us.get(subscription.detection) == us:
                    del self.due_us[subscription.detection]
                    found.append(subscription)
            return us, found

    def clear(self) -> None:
        """Empty the queue."""
        with self._latch:
            self._heap.clear()
            self.due_us.clear()

    def _clean(self) -> None:
        """Drop stale entries from the front. REQUIRES: the latch."""
        heap = self._heap
        while heap and self.due_us.get(heap[0][2].detection) != heap[0][0]:
            heappop(heap)
