"""Atomic batches of a stream as s-transactions, one at a time in event-time order.

The scheduler is single-event-initiated (Wang, Rundensteiner, Ellison 2011, section 5.1): one
event's s-transaction ends before the next one's begins, so the result is that of event-time
order (definition 6) by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from activedb.engine._firings import STREAM_RUN
from activedb.engine._launcher import Launcher
from activedb.engine._letters import Letter
from activedb.engine._membership import Changes, Membership
from activedb.engine._stream_time import StreamTime
from activedb.engine._triggered import Fed, Triggered, is_systemic
from activedb.engine._triggering import Triggering
from activedb.errors import (
    BatchFailed,
    CheckpointMismatch,
    ConfigurationError,
    ConnectionLost,
    StoreError,
    StreamFull,
    UncertainOrder,
)
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

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
        time: StreamTime,
        membership: Membership | None = None,
    ):
        self.stream = stream
        self.fail_fast = False
        self.on_progress: Callable[[int], None] = lambda events: None
        self._forest = forest
        self._triggering = triggering
        self._launcher = launcher
        self._journal = journal
        self._time = time
        self._membership = membership
        self._joined: Changes = {}
        self._states: dict[str, tuple[str, dict[str, Any]]] = {}
        self._last: LedgerEntry | None = None
        self._load(begins=True)

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
            known, but from the producers, if the stream has some.

        Raises
        ------
        BatchFailed
            As `apply`.
        ProducerSilent
            If a producer is; nothing has been taken then.
        StreamFull
            If more events would have to wait than may; nothing has been taken then.
        """
        arrivals = None
        if self._membership is not None:
            if punctuation_us is not None:
                raise ConfigurationError(
                    f"stream {self.stream.name} needs no punctuation: its producers tell what is "
                    "stable"
                )
            events = list(events)
            # First: whoever is told of a silent producer may remove it, which is a feed, too.
            self._membership.look([o.producer for o in events])
        query_id, batch_id = self._next_feed()
        if self._membership is not None:
            arrivals = self._of_producers(self._membership, events, batch_id)
            punctuation_us = self._stable_us(arrivals.admitted)
        self._apply(
            query_id,
            batch_id,
            lambda: (
                of_occurrences(self.stream, events, batch_id, self.punctuation_us)
                if arrivals is None
                else arrivals
            ),
            punctuation_us,
        )

    def settle(self, *, must_write: bool) -> None:
        """Process what producers have made stable. REQUIRES: the stream has producers.

        Parameters
        ----------
        must_write : bool
            Whether who counts has changed, so that it is written though nothing is stable.
        """
        punctuation_us = self._stable_us()
        if must_write or self._is_awaited(punctuation_us):
            query_id, batch_id = self._next_feed()
            self._apply(query_id, batch_id, Arrivals, punctuation_us)

    def finish(self) -> None:
        """The end of the stream: process the events that still wait, end the detached rules.

        What waits for producers goes on waiting for them. Time goes on to the newest event and not
        beyond it: what would be due later waits for a later punctuation.
        """
        last = self._last
        newest_us = None if self._membership is not None else self._buffer.newest_us()
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

    # -- producers -------------------------------------------------------------------------

    def _of_producers(
        self, membership: Membership, events: Iterable[Occurrence], batch_id: int
    ) -> Arrivals:
        """Sort events of producers, whose sync points they move."""
        before = membership.records()
        arrivals = of_occurrences(
            self.stream, events, batch_id, self.punctuation_us, membership.observe
        )
        membership.heard()
        there = len(self._buffer) + len(arrivals.admitted)
        if there > self.stream.waiting_max:
            stable_us = self._stable_us(arrivals.admitted)
            left = there - self._buffer.passed(stable_us, arrivals.admitted)
            if left > self.stream.waiting_max:
                membership.take_back(before)
                raise StreamFull(
                    f"stream {self.stream.name}: {left} events would have to wait until they are "
                    f"stable, and {self.stream.waiting_max} may: feed fewer at a time, pass on the "
                    "heartbeats of the producers that are behind, or remove those that have gone"
                )
        return arrivals

    def _stable_us(self, admitted: Iterable[Arrival] = ()) -> int | None:
        """The moment that nothing still to come from producers reaches."""
        assert self._membership is not None

        def ends() -> int | None:
            newest_us = self._buffer.newest_us()
            found = [a.occurrence.high_us for a in admitted]
            return max(found if newest_us is None else [*found, newest_us], default=None)

        return self._membership.stable_us(ends)

    def _is_awaited(self, punctuation_us: int | None) -> bool:
        """Whether a punctuation has passed events, or time has something to do before it."""
        known_us = self.punctuation_us
        if punctuation_us is None or (known_us is not None and punctuation_us <= known_us):
            return False
        passed = self._buffer.passed(punctuation_us)
        return passed > 0 or self._time.is_due(self._reached_us(punctuation_us, 0))

    def _reached_us(self, punctuation_us: int, count: int) -> int:
        """No event to be processed after the first `count` that wait begins before this."""
        lowest_us = self._buffer.lowest_us(count)
        return punctuation_us if lowest_us is None else min(punctuation_us, lowest_us)

    # -- parts -----------------------------------------------------------------------------

    def _next_feed(self) -> tuple[str, int]:
        """Query and number of the next batch that comes from Python."""
        last = self._last
        if last is None:
            return f"python-{self.stream.name}", 0
        return last.query_id, last.batch_id + 1

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
                if self._membership is not None:
                    self._membership.committed(self._joined)
                    self._membership.declared(entry.punctuation_us)
                self.on_progress(len(chunk))
                if next_us is None:
                    return
                entry, arrivals = replace(entry, part=entry.part + 1), Arrivals()
        except BaseException:
            self._load(begins=False)
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
        self._time.committed(self._states)

    def _process(
        self, t: Transaction, entry: LedgerEntry, chunk: list[Arrival], arrivals: Arrivals
    ) -> None:
        self._time.take_back()  # what an earlier try has fed
        letters = [self._refuse(entry, refused) for refused in arrivals.refused]
        letters += self._offer_late(t, arrivals.late)
        dead: list[Arrival] = []
        for place, arrival in enumerate(chunk):
            letters += self._advance(t, arrival.occurrence.low_us)
            letter = self._s_transaction(t, arrival, self._buffer.overlapping(place))
            if letter is not None:
                dead.append(arrival)
                letters.append(letter)
        reached_us = None
        if entry.punctuation_us is not None:
            reached_us = self._reached_us(entry.punctuation_us, len(chunk))
            letters += self._advance(t, reached_us)
            self._time.reached(reached_us)
        forget_before_us = self._forget_before_us(reached_us)
        keep = [
            arrival.record()
            for arrival in arrivals.admitted
            if forget_before_us is None or arrival.occurrence.us >= forget_before_us
        ]
        late = [arrival.record() for arrival in arrivals.late]
        final = replace(entry, dead=len(letters))
        states = self._states = self._time.changed_states()
        joined = self._joined = {} if self._membership is None else self._membership.changes()

        def write(connection: Any) -> None:
            self._journal.write(
                connection,
                final,
                keep=keep,
                late=late,
                drop=[(a.occurrence.us, a.batch_id, a.position) for a in dead],
                forget_before_us=forget_before_us,
            )
            self._time.write(connection, states)
            self._journal.write_producers(connection, joined)
            self._launcher.journal.write_letters(connection, [asdict(x) for x in letters])
            self._launcher.of_batches.settle(connection, t.hierarchy.run)

        t.hierarchy.durable.append(write)

    def _s_transaction(
        self, t: Transaction, arrival: Arrival, contemporaries: list[Occurrence]
    ) -> Letter | None:
        """Process one event; a letter if it failed and has left nothing behind."""
        identity = f"{arrival.batch_id}.{arrival.position}"
        return self._fed(t, arrival.occurrence, identity, arrival.record, contemporaries)

    def _offer_late(self, t: Transaction, late: list[Arrival]) -> list[Letter]:
        """Raise late events for the rules that listen to them; letters of what failed.

        They occur at the punctuation that had been reached when they came.
        """
        name = self.stream.name
        now = self._moment(self.punctuation_us or 0)
        letters = []
        for arrival in late if self._triggering.catalog.listening_to(("late", name), t) else ():
            o = arrival.occurrence
            when = o.timestamp if o.stamp is None else self._moment(o.us)
            params = {"type": o.name, "timestamp": when, "id": o.id}
            identity = f"late.{arrival.batch_id}.{arrival.position}"
            raised = Occurrence(name, now, {**params, "params": dict(o.params)}, kind="late")
            letter = self._fed(t, raised, identity, arrival.record)
            letters += [] if letter is None else [letter]
        return letters

    def _fed(
        self,
        t: Transaction,
        o: Occurrence,
        identity: str,
        record: Callable[[], dict[str, Any]],
        contemporaries: Sequence[Occurrence] = (),
    ) -> Letter | None:
        """Feed one event in `t` and run what it triggers in a child; a letter if that fails."""
        fed: list[Fed] = []
        try:
            triggered, fed = self._triggering.feed(o, t, contemporaries)
            self._triggering.keep(t, fed)
            if triggered:
                self._run_rules(t, triggered, label=identity, timestamp=o.timestamp)
        except Exception as error:
            if is_systemic(error, t):
                raise
            if self.fail_fast:
                raise BatchFailed(f"stream {self.stream.name}: {o!r}: {error}") from error
            self._triggering.take_back(t, fed)
            return Letter.of_event(self.stream.name, identity, record(), error)
        return None

    def _advance(self, t: Transaction, us: int) -> list[Letter]:
        """Let time go on to `us`: what it completes before runs first, each at its own time."""
        letters = []
        for due_us, subscription in self._time.due_before(us):
            rule = subscription.rule.name
            identity = f"time.{due_us}.{rule}"
            try:
                triggered = self._triggering.advance(subscription, due_us + 1, t)
            except Exception as error:
                if is_systemic(error, t):
                    raise
                # It would fail again and again: what the detector keeps is given up.
                subscription.restore(None)
                letters.append(self._failed_at(due_us, rule, identity, error))
                continue
            try:
                if triggered:
                    moment = self._moment(due_us)
                    self._run_rules(t, triggered, label=identity, timestamp=moment)
            except Exception as error:
                if is_systemic(error, t):
                    raise
                letters.append(self._failed_at(due_us, rule, identity, error))
        return letters

    def _failed_at(self, us: int, rule: str, identity: str, error: Exception) -> Letter:
        if self.fail_fast:
            raise BatchFailed(
                f"stream {self.stream.name}: rule {rule} at {self._moment(us)}: {error}"
            ) from error
        payload = {"rule": rule, "us": us}
        return Letter.of_event(self.stream.name, identity, payload, error)

    def _run_rules(
        self, t: Transaction, triggered: list[Triggered], *, label: str, timestamp: Any
    ) -> None:
        with t.hierarchy.undoing() if t.hierarchy.run.careful else nullcontext():
            t.run_child(
                lambda s: self._triggering.trigger(s, triggered), label=label, timestamp=timestamp
            )

    @staticmethod
    def _moment(us: int) -> datetime:
        return _EPOCH + timedelta(microseconds=us)

    def _refuse(self, entry: LedgerEntry, refused: Refused) -> Letter:
        if self.fail_fast:
            raise BatchFailed(
                f"stream {self.stream.name}: row {refused.position} of batch {entry.batch_id}: "
                f"{refused.error}"
            )
        identity = f"{entry.batch_id}.{refused.position}"
        return Letter.of_event(self.stream.name, identity, refused.payload, refused.error)

    def _forget_before_us(self, reached_us: int | None) -> int | None:
        """Events before this can take part in no later match; None keeps them all."""
        horizon_us = self._time.horizon_us()
        if reached_us is None or horizon_us is None:
            return None
        return reached_us - horizon_us

    def _run_name(self, entry: LedgerEntry) -> str:
        return f"{STREAM_RUN}{self.stream.name}/{entry.query_id}"

    # -- state -----------------------------------------------------------------------------

    def _load(self, *, begins: bool) -> None:
        """Read where the stream stopped.

        Parameters
        ----------
        begins : bool
            For the first time. Otherwise something has failed: the detectors have what they had
            before, unless somebody else has fed the stream, or a commit was made after all.
        """
        before = self._last
        self._buffer = EventTimeBuffer()
        self._last = self._journal.last()
        if begins:
            self._launcher.of_batches.remember_done(f"{STREAM_RUN}{self.stream.name}/")
        renews = begins or _sequence(before) != _sequence(self._last)
        if begins:
            self._forest.run(self._time.begin)
        else:
            self._time.restore(renew=renews)
        self._buffer.add(Arrival.restore(record) for record in self._journal.kept_events())
        passed_us = self.punctuation_us
        if passed_us is not None:
            processed, _ = self._buffer.first(passed_us, len(self._buffer))
            self._buffer.remove_first(len(processed))
            for arrival in processed if renews else ():
                self._absorb(arrival.occurrence)
        if self._membership is not None:
            self._membership.load()
            self._membership.declared(passed_us)

    def _absorb(self, o: Occurrence) -> None:
        """Show the detectors an event that was processed before a restart."""
        for subscription in self._triggering.catalog.listening_to(o.key):
            if self._time.is_replayed(subscription):
                # A rule that was there then has not raised; a new one begins with what is certain.
                with suppress(UncertainOrder):
                    subscription.feed(o)

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


def _sequence(entry: LedgerEntry | None) -> int:
    return 0 if entry is None else entry.sequence
