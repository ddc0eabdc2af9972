"""Execution of a stream's atomic batches, resuming where the ledger ends."""

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
from activedb.streams._arrivals import Arrivals, AtomicBatch, Positions, fed_occurrences
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._future import FutureLimit
from activedb.streams._matched import Matchable, Matched, matchable
from activedb.streams._matched_elsewhere import placed
from activedb.streams._membership import Membership
from activedb.streams._parts import Parts, RowProcessor
from activedb.streams._s_transactions import STransactions
from activedb.streams._state import OF_PYTHON, StreamState
from activedb.streams._stream_programs import StreamPrograms
from activedb.streams._time import StreamTime
from activedb.transactions import Forest

if TYPE_CHECKING:
    from activedb.streams.columns import (
        ColumnProgram,
        ColumnProgramProcessor,
        ColumnRuleProcessor,
    )

__all__ = ["StreamRun"]

_LOG = logging.getLogger(__name__)

_OF_PYTHON: Mapping[str, Any] = {"source": {"kind": OF_PYTHON}, "punctuation_us": None}


class StreamRun:
    """Processor of one stream's atomic batches, resuming where the ledger ends.

    Each micro-batch is processed in parts of about ``batch_events_max`` events. A part is one
    top-level transaction: its events' s-transactions are subtransactions of it, and the ledger row,
    the waiting events and the dead letters commit with their effects. A part that the ledger
    contains is not processed again.

    In columns (`activedb.streams.columns`) all events that the punctuation has passed form one
    part, or a few.

    Not thread-safe: a single thread feeds a stream. In parallel, the timekeeper checks for
    producers that are silent while the stream is not fed.

    Attributes
    ----------
    latch : threading.RLock
        Held by a thread that feeds a stream of producers, or checks for silent ones. Reentrant, as
        the callback for a silent producer may remove it, which is a feed, too.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
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
        # Held while the next check is computed and scheduled, so that an earlier result is never
        # the last one. Taken without `latch`: a check that meets that latch leaves it to its
        # holder, who schedules the next check after the release.
        self._scheduling = threading.Lock()
        self._launcher = launcher
        self._journal = journal
        self._membership = membership
        self._forest = forest
        self._triggering = triggering
        self._has_programs = programs is not None
        self._s_transactions = STransactions(stream, triggering=triggering, time=time)
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
        self._parts = Parts(self._state, forest=forest, launcher=launcher, journal=journal)
        self._by_rows = RowProcessor(
            self._parts,
            self._state,
            self._s_transactions,
            journal=journal,
            time=time,
            batch_events_max=forest.settings.batch_events_max,
            membership=membership,
            programs=programs,
        )
        # Programs in columns are not partitioned.
        self._partitioned = programs if columns is None and forest.settings.scale_out else None
        # From here the two ways of processing differ: event by event, and in columns.
        self._admission = Admission(self._state, future)
        self._processor: RowProcessor | ColumnRuleProcessor | ColumnProgramProcessor = self._by_rows
        if waiting is not None:
            from activedb.streams.columns import (
                ColumnAdmission,
                ColumnProgramProcessor,
                ColumnRuleProcessor,
            )

            self._admission = ColumnAdmission(self._state, future)
        if rules is not None:
            self._processor = ColumnRuleProcessor(
                self._parts, self._state, self._s_transactions, rules=rules, journal=journal
            )
        elif columns is not None:
            self._processor = ColumnProgramProcessor(
                self._parts,
                self._state,
                self._s_transactions,
                by_rows=self._by_rows,
                program=columns,
                journal=journal,
                batch_events_max=forest.settings.batch_events_max,
            )
        self._state.load(begins=True)
        if membership is not None:
            with self.hearing():
                pass

    @property
    def fail_fast(self) -> bool:
        """True if processing stops at an offending event instead of keeping it as a dead letter."""
        return self._s_transactions.fail_fast

    @fail_fast.setter
    def fail_fast(self, fails: bool) -> None:
        self._s_transactions.fail_fast = fails

    @property
    def on_progress(self) -> Callable[[int], None]:
        """Callback that gets the number of events that have just been processed durably."""
        return self._parts.on_progress

    @on_progress.setter
    def on_progress(self, call: Callable[[int], None]) -> None:
        self._parts.on_progress = call

    def run_in_tasks(self, runner: TaskRunner | None) -> None:
        """Let a task runner execute s-transactions of the stream's programs that share no state.

        Has an effect only with the setting ``scale_out``, and not for a program in columns. The
        results are the same.

        Parameters
        ----------
        runner : TaskRunner or None
            For example ``SparkFeed.tasks``; None: this process runs all s-transactions again.

        Raises
        ------
        DefinitionError
            If the programs' scheduler cannot be sent there.
        """
        if self._partitioned is not None:
            self._partitioned.run_in_tasks(runner)

    def matchable(self) -> Matchable:
        """Return the rules that can be matched elsewhere, by key. O(rules)."""
        stream, settings = self.stream, self._forest.settings
        keeps_here = None
        if self._processor is not self._by_rows:
            keeps_here = "the stream is processed in columns"
        elif stream.producer is not None or self._membership is not None:
            keeps_here = "its producers determine which events are complete"
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
        """Process a micro-batch, unless the ledger shows that it has taken effect already.

        Raises
        ------
        BatchFailed
            At an offending event with `fail_fast`; nothing of the part is written then.
        CheckpointMismatch
            If the batch does not continue the ledger, or differs from the one that took effect.
        """
        if self._membership is not None:
            raise ConfigurationError(
                f"the producers of stream {self.stream.name} stamp its events: they come from "
                "Python, with stream.feed"
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

    def feed(
        self,
        events: Iterable[Occurrence],
        punctuation_us: int | None = None,
        *,
        ends: bool = False,
    ) -> None:
        """Process events from Python, without Spark, as one micro-batch.

        Parameters
        ----------
        events : iterable of Occurrence
            In any order.
        punctuation_us : int or None
            Time before which every event has been seen; events at or after it wait. None: no
            progress, except through the producers, if the stream has any.
        ends : bool
            True to process all events, those that wait included, as `finish` does. REQUIRES: the
            stream has no producers.

        Raises
        ------
        BadEvent
            If an item is not an occurrence; no event has been taken then.
        BatchFailed
            As for `apply`.
        ProducerSilent
            If a producer is silent; no event has been taken then.
        StreamFull
            If more events would have to wait than allowed; no event has been taken then.
        CheckpointMismatch
            If Spark's executors match the stream, and its last batch is incomplete.
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
                ends=ends,
            )
            if ends:
                self._complete_firings()
            return
        if punctuation_us is not None:
            raise ConfigurationError(
                f"stream {self.stream.name} needs no punctuation: its producers determine stability"
            )
        with self.hearing():
            # First, as the callback for a silent producer may remove it, which is a feed, too.
            membership.look([o.producer for o in events])
            query_id, batch_id = self._state.next_feed()
            arrivals, stable_us = self._admission.of_producers(membership, events, batch_id)
            membership.heard()
            self._apply(query_id, batch_id, lambda: arrivals, stable_us)

    @contextmanager
    def hearing(self) -> Iterator[Membership]:
        """Hold the latch for a change of the producers; then update the timekeeper's deadline."""
        membership = self._membership
        assert membership is not None
        try:
            with self.latch:
                yield membership
        finally:
            self._schedule_check(membership)

    def _schedule_check(self, membership: Membership) -> None:
        with self._scheduling:
            self._watch(self.stream.name, membership.silent_from_us(), self._find_silent)

    def _find_silent(self) -> None:
        """Check for silent producers, unless another thread feeds: a feed checks, too."""
        membership = self._membership
        assert membership is not None
        if not self.latch.acquire(blocking=False):
            return
        try:
            membership.find_silent()
        except Exception:  # raised by the stream's `on_silent`
            _LOG.exception("stream %s: the report of silent producers failed", self.stream.name)
        finally:
            self.latch.release()
            self._schedule_check(membership)

    def settle(self, *, must_write: bool) -> None:
        """Process the events that producers have made stable. REQUIRES: the stream has producers.

        Parameters
        ----------
        must_write : bool
            Whether the members have changed, so that a part is written even if no event is stable.
        """
        self._state.mend()
        assert self._membership is not None
        stable_us = self._admission.stable_us(self._membership)
        if must_write or self._state.is_awaited(stable_us):
            query_id, batch_id = self._state.next_feed()
            self._apply(query_id, batch_id, self._admission.none, stable_us)

    def finish(self, left: Matched | None = None) -> None:
        """End the stream: process the events that still wait, and complete the detached rules.

        Events that wait for producers continue to wait, and so do events that wait elsewhere if
        their results are unknown. Time advances to the newest event and not beyond it; anything due
        later waits for a later punctuation.

        Parameters
        ----------
        left : Matched, optional
            Results for events that wait elsewhere, from ``SparkFeed.left``. With None, or results
            of a batch other than the last one (the feed was stopped just as that took effect), the
            next feed continues there.
        """
        self._state.mend()
        last = self._state.last
        newest_us = None if self._membership is not None else self._state.newest_us()
        if last is not None and _is_known(left, last):
            until_us = _end_us(newest_us, left, last)
            if until_us is not None:
                self._s_transactions.elsewhere.take(left, last.punctuation_us)
                first = replace(last, part=last.part + 1, punctuation_us=until_us, complete=True)
                self._process(first, self._admission.none())
        self._complete_firings()

    @property
    def punctuation_us(self) -> int | None:
        """Time before which every event has been processed; later arrivals before it are late."""
        return self._state.punctuation_us

    @property
    def waiting(self) -> int:
        """Number of events that wait for the punctuation."""
        return self._state.waiting

    @property
    def last(self) -> LedgerEntry | None:
        """Latest part processed, as this process knows it; may be read from any thread."""
        return self._state.last

    @property
    def batches(self) -> int:
        """Number of batches taken; each feed from Python is one.

        If a program crashes during a feed, this number tells its effect: one more than before, and
        every event was taken; otherwise none was.
        """
        self._state.mend()
        last = self._state.last
        return 0 if last is None else last.batch_id + 1

    def totals(self) -> dict[str, int]:
        """Return the events processed, late and dead since the stream began, from the ledger."""
        return self._journal.totals()

    def undecided(self) -> int:
        """Return the number of choices left open by its events that are still undecided."""
        return self._journal.undecided()

    def late_events(self) -> list[Arrival]:
        """Return the late events, in order of arrival."""
        return [Arrival.restore(record) for record in self._journal.late()]

    def positions(self) -> Positions | None:
        """Return how far the source has been read, for a feed with a new checkpoint to resume.

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
        """Check that a feed that resumes with this batch continues the ledger.

        Parameters
        ----------
        query_id : str or None
            Query of the feed; None for a feed that has not begun.
        batch_id : int
            Batch it resumes with.
        continues : str or None
            Same as for its batches.

        Raises
        ------
        CheckpointMismatch
            If events would be processed twice, or not at all.
        """
        self._state.mend()
        self._state.check_continues(query_id, batch_id, continues)

    def _check_not_torn(self) -> None:
        """Check that no partly processed batch has rows outstanding that are matched elsewhere."""
        last = self._state.last
        if last is None or last.complete or not (last.position or {}).get("elsewhere"):
            return
        raise CheckpointMismatch(
            f"stream {self.stream.name}: batch {last.batch_id} is half done, and the rest of it is "
            "with Spark (scale_out): run its feed again before you feed the stream from Python"
        )

    def _end_of_other_query(self, query_id: str) -> None:
        """Process the remaining events of the last batch of a query that is not resumed."""
        last = self._state.last
        if last is None or last.query_id == query_id or last.complete or last.position is None:
            return
        known = (self.punctuation_us, last.position["punctuation_us"])
        until_us = max((us for us in known if us is not None), default=None)
        rest = replace(last, part=last.part + 1, punctuation_us=until_us, complete=True)
        self._process(rest, self._admission.none())

    def _complete_firings(self) -> None:
        """Complete the detached rules of the batches so far.

        A feed that has triggered none, and finds nothing left over, asks the store for nothing.
        """
        launcher, last = self._launcher, self._state.last
        run = "" if last is None else self._state.run_name(last)
        launcher.join_running()
        may_be_left = launcher.batch_firings.has_fired(run) or launcher.is_recovery_due()
        if may_be_left and launcher.find_left():  # stopped by a lock or a lost connection
            launcher.join_running()
        launcher.batch_firings.forget_done(run)

    def _apply(
        self,
        query_id: str,
        batch_id: int,
        arrivals: Callable[[], Arrivals],
        punctuation_us: int | None,
        matched: Matched | None = None,
        position: Mapping[str, Any] | None = _OF_PYTHON,
        *,
        ends: bool = False,
    ) -> None:
        last = self._state.last
        part = 0
        if last is not None and last.query_id == query_id and batch_id <= last.batch_id:
            self._state.check_same(query_id, batch_id, position)
            if batch_id < last.batch_id or last.complete:
                return
            part = last.part + 1
        elsewhere = self._s_transactions.elsewhere
        if matched is not None or elsewhere.is_used:
            elsewhere.take(matched, self._state.punctuation_us)
        # Rows of a batch with parts in the ledger are in the buffer already. Exception: if some
        # rows are matched elsewhere, the rows of the table come with the last part.
        is_taken = part > 0 and matched is None
        arrived = self._admission.none() if is_taken else arrivals()
        known = [us for us in (self._state.punctuation_us, punctuation_us) if us is not None]
        if ends:
            newest = (self._state.newest_us(), arrived.newest_us)
            known += [us + 1 for us in newest if us is not None]
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
        self._process(first, arrived)

    def _process(self, entry: LedgerEntry, arrivals: Arrivals) -> None:
        try:
            self._processor.run(entry, arrivals)
        except BaseException as error:
            self._state.load(begins=False, is_cut=not isinstance(error, Exception))
            raise


def _end_us(newest_us: int | None, left: Matched | None, last: LedgerEntry) -> int | None:
    """Return the time up to which to end a stream whose newest waiting event is at `newest_us`.

    None: no work is left.
    """
    newest = [newest_us]
    reached_us = None
    if left is not None:
        newest.append(left.newest_us)
        reached_us = left.punctuation_us  # moved by its last rows, whether valid events or not
    known = [us + 1 for us in newest if us is not None]
    if reached_us is not None and (last.punctuation_us is None or reached_us > last.punctuation_us):
        known.append(reached_us)
    return max(known, default=None)


def _is_known(left: Matched | None, last: LedgerEntry) -> bool:
    """Return whether the results are known for all events that wait after the last batch."""
    if left is None:
        return last.position is None or not last.position.get("elsewhere")
    return left.batch_id == last.batch_id
