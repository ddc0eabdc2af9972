"""Handover of micro-batches from Spark's thread to the thread that applies them.

Spark calls back on a separate thread. Applying a batch there would tie its transaction to a
thread that cannot be interrupted, and would turn its errors into text on their way through the JVM.
Here the caller's thread applies, and the two threads synchronise at each batch::

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
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Batch = TypeVar("Batch")

_HEED_S_MAX = 0.5  # upper bound on the delay of an interrupt


class RefusedError(Exception):
    """Error for Spark, never for a user: the batch was not applied and is not processed."""


@dataclass(frozen=True)
class _Offer(Generic[Batch]):
    batch: Batch
    applied: SimpleQueue[bool] = field(default_factory=SimpleQueue)


@dataclass(frozen=True)
class _End:
    error: BaseException | None


class Exchange(Generic[Batch]):
    """Handover of batches in one run."""

    def __init__(self) -> None:
        self._arrivals: SimpleQueue[_Offer[Batch] | _End] = SimpleQueue()
        # The latch guards the three attributes below: a producer that comes after the close does
        # not begin, and its offer is refused; one that comes before is known to the thread that
        # closes. An interrupt can come between any two steps of the caller's thread, even while it
        # starts the producer or has just taken an offer from the queue, so nothing may depend on
        # how far it got.
        self._latch = threading.Lock()
        self._closed = False
        self._producing = False
        self._latest: _Offer[Batch] | None = None
        self._ended = threading.Event()

    def offer(self, batch: Batch) -> None:
        """Wait until the caller's thread has applied ``batch``. One offer at a time.

        Raises
        ------
        RefusedError
            If applying it failed, or the run has ended.
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
        """Apply the offered batches, on this thread, until ``produce`` ends on its own thread.

        An exception from ``apply``, ``produce`` or an interrupt propagates unchanged. ``stop`` must
        make ``produce`` return soon; this returns, or raises, only after it has ended.
        """
        producer = threading.Thread(
            target=self._produce, args=(produce,), name="activedb-feed", daemon=True
        )
        try:
            producer.start()
            while isinstance(arrival := self._next(), _Offer):
                apply(arrival.batch)
                arrival.applied.put(True)
            if arrival.error is not None:
                raise arrival.error
        finally:
            stop()
            self._close()
            if self._producing:
                self._ended.wait()

    @property
    def is_closed(self) -> bool:
        """True if no more batches are applied, because applying one, or the caller, has failed."""
        return self._closed

    def _next(self) -> _Offer[Batch] | _End:
        # A signal that arrives between the last check for signals and the wait does not end the
        # wait: without a bound, an interrupt of an idle feed would occasionally be lost.
        while True:
            with suppress(Empty):
                return self._arrivals.get(timeout=_HEED_S_MAX)

    def _produce(self, produce: Callable[[], None]) -> None:
        with self._latch:
            if self._closed:
                return
            self._producing = True
        error: BaseException | None = None
        try:
            produce()
        except BaseException as raised:
            error = raised
        self._arrivals.put(_End(error))
        self._ended.set()

    def _close(self) -> None:
        with self._latch:
            self._closed = True
            if self._latest is not None:
                self._latest.applied.put(False)  # only the first answer counts
