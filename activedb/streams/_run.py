"""Atomic batches of a stream, taken from where the ledger says that it stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from activedb.columns import Arrival
from activedb.errors import CheckpointMismatch, ConfigurationError
from activedb.events import Occurrence
from activedb.firing import Launcher, Triggering
from activedb.scheduling import TaskRunner
from activedb.store.journals import DetectorRows, LedgerEntry, StreamJournal
from activedb.streams._admission import Admission
from activedb.streams._arrivals import Arrivals, fed_occurrences
from activedb.streams._batch import AtomicBatch, Positions
from activedb.streams._declaration import Stream
from activedb.streams._future import FutureLimit
from activedb.streams._matched import Matchable, Matched
from activedb.streams._matched_rules import matchable
from activedb.streams._matched_s_transactions import MatchedSTransactions, placed
from activedb.streams._membership import Membership
from activedb.streams._parts import StreamParts
from activedb.streams._state import OF_PYTHON, StreamState
from activedb.streams._stream_programs import StreamPrograms
from activedb.streams._time import StreamTime
from activedb.transactions import Forest

if TYPE_CHECKING:
    from activedb.streams.columns import ColumnParts, ColumnProgram, ColumnRuleParts

__all__ = ["StreamRun"]

_LOG = logging.getLogger(__name__)

_OF_PYTHON: Mapping[str, Any] = {"source": {"kind": OF_PYTHON}, "punctuation_us": None}


class StreamRun:
    """Takes the atomic batches of one stream, from where the ledger says it stopped.

    Each micro-batch is processed in parts of about ``batch_events_max`` events. A part is one
    top-level transaction: its events' s-transactions are subtransactions of it, and the ledger
    row, the waiting events and the dead letters commit with their effects. A part that the
    ledger knows is not processed again.

    In columns (`activedb.streams.columns`) all that the punctuation has passed is one part, or few.

    Not thread-safe: one thread feeds a stream. Beside it the timekeeper looks for producers that
    are silent while the stream is not fed.

    Attributes
    ----------
    latch : threading.RLock
        Held by who feeds a stream of producers, or looks at these. Whoever is told of a silent one
        may remove it, which is a feed, too.
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
        rows: DetectorRows,
        programs: StreamPrograms | None = None,
        columns: ColumnProgram | None = None,
        watch: Callable[[str, int | None, Callable[[], None]], None],
    ):
        self.stream = stream
        self.latch = threading.RLock()
        self._watch = watch
        self._launcher = launcher
        self._journal = journal
        self._membership = membership
        self._forest = forest
        self._triggering = triggering
        self._has_programs = programs is not None
        self._s_transactions = MatchedSTransactions(stream, triggering=triggering, time=time)
        waiting, rules = None, None
        if columns is not None or stream.columns:
            from activedb.streams.columns import ColumnRules, WaitingColumns

            waiting = WaitingColumns()
            if columns is None:
                rules = ColumnRules(
                    stream,
                    catalog=triggering.catalog,
                    s_transactions=self._s_transactions,
                    journal=journal.columns,
                    rows=rows,
                    counters=triggering.counters,
                    s_transactions_max=forest.settings.batch_events_max,
                )
        self._state = StreamState(
            stream,
            forest=forest,
            triggering=triggering,
            launcher=launcher,
            journal=journal,
            time=time,
            refusals=self._s_transactions.refusals,
            membership=membership,
            programs=columns or rules or programs,
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
        # What runs in columns is not partitioned.
        self._partitioned = programs if columns is None and forest.settings.scale_out else None
        # Here the ways of processing part: event by event, and in columns.
        self._admission = Admission(self._state, future)
        self._parts: StreamParts | ColumnParts | ColumnRuleParts = self._by_rows
        if waiting is not None:
            from activedb.streams.columns import ColumnAdmission, ColumnParts, ColumnRuleParts

            self._admission = ColumnAdmission(self._state, future)
        if rules is not None:
            self._parts = ColumnRuleParts(
                self._state,
                self._s_transactions,
                rules=rules,
                forest=forest,
                launcher=launcher,
                journal=journal,
                on_progress=lambda events: self.on_progress(events),
            )
        elif columns is not None:
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
        if membership is not None:
            with self.hearing():
                pass

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

    def run_in_tasks(self, runner: TaskRunner | None) -> None:
        """Let others run the s-transactions of the stream's programs that share no state.

        Only if the setting ``scale_out`` is on; and not those of a program in columns. What comes
        of them is the same.

        Parameters
        ----------
        runner : TaskRunner or None
            Such as ``SparkFeed.tasks``; None: this process runs all again.

        Raises
        ------
        DefinitionError
            If the programs' scheduler cannot be sent there.
        """
        if self._partitioned is not None:
            self._partitioned.run_in_tasks(runner)

    def matchable(self) -> Matchable:
        """Which rules can be matched elsewhere, by key, and come with the batches. O(rules)."""
        stream, settings = self.stream, self._forest.settings
        keeps_here = None
        if self._parts is not self._by_rows:
            keeps_here = "the stream is processed in columns"
        elif stream.producer is not None or self._membership is not None:
            keeps_here = "its producers tell what is complete"
        elif stream.accuracy is not None:
            keeps_here = "its timestamps are intervals, whose order may be uncertain"
        return matchable(
            stream,
            self._triggering.catalog,
            self._triggering.lines,
            last=self._state.last,
            partials_max=settings.partials_max or None,
            sees_all=self._has_programs,
            keeps_here=keeps_here,
        )

    def apply(self, batch: AtomicBatch) -> None:
        """Process a micro-batch, unless the ledger says that it took effect already.

        Raises
        ------
        BatchFailed
            At an offending event, if asked to stop there; nothing of the part is written then.
        CheckpointMismatch
            If the batch does not continue what the ledger holds, or is another than the one that
            took effect.
        """
        if self._membership is not None:
            raise ConfigurationError(
                f"the producers of stream {self.stream.name} stamp its events: they come from "
                "Python, with db.feed"
            )
        self.check_continues(batch.query_id, batch.batch_id, batch.continues)
        self._end_of_other_query(batch.query_id)
        self._apply(
            batch.query_id,
            batch.batch_id,
            lambda: placed(self._admission.of_batch(batch), batch.matched),
            batch.punctuation_us,
            batch.matched,
            batch.position,
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
        CheckpointMismatch
            If Spark's executors match the stream, and its last batch is half done.
        """
        self._state.mend()
        self._check_not_torn()
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
        with self.hearing():
            # First: whoever is told of a silent producer may remove it, which is a feed, too.
            membership.look([o.producer for o in events])
            query_id, batch_id = self._state.next_feed()
            arrivals, stable_us = self._admission.of_producers(membership, events, batch_id)
            membership.heard()
            self._apply(query_id, batch_id, lambda: arrivals, stable_us)

    @contextmanager
    def hearing(self) -> Iterator[Membership]:
        """Hear producers, or change who counts; then the timekeeper knows when one is silent."""
        membership = self._membership
        assert membership is not None
        try:
            with self.latch:
                yield membership
        finally:
            self._watch(self.stream.name, membership.silent_from_us(), self._find_silent)

    def _find_silent(self) -> None:
        """Look for silent producers, unless another thread feeds: a feed looks, too."""
        membership = self._membership
        assert membership is not None
        if not self.latch.acquire(blocking=False):
            return
        try:
            membership.find_silent()
        except Exception:  # of the stream's `on_silent`
            _LOG.exception("stream %s: what is told of silent producers failed", self.stream.name)
        finally:
            self.latch.release()
            self._watch(self.stream.name, membership.silent_from_us(), self._find_silent)

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

    def finish(self, left: Matched | None = None) -> None:
        """The end of the stream: process the events that still wait, end the detached rules.

        What waits for producers goes on waiting for them, and what waits elsewhere if it is not
        known what comes of it. Time goes on to the newest event and not beyond it: what would be
        due later waits for a later punctuation.

        Parameters
        ----------
        left : Matched, optional
            What comes of events that wait elsewhere, as ``SparkFeed.left`` tells it. None, or of
            another batch than the last one, as the feed was stopped when that had just taken
            effect: the next feed goes on there.
        """
        self._state.mend()
        last = self._state.last
        newest_us = None if self._membership is not None else self._state.newest_us()
        if last is not None and _is_known(left, last):
            until_us = _end_us(newest_us, left, last)
            if until_us is not None:
                self._s_transactions.elsewhere.take(left, last.punctuation_us)
                first = replace(last, part=last.part + 1, punctuation_us=until_us, complete=True)
                self._parts.run(first, self._admission.none())
        self._launcher.join_running()
        if self._launcher.recover():  # those that a lost connection or a lock kept from ending
            self._launcher.join_running()
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
    def last(self) -> LedgerEntry | None:
        """The part that was processed last, as this process knows it; from any thread."""
        return self._state.last

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

    def undecided(self) -> int:
        """Choices that its events have left open, and that are still to be decided."""
        return self._journal.undecided()

    def late_events(self) -> list[Arrival]:
        """The events that came too late, in order of arrival."""
        return [Arrival.restore(record) for record in self._journal.late()]

    def positions(self) -> Positions | None:
        """How far the source has been read: what a feed with a new checkpoint goes on from.

        None: the stream has not been fed. O(batches).
        """
        self._state.mend()
        last = self._state.last
        if last is None:
            return None
        return Positions(last.query_id, last.batch_id, self._journal.positions())

    def check_continues(
        self, query_id: str | None, batch_id: int, continues: str | None = None
    ) -> None:
        """Check that a feed which goes on with this batch continues what the ledger holds.

        Parameters
        ----------
        query_id : str or None
            The feed's query; None for one that has not begun.
        batch_id : int
            The batch it goes on with.
        continues : str or None
            As of its batches.

        Raises
        ------
        CheckpointMismatch
            If events would be processed twice, or not at all.
        """
        self._state.mend()
        self._state.check_continues(query_id, batch_id, continues)

    def _check_not_torn(self) -> None:
        """Check that no rows are still to come of a batch of which some are matched elsewhere."""
        last = self._state.last
        if last is None or last.complete or not (last.position or {}).get("elsewhere"):
            return
        raise CheckpointMismatch(
            f"stream {self.stream.name}: batch {last.batch_id} is half done, and the rest of it is "
            "with Spark (scale_out): run its feed again before you feed the stream from Python"
        )

    def _end_of_other_query(self, query_id: str) -> None:
        """Process what a query that does not go on has left of its last batch."""
        last = self._state.last
        if last is None or last.query_id == query_id or last.complete or last.position is None:
            return
        known = (self.punctuation_us, last.position["punctuation_us"])
        until_us = max((us for us in known if us is not None), default=None)
        rest = replace(last, part=last.part + 1, punctuation_us=until_us, complete=True)
        self._parts.run(rest, self._admission.none())

    def _apply(
        self,
        query_id: str,
        batch_id: int,
        arrivals: Callable[[], Arrivals],
        punctuation_us: int | None,
        matched: Matched | None = None,
        position: Mapping[str, Any] | None = _OF_PYTHON,
    ) -> None:
        last = self._state.last
        part = 0
        if last is not None and last.query_id == query_id and batch_id <= last.batch_id:
            self._state.check_same(query_id, batch_id, position)
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
            position=position,
        )
        self._s_transactions.elsewhere.take(matched, self.punctuation_us)
        # Rows of a batch that has parts in the ledger are in the buffer already; but those of which
        # some are matched elsewhere come with the last part.
        is_taken = part > 0 and matched is None
        self._parts.run(first, self._admission.none() if is_taken else arrivals())


def _end_us(newest_us: int | None, left: Matched | None, last: LedgerEntry) -> int | None:
    """Where the time of a stream ends that has its newest waiting event here at `newest_us`.

    None: all is done.
    """
    newest = [newest_us]
    reached_us = None
    if left is not None:
        newest.append(left.newest_us)
        reached_us = left.punctuation_us  # which its last rows have moved, be they events or not
    known = [us + 1 for us in newest if us is not None]
    if reached_us is not None and (last.punctuation_us is None or reached_us > last.punctuation_us):
        known.append(reached_us)
    return max(known, default=None)


def _is_known(left: Matched | None, last: LedgerEntry) -> bool:
    """Whether it is known what comes of all events that wait behind the last batch."""
    if left is None:
        return last.position is None or not last.position.get("elsewhere")
    return left.batch_id == last.batch_id
