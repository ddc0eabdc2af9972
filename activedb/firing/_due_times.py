"""Which rule's event time completes next."""

from __future__ import annotations

import itertools
import threading
from heapq import heappop, heappush

from activedb.rules import Subscription

__all__ = ["DueTimes"]


class DueTimes:
    """Subscriptions by when they are due; those that are not cost nothing.

    A detector is due when time will complete or decide something of it. It stands here once with
    its present time; entries in the heap with another one are leftovers.

    Latch: ``_latch``; nothing is taken under it.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._heap: list[tuple[int, int, Subscription]] = []
        self._due_us: dict[object, int] = {}
        self._serials = itertools.count()

    def __len__(self) -> int:
        return len(self._due_us)

    def set(self, subscription: Subscription, us: int | None) -> bool:
        """Let a subscription be due then; returns whether it is the first one now. O(log n)."""
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
        """When the first one is due; None if none is."""
        with self._latch:
            self._clean()
            return self._heap[0][0] if self._heap else None

    def take(self, before_us: int) -> tuple[int, list[Subscription]] | None:
        """Take out those that are due first, if that is before a time: when, and which they are."""
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
        """Forget all."""
        with self._latch:
            self._heap.clear()
            self._due_us.clear()

    def _clean(self) -> None:
        """Drop leftovers from the front. REQUIRES: the latch."""
        heap = self._heap
        while heap and self._due_us.get(heap[0][2].detection) != heap[0][0]:
            heappop(heap)
