"""Atomic batches of a stream as s-transactions, one at a time in event-time order.

The scheduler is single-event-initiated (Wang, Rundensteiner, Ellison 2011, section 5.1): one
event's s-transaction ends before the next one's begins, so the result is that of event-time
order (definition 6) by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

from activedb.engine._firings import STREAM_RUN
from activedb.engine._launcher import Launcher
from activedb.engine._letters import Letter
from activedb.engine._triggered import Fed, is_systemic
from activedb.engine._triggering import Triggering
from activedb.errors import BatchFailed, CheckpointMismatch, ConnectionLost, StoreError
from activedb.events import Occurrence
from activedb.store import LedgerEntry, StreamJournal
from activedb.streams import (
    Arrival,
    Arrivals,
    AtomicBatch,
    EventTimeBuffer,
    Refused,
    Stream,
    of_batch,
    of_occurrences,
)
from activedb.transactions import Forest, Run, Transaction

__all__ = ["StreamRun"]

_DETACHED_MAX = 2_000  # detached rules under way when a part begins


class StreamRun:
    """Takes the atomic batches of one stream, from where the ledger says it stopped.

    Each micro-batch is processed in parts of about ``batch_events_max`` events. A part is one
    top-level transaction: its events' s-transactions are subtransactions of it, and the ledger
    row, the waiting events and the dead letters commit with their effects. A part that the
    ledger knows is not processed again.

    Not thread-safe: one thread feeds a stream.

    Attributes
    ----------
    fail_fast : bool
        Stop at an offending event instead of keeping it as a dead letter.
    on_progress : callable ``(events)``
        Called with the number of events that have just been processed durably.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        forest: Forest,
        triggering: Triggering,
        launcher: Launcher,
        journal: StreamJournal,
    ):
        self.stream = stream
        self.fail_fast = False
        self.on_progress: Callable[[int], None] = lambda events: None
        self._forest = forest
        self._triggering = triggering
        self._launcher = launcher
        self._journal = journal
        self._keys = [("event", name) for name in stream.types]
        self._last: LedgerEntry | None = None
        self._load(absorb=True)

    def apply(self, batch: AtomicBatch) -> None:
        """Process a micro-batch, unless the ledger says that it took effect already.

        Raises
        ------
        BatchFailed
            At an offending event, if asked to stop there; nothing of the part is written then.
        CheckpointMismatch
            If the batch does not continue what the ledger holds.
        """
        self.check_continues(batch.query_id, batch.batch_id)
        self._apply(
            batch.query_id,
            batch.batch_id,
            lambda: of_batch(self.stream, batch, self.punctuation_us),
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
            known.

        Raises
        ------
        BatchFailed
            As `apply`.
        """
        query_id = f"python-{self.stream.name}" if self._last is None else self._last.query_id
        batch_id = 0 if self._last is None else self._last.batch_id + 1
        self._apply(
            query_id,
            batch_id,
            lambda: of_occurrences(self.stream, events, batch_id, self.punctuation_us),
            punctuation_us,
        )

    def finish(self) -> None:
        """The end of the stream: process the events that still wait, end the detached rules."""
        last = self._last
        newest_us = self._buffer.newest_us()
        if last is not None and newest_us is not None:
            first = replace(last, part=last.part + 1, punctuation_us=newest_us + 1)
            self._run_parts(first, Arrivals())
        self._launcher.join()
        if self._launcher.recover():  # those that a lost connection or a lock kept from ending
            self._launcher.join()
        if last is not None:
            self._launcher.of_batches.forget_done(self._run_name(last))

    @property
    def punctuation_us(self) -> int | None:
        """Every event before it has been processed; later arrivals before it are late."""
        return None if self._last is None else self._last.punctuation_us

    @property
    def waiting(self) -> int:
        """How many events wait for the punctuation."""
        return len(self._buffer)

    def totals(self) -> dict[str, int]:
        """Events processed, late and dead since the stream began, from the ledger."""
        return self._journal.totals()

    def late_events(self) -> list[Arrival]:
        """The events that came too late, in order of arrival."""
        return [Arrival.restore(record) for record in self._journal.late()]

    # -- parts -----------------------------------------------------------------------------

    def _apply(
        self,
        query_id: str,
        batch_id: int,
        arrivals: Callable[[], Arrivals],
        punctuation_us: int | None,
    ) -> None:
        last = self._last
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
        self._run_parts(first, arrivals() if part == 0 else Arrivals())

    def _run_parts(self, entry: LedgerEntry, arrivals: Arrivals) -> None:
        """Process what `entry`'s punctuation has passed, part by part from `entry` on."""
        self._buffer.add(arrivals.admitted)
        punctuation_us = entry.punctuation_us
        try:
            while True:
                chunk, next_us = self._next_chunk(punctuation_us)
                entry = replace(
                    entry,
                    sequence=1 if self._last is None else self._last.sequence + 1,
                    punctuation_us=punctuation_us if next_us is None else next_us,
                    complete=next_us is None,
                    events=len(chunk),
                    late=len(arrivals.late),
                )
                self._run_part(entry, chunk, arrivals)
                self._buffer.remove_first(len(chunk))
                self._last = entry
                self.on_progress(len(chunk))
                if next_us is None:
                    return
                entry, arrivals = replace(entry, part=entry.part + 1), Arrivals()
        except BaseException:
            self._load(absorb=False)
            raise

    def _next_chunk(self, punctuation_us: int | None) -> tuple[list[Arrival], int | None]:
        if punctuation_us is None:
            return [], None
        return self._buffer.first(punctuation_us, self._forest.settings.batch_events_max)

    def _run_part(self, entry: LedgerEntry, chunk: list[Arrival], arrivals: Arrivals) -> None:
        # Not named after batch and part: what is done again may be parted differently.
        run = Run(name=self._run_name(entry), is_batch=True)
        self._launcher.join(running_max=_DETACHED_MAX)

        def body(t: Transaction) -> None:
            self._process(t, entry, chunk, arrivals)

        try:
            self._forest.run(body, run)
        except ConnectionLost:
            raise
        except StoreError:
            # The server refused something. Once more, asking it event by event, so that the
            # offending event alone is undone.
            run.careful = True
            self._forest.run(body, run)
        self._launcher.of_batches.committed(run)

    def _process(
        self, t: Transaction, entry: LedgerEntry, chunk: list[Arrival], arrivals: Arrivals
    ) -> None:
        letters = [self._refuse(entry, refused) for refused in arrivals.refused]
        dead: list[Arrival] = []
        for arrival in chunk:
            letter = self._s_transaction(t, arrival)
            if letter is not None:
                dead.append(arrival)
                letters.append(letter)
        forget_before_us = self._forget_before_us(entry.punctuation_us)
        keep = [
            arrival.record()
            for arrival in arrivals.admitted
            if forget_before_us is None or arrival.occurrence.us >= forget_before_us
        ]
        late = [arrival.record() for arrival in arrivals.late]
        final = replace(entry, dead=len(letters))

        def write(connection: Any) -> None:
            self._journal.write(
                connection,
                final,
                keep=keep,
                late=late,
                drop=[(a.occurrence.us, a.batch_id, a.position) for a in dead],
                forget_before_us=forget_before_us,
            )
            self._launcher.journal.write_letters(connection, [asdict(x) for x in letters])
            self._launcher.of_batches.settle(connection, t.hierarchy.run)

        t.hierarchy.durable.append(write)

    def _s_transaction(self, t: Transaction, arrival: Arrival) -> Letter | None:
        """Process one event; a letter if it failed and has left nothing behind."""
        o = arrival.occurrence
        fed: list[Fed] = []
        try:
            triggered, fed = self._triggering.feed(o, t)
            self._triggering.keep(t, fed)
            if triggered:
                with t.hierarchy.undoing() if t.hierarchy.run.careful else nullcontext():
                    t.run_child(
                        lambda s: self._triggering.trigger(s, triggered),
                        label=f"{arrival.batch_id}.{arrival.position}",
                        timestamp=o.timestamp,
                    )
        except Exception as error:
            if is_systemic(error, t):
                raise
            if self.fail_fast:
                raise BatchFailed(f"stream {self.stream.name}: {o!r}: {error}") from error
            self._triggering.take_back(t, fed)
            return Letter.of_event(
                self.stream.name,
                f"{arrival.batch_id}.{arrival.position}",
                arrival.record(),
                error,
            )
        return None

    def _refuse(self, entry: LedgerEntry, refused: Refused) -> Letter:
        if self.fail_fast:
            raise BatchFailed(
                f"stream {self.stream.name}: row {refused.position} of batch {entry.batch_id}: "
                f"{refused.error}"
            )
        identity = f"{entry.batch_id}.{refused.position}"
        return Letter.of_event(self.stream.name, identity, refused.payload, refused.error)

    def _forget_before_us(self, punctuation_us: int | None) -> int | None:
        """Events before this can take part in no later match; None keeps them all."""
        horizons = [s.horizon_us for s in self._triggering.catalog.listening_to_any(self._keys)]
        if punctuation_us is None or None in horizons:
            return None
        return punctuation_us - max((h for h in horizons if h is not None), default=0)

    def _run_name(self, entry: LedgerEntry) -> str:
        return f"{STREAM_RUN}{self.stream.name}/{entry.query_id}"

    # -- state -----------------------------------------------------------------------------

    def _load(self, *, absorb: bool) -> None:
        """Read where the stream stopped.

        Parameters
        ----------
        absorb : bool
            Show the detectors the kept events that were processed before.
        """
        self._buffer = EventTimeBuffer()
        self._last = self._journal.last()
        if absorb:
            self._launcher.of_batches.remember_done(f"{STREAM_RUN}{self.stream.name}/")
        arrivals = [Arrival.restore(record) for record in self._journal.kept_events()]
        passed_us = self.punctuation_us
        waiting: list[Arrival] = []
        for arrival in sorted(arrivals, key=lambda a: a.order):
            if passed_us is None or arrival.occurrence.us >= passed_us:
                waiting.append(arrival)
            elif absorb:
                self._triggering.absorb(arrival.occurrence)
        self._buffer.add(waiting)

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
        last = self._last
        name = self.stream.name
        if last is not None and last.query_id != query_id:
            raise CheckpointMismatch(
                f"stream {name} was fed by query {last.query_id} so far, and this is "
                f"{'a new query' if query_id is None else f'query {query_id}'}: its checkpoint is "
                f"new, or another one. Use the old checkpoint, or start over with an empty "
                f"database"
            )
        if last is not None and batch_id > last.batch_id + 1:
            raise CheckpointMismatch(
                f"stream {name}: the checkpoint is at batch {batch_id}, but this database stopped "
                f"at batch {last.batch_id}. Use the database that belongs to the checkpoint, as it "
                f"was last"
            )
        if last is None and batch_id > 0:
            raise CheckpointMismatch(
                f"stream {name}: the checkpoint is at batch {batch_id}, but this database has "
                f"seen none of its batches. Use the old database, or remove the checkpoint to "
                f"start over"
            )
