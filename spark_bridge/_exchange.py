"""Hands micro-batches from Spark's thread to the thread that applies them.

Spark calls back on a thread of its own. Applying a batch there would tie its transaction to a
thread nobody can interrupt and would turn its errors into text on their way through the JVM. Here
the caller's thread applies, and the two meet at each batch::

    producer thread     Spark's callback thread          the caller's thread
    ---------------     -----------------------          -------------------
    drives the query    offer(batch) ──────────────────► run: apply(batch)
         │              waits                                │ returns   │ raises
         │              returns ◄────────── applied ─────────┘           │
         │              raises RefusedError ◄── closed ───────────────────┤
         └ ends ────────────────────────────────────────► run returns    └► run raises the same
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Batch = TypeVar("Batch")


class RefusedError(Exception):
    """The batch was not applied and must not count as processed. Told to Spark, never to a user."""


@dataclass(frozen=True)
class _Offer(Generic[Batch]):
    batch: Batch
    applied: SimpleQueue[bool] = field(default_factory=SimpleQueue)


@dataclass(frozen=True)
class _End:
    error: BaseException | None


class Exchange(Generic[Batch]):
    """One meeting place for one run."""

    def __init__(self) -> None:
        self._arrivals: SimpleQueue[_Offer[Batch] | _End] = SimpleQueue()
        # The latch guards the two below: an offer is either refused because this is closed, or
        # known to whoever closes it. An interrupt can come between any two steps of the caller's
        # thread, so the one place that answers for certain must not depend on what that thread
        # has already taken from the queue.
        self._latch = threading.Lock()
        self._closed = False
        self._latest: _Offer[Batch] | None = None

    def offer(self, batch: Batch) -> None:
        """Wait until the caller's thread has applied ``batch``. One offer at a time.

        Raises
        ------
        RefusedError
            If applying it failed, or nobody applies batches any more.
        """
        offer = _Offer(batch)
        with self._latch:
            if self._closed:
                raise RefusedError
            self._latest = offer
            self._arrivals.put(offer)
        if not offer.applied.get():
            raise RefusedError

    def run(
        self,
        produce: Callable[[], None],
        apply: Callable[[Batch], None],
        stop: Callable[[], None],
    ) -> None:
        """Apply what is offered, on this thread, until ``produce`` ends on its own thread.

        An exception from ``apply``, ``produce`` or an interrupt leaves as it is. ``stop`` must
        make ``produce`` return soon; this returns, or raises, only after it has ended.
        """
        producer = threading.Thread(
            target=self._produce, args=(produce,), name="activedb-feed", daemon=True
        )
        producer.start()
        try:
            while isinstance(arrival := self._arrivals.get(), _Offer):
                apply(arrival.batch)
                arrival.applied.put(True)
            if arrival.error is not None:
                raise arrival.error
        finally:
            stop()
            self._close()
            producer.join()

    def _produce(self, produce: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            produce()
        except BaseException as raised:
            error = raised
        self._arrivals.put(_End(error))

    def _close(self) -> None:
        with self._latch:
            self._closed = True
            if self._latest is not None:
                self._latest.applied.put(False)  # only the first answer counts
