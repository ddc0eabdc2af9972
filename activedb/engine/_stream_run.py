"""Atomic batches of a stream, taken from where the ledger says that it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from activedb.engine._admission import Admission
from activedb.engine._future import FutureLimit
from activedb.engine._launcher import Launcher
from activedb.engine._membership import Membership
from activedb.engine._s_transactions import STransactions
from activedb.engine._stream_parts import StreamParts
from activedb.engine._stream_programs import StreamPrograms
from activedb.engine._stream_state import StreamState
from activedb.engine._stream_time import StreamTime
from activedb.engine._triggering import Triggering
from activedb.errors import ConfigurationError
from activedb.events import Occurrence
from activedb.store import LedgerEntry, StreamJournal
from activedb.streams import Arrival, Arrivals, AtomicBatch, Stream, fed_occurrences
from activedb.transactions import Forest

if TYPE_CHECKING:
    from activedb.engine.columns import ColumnParts, ColumnProgram

__all__ = ["StreamRun"]


class StreamRun:
    """Takes the atomic batches of one stream, from where the ledger says it stopped.

    Each micro-batch is processed in parts of about ``batch_events_max`` events. A part is one
    top-level transaction: its events' s-transactions are subtransactions of it, and the ledger
    row, the waiting events and the dead letters commit with their effects. A part that the
    ledger knows is not processed again.

    If its program runs in columns (`activedb.engine.columns`), all that the punctuation has passed
    is one part.

    Not thread-safe: one thread feeds a stream.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        forest: Forest,
        triggering: Triggering,
        launcher: Launcher,
        journal: StreamJournal,
        time: StreamTime,
        future: FutureLimit,
        membership: Membership | None = None,
        programs: StreamPrograms | None = None,
        columns: ColumnProgram | None = None,
    ):
        self.stream = stream
        self._launcher = launcher
        self._journal = journal
        self._membership = membership
        self._s_transactions = STransactions(stream, triggering=triggering, time=time)
        waiting = None
        if columns is not None:
            from activedb.engine.columns import ColumnAdmission, ColumnParts, WaitingColumns

            waiting = WaitingColumns()
        self._state = StreamState(
            stream,
            forest=forest,
            triggering=triggering,
            launcher=launcher,
            journal=journal,
            time=time,
            membership=membership,
            programs=programs if columns is None else columns,
            columns=waiting,
        )
        self._by_rows = StreamParts(
            self._state,
            self._s_transactions,
            forest=forest,
            launcher=launcher,
            journal=journal,
            time=time,
            membership=membership,
            programs=programs,
        )
        # Here the two ways of processing part: event by event, and in columns.
        self._admission = Admission(self._state, future)
        self._parts: StreamParts | ColumnParts = self._by_rows
        if columns is not None:
            self._admission = ColumnAdmission(self._state, future)
            self._parts = ColumnParts(
                self._state,
                self._s_transactions,
                by_rows=self._by_rows,
                program=columns,
                forest=forest,
                launcher=launcher,
                journal=journal,
            )
        self._state.load(begins=True)

    @property
    def fail_fast(self) -> bool:
        """Whether it stops at an offending event instead of keeping it as a dead letter."""
        return self._s_transactions.fail_fast

    @fail_fast.setter
    def fail_fast(self, fails: bool) -> None:
        self._s_transactions.fail_fast = fails

    @property
    def on_progress(self) -> Callable[[int], None]:
        """Called with the number of events that have just been processed durably."""
        return self._by_rows.on_progress

    @on_progress.setter
    def on_progress(self, call: Callable[[int], None]) -> None:
        self._by_rows.on_progress = call

    def apply(self, batch: AtomicBatch) -> None:
        """Process a micro-batch, unless the ledger says that it took effect already.

        Raises
        ------
        BatchFailed
            At an offending event, if asked to stop there; nothing of the part is written then.
        CheckpointMismatch
            If the batch does not continue what the ledger holds.
        """
        if self._membership is not None:
            raise ConfigurationError(
                f"the producers of stream {self.stream.name} stamp its events: they come from "
                "Python, with db.feed"
            )
        self.check_continues(batch.query_id, batch.batch_id)
        self._apply(
            batch.query_id,
            batch.batch_id,
            lambda: self._admission.of_batch(batch),
            batch.punctuation_us,
        )

    def feed(self, events: Iterable[Occurrence], punctuation_us: int | None = None) -> None:
        """Process events that come from Python, without Spark, as one micro-batch.

        Parameters
        ----------
        events : iterable of Occurrence
            In any order.
        punctuation_us : int or None
            Every event before it has been seen; those at or after it wait. None: nothing new is
            known, but from the producers, if the stream has some.

        Raises
        ------
        BadEvent
            If one of them is no occurrence; nothing has been taken then.
        BatchFailed
            As `apply`.
        ProducerSilent
            If a producer is; nothing has been taken then.
        StreamFull
            If more events would have to wait than may; nothing has been taken then.
        """
        self._state.mend()
        events = fed_occurrences(self.stream, events)
        membership = self._membership
        if membership is None:
            query_id, batch_id = self._state.next_feed()
            self._apply(
                query_id,
                batch_id,
                lambda: self._admission.of_events(events, batch_id),
                punctuation_us,
            )
            return
        if punctuation_us is not None:
            raise ConfigurationError(
                f"stream {self.stream.name} needs no punctuation: its producers tell what is stable"
            )
        # First: whoever is told of a silent producer may remove it, which is a feed, too.
        membership.look([o.producer for o in events])
        query_id, batch_id = self._state.next_feed()
        arrivals, stable_us = self._admission.of_producers(membership, events, batch_id)
        self._apply(query_id, batch_id, lambda: arrivals, stable_us)

    def settle(self, *, must_write: bool) -> None:
        """Process what producers have made stable. REQUIRES: the stream has producers.

        Parameters
        ----------
        must_write : bool
            Whether who counts has changed, so that it is written though nothing is stable.
        """
        self._state.mend()
        assert self._membership is not None
        stable_us = self._admission.stable_us(self._membership)
        if must_write or self._state.is_awaited(stable_us):
            query_id, batch_id = self._state.next_feed()
            self._apply(query_id, batch_id, self._admission.none, stable_us)

    def finish(self) -> None:
        """The end of the stream: process the events that still wait, end the detached rules.

        What waits for producers goes on waiting for them. Time goes on to the newest event and not
        beyond it: what would be due later waits for a later punctuation.
        """
        self._state.mend()
        last = self._state.last
        newest_us = None if self._membership is not None else self._state.newest_us()
        if last is not None and newest_us is not None:
            first = replace(last, part=last.part + 1, punctuation_us=newest_us + 1, complete=True)
            self._parts.run(first, self._admission.none())
        self._launcher.join()
        if self._launcher.recover():  # those that a lost connection or a lock kept from ending
            self._launcher.join()
        if last is not None:
            self._launcher.of_batches.forget_done(self._state.run_name(last))

    @property
    def punctuation_us(self) -> int | None:
        """Every event before it has been processed; later arrivals before it are late."""
        return self._state.punctuation_us

    @property
    def waiting(self) -> int:
        """How many events wait for the punctuation."""
        return self._state.waiting

    @property
    def batches(self) -> int:
        """How many batches it has taken; of what comes from Python each feed is one.

        A feed after which a program has crashed was taken, every event of it, if there is one more
        than before it; else nothing of it was.
        """
        self._state.mend()
        last = self._state.last
        return 0 if last is None else last.batch_id + 1

    def totals(self) -> dict[str, int]:
        """Events processed, late and dead since the stream began, from the ledger."""
        return self._journal.totals()

    def late_events(self) -> list[Arrival]:
        """The events that came too late, in order of arrival."""
        return [Arrival.restore(record) for record in self._journal.late()]

    def check_continues(self, query_id: str | None, batch_id: int) -> None:
        """Check that a feed which goes on with this batch continues what the ledger holds.

        Parameters
        ----------
        query_id : str or None
            The feed's query; None for one that has not begun.
        batch_id : int
            The batch it goes on with.

        Raises
        ------
        CheckpointMismatch
            If events would be processed twice, or not at all.
        """
        self._state.mend()
        self._state.check_continues(query_id, batch_id)

    def _apply(
        self,
        query_id: str,
        batch_id: int,
        arrivals: Callable[[], Arrivals],
        punctuation_us: int | None,
    ) -> None:
        last = self._state.last
        part = 0
        if last is not None and last.query_id == query_id and batch_id <= last.batch_id:
            if batch_id < last.batch_id or last.complete:
                return
            part = last.part + 1
        known = [us for us in (self.punctuation_us, punctuation_us) if us is not None]
        first = LedgerEntry(
            query_id=query_id,
            batch_id=batch_id,
            part=part,
            sequence=0,
            punctuation_us=max(known, default=None),
            complete=True,
            events=0,
            late=0,
            dead=0,
        )
        # Rows of a batch that has parts in the ledger are in the buffer already.
        self._parts.run(first, arrivals() if part == 0 else self._admission.none())
