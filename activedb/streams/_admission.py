"""Admission of rows that arrive in a stream, and the stable time of its producers."""

from __future__ import annotations

from collections.abc import Iterable

from activedb.columns import Arrival
from activedb.errors import StreamFull
from activedb.events import Occurrence
from activedb.streams._arrivals import Arrivals, AtomicBatch, of_batch, of_occurrences
from activedb.streams._future import FutureLimit
from activedb.streams._membership import Membership
from activedb.streams._state import StreamState

__all__ = ["Admission"]


class Admission:
    """Classifier of rows as admitted, late or refused; it also records what producers have sent."""

    def __init__(self, state: StreamState, future: FutureLimit):
        self._state = state
        self._future = future

    def none(self) -> Arrivals:
        """Return no arrivals."""
        return Arrivals()

    def of_batch(self, batch: AtomicBatch) -> Arrivals:
        """Classify the rows of a batch."""
        late_us = self._state.punctuation_us
        if batch.matched is not None:  # its punctuation does not count its own rows
            known = [us for us in (late_us, batch.punctuation_us) if us is not None]
            late_us = max(known, default=None)
        return of_batch(self._state.stream, batch, late_us, self._future.checker())

    def of_events(self, events: Iterable[Occurrence], batch_id: int) -> Arrivals:
        """Classify events fed from Python."""
        state = self._state
        check = self._future.checker()
        return of_occurrences(state.stream, events, batch_id, state.punctuation_us, check)

    def of_producers(
        self, membership: Membership, events: Iterable[Occurrence], batch_id: int
    ) -> tuple[Arrivals, int | None]:
        """Classify events of producers and advance their sync points; refused events advance none.

        Returns
        -------
        arrivals : Arrivals
        stable_us : int or None
            See the method `stable_us`.

        Raises
        ------
        StreamFull
            If more events would have to wait than allowed; no event has been taken then.
        """
        state = self._state
        before = membership.records()
        check_time = self._future.checker()

        def check(o: Occurrence) -> None:
            check_time(o)
            membership.observe(o)

        arrivals = of_occurrences(state.stream, events, batch_id, state.punctuation_us, check)
        membership.heard()
        stable_us = self.stable_us(membership, arrivals.admitted)
        waiting_max = state.stream.waiting_max
        there = len(state.buffer) + len(arrivals.admitted)
        if there > waiting_max:
            left = there - state.buffer.passed(stable_us, arrivals.admitted)
            if left > waiting_max:
                membership.take_back(before)
                raise StreamFull(
                    f"stream {state.stream.name}: {left} events would have to wait until they are "
                    f"stable, and {waiting_max} may: feed fewer at a time, pass on the heartbeats "
                    "of the producers that are behind, or remove those that have gone"
                )
        return arrivals, stable_us

    def stable_us(self, membership: Membership, admitted: Iterable[Arrival] = ()) -> int | None:
        """Return the time that no future event of a producer precedes; None if unknown."""

        def ends() -> int | None:
            newest_us = self._state.buffer.newest_us()
            found = [a.occurrence.high_us for a in admitted]
            return max(found if newest_us is None else [*found, newest_us], default=None)

        return membership.stable_us(ends)
