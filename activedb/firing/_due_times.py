"""Queue of the rules whose events time completes, ordered by due time."""

from __future__ import annotations

import itertools
import threading
from heapq import heappop, heappush

from activedb.rules import Subscription

__all__ = ["DueTimes"]


class DueTimes:
    """Queue of subscriptions by due time; a subscription without a due time costs nothing.

    A detector is due when time completes or decides one of its matches. `_due_us` has its present
    due time; heap entries with another time are stale.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._heap: list[tuple[int, int, Subscription]] = []
        self._due_us: dict[object, int] = {}
        self._serials = itertools.count()

    def __len__(self) -> int:
        return len(self._due_us)

    def set(self, subscription: Subscription, us: int | None) -> bool:
        """Set when a subscription is due; return whether it is first in the queue now. O(log n)."""
        with self._latch:
            detection = subscription.detection
            if us is None:
                self._due_us.pop(detection, None)
                return False
            if self._due_us.get(detection) != us:
                self._due_us[detection] = us
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
                if self._due_us.get(subscription.detection) == us:
                    del self._due_us[subscription.detection]
                    found.append(subscription)
            return us, found

    def clear(self) -> None:
        """Empty the queue."""
        with self._latch:
            self._heap.clear()
            self._due_us.clear()

    def _clean(self) -> None:
        """Drop stale entries from the front. REQUIRES: the latch."""
        heap = self._heap
        while heap and self._due_us.get(heap[0][2].detection) != heap[0][0]:
            heappop(heap)
