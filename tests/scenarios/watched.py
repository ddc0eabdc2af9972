"""Parts of a database that tell a scenario what they do, put in the place of the usual ones."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from activedb.transactions import TransactionNode
from activedb.transactions._crossing import Crossing
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


class WatchedCrossing(Crossing):
    """Crossing that breaks only the deadlocks that the server cannot see.

    The server would choose another victim, so that the outcome would depend on who looks first.
    And the process of the youngest transaction may take its time, also where there are others.
    """

    def _break(self, cycle: list[int], looks: int, waits: Any) -> None:
        following = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        if any(waits.place(waiter, other) != "at the server" for waiter, other in following):
            super()._break(cycle, 0, waits)


class WatchedEnds:
    """Log that tells the end of a transaction when it is one for the others: before its locks go.

    Its own thread may tell it later than they tell what they have seen of it.
    """

    def __init__(self, told: Callable[[TransactionNode], None]):
        self._told = told

    def began(self, t: TransactionNode) -> None: ...

    def spawned(self, t: TransactionNode, firing: str, coupling: str) -> None: ...

    def operated(self, t: TransactionNode, kind: str, table: str, keys: Any = None) -> None: ...

    def ended(self, t: TransactionNode) -> None:
        self._told(t)
