"""Parts of a database that tell a scenario what they do, put in the place of the usual ones."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from activedb.transactions._offers import Offers
from activedb.transactions._pool import Pool, PoolTask

T = TypeVar("T")


class WatchedPool(Pool):
    """A pool whose tasks can be wrapped when they are submitted."""

    def __init__(self, threads: int):
        super().__init__(threads)
        self._wrapper = threading.local()

    @contextlib.contextmanager
    def wrapping(self, wrapper: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
        """Have what this thread submits meanwhile called as ``wrapper(call)``."""
        self._wrapper.call = wrapper
        try:
            yield
        finally:
            self._wrapper.call = None

    def submit(self, call: Callable[[], T], *args: Any, **kwargs: Any) -> PoolTask[T]:
        wrapper = getattr(self._wrapper, "call", None)
        if wrapper is None:
            return super().submit(call, *args, **kwargs)
        return super().submit(lambda: wrapper(call), *args, **kwargs)


class WatchedOffers(Offers):
    """Offers that count how often those who await one have looked, and went on waiting.

    Attributes
    ----------
    looks : Counter of transaction number
        Complete looks after which it went on waiting.
    """

    looks: Counter[int]

    def __init__(self, locks: Any):
        super().__init__(locks)
        self.looks = Counter()

    @property
    def awaited(self) -> dict[int, int]:
        """Return who waits for whose offer, by number."""
        with self._latch:
            return {child: edge.waited_for for child, edge in self._awaited.items()}

    def _is_blocked_by(self, superior: int, child: int) -> bool:
        is_blocked = super()._is_blocked_by(superior, child)
        if not is_blocked:
            self.looks[child] += 1
        return is_blocked
