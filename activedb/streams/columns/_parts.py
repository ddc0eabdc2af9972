"""Processors in columns, of rules or of a program, with a fallback to rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from activedb.columns.events import ColumnEvents, events_to_bytes, pieces_of
from activedb.errors import ConnectionLost, StoreError
from activedb.store import Connection
from activedb.store.journals import LedgerEntry, StreamJournal
from activedb.streams._arrivals import Arrivals
from activedb.streams._parts import Part, Parts, RowProcessor
from activedb.streams._s_transactions import STransactions
from activedb.streams._state import StreamState
from activedb.streams.columns._admission import ColumnArrivals, WaitingColumns
from activedb.streams.columns._program import ColumnProgram
from activedb.streams.columns._rules import ColumnRules
from activedb.transactions import TransactionNode

__all__ = ["ColumnProgramProcessor", "ColumnRuleProcessor"]


class ColumnRuleProcessor:
    """Processor of rules in columns, in one part or a few.

    If the database refuses an operation of a part, the part is retried with a check after each
    s-transaction, so that only the offending one is undone, as in row-wise processing.
    """

    def __init__(
        self,
        parts: Parts,
        state: StreamState,
        s_transactions: STransactions,
        *,
        rules: ColumnRules,
        journal: StreamJournal,
    ):
        assert state.columns is not None
        self._parts = parts
        self._state = state
        self._waiting: WaitingColumns = state.columns
        self._s_transactions = s_transactions
        self._rules = rules
        self._journal = journal

    def run(self, entry: LedgerEntry, arrivals: Arrivals) -> None:
        """Process the events that `entry`'s punctuation has passed, starting with its part."""
        assert isinstance(arrivals, ColumnArrivals)
        fresh = arrivals.events
        passed = ColumnEvents.joined(
            [self._waiting.passed(entry.punctuation_us), fresh.before(entry.punctuation_us)]
        ).in_order()
        while True:
            count = self._run_part(entry, passed, arrivals)
            if count == len(passed):
                return
            passed = passed.take(slice(count, None))
            entry, arrivals = replace(entry, part=entry.part + 1), ColumnArrivals()

    def _run_part(self, entry: LedgerEntry, passed: ColumnEvents, arrivals: ColumnArrivals) -> int:
        """Process a part: all of `passed`, or its first events; return their number."""

        def committed(part: Part) -> None:
            done_us = part.entry.punctuation_us
            self._rules.committed(part.entry.events)
            self._waiting.remove_passed(done_us)
            self._waiting.add(arrivals.events.since(done_us))

        process = partial(self._process, entry=entry, passed=passed, arrivals=arrivals)
        done = self._parts.run(entry, process, committed).entry
        self._parts.on_progress(done.events)
        return done.events

    def _process(
        self, t: TransactionNode, entry: LedgerEntry, passed: ColumnEvents, arrivals: ColumnArrivals
    ) -> Part:
        each, rules = self._s_transactions, self._rules
        each.refusals.begin()
        letters = [each.refuse(entry.batch_id, refused) for refused in arrivals.refused]
        count = rules.process(t, passed, letters)
        is_whole = count == len(passed)
        reached_us = entry.punctuation_us if is_whole else passed.us.item(count)
        final = replace(
            entry,
            sequence=self._state.next_sequence,
            punctuation_us=reached_us,
            complete=entry.complete and is_whole,
            events=count,
            late=len(arrivals.late),
        )
        # Failed events that were stored as rows; those stored in columns are noted as dead.
        drop = passed.take(rules.is_dead(passed)).places() if self._state.left_in_rows else []
        before_us = None
        left = arrivals.events
        if reached_us is not None:
            rules.trim(reached_us)
            before_us = reached_us - rules.horizon_us()
            left = left.since(before_us)
            left = left.take(~rules.is_dead(left))

        def write(connection: Connection) -> None:
            columns = self._journal.columns
            if before_us is not None:
                columns.forget_waiting(connection, before_us)
                rules.write(connection, final.sequence, before_us)
            each.refusals.write(connection, columns, final.sequence, before_us)
            pieces = [
                (events_to_bytes(piece), piece.us.item(-1))
                for piece in map(left.take, pieces_of(len(left)))
            ]
            columns.write(connection, final.sequence, pieces)

        return Part(final, letters, arrivals.late, write, drop=drop, forget_before_us=before_us)


# -- programs in columns, with a fallback to rows ----------------------------------------------


_SMALL = 64  # events to process by rows rather than in still smaller parts


class ColumnProgramProcessor:
    """Processor of a program in columns, in one part.

    If the database refuses an operation of the part, the arrivals are made durable, and the events
    are processed in smaller parts, halved while one is refused. A small refused part goes to
    `RowProcessor`, event by event. That identifies the offending events, and its result counts.

    Parameters
    ----------
    by_rows : RowProcessor
        With the `StreamPrograms` of the program.
    """

    def __init__(
        self,
        parts: Parts,
        state: StreamState,
        s_transactions: STransactions,
        *,
        by_rows: RowProcessor,
        program: ColumnProgram,
        journal: StreamJournal,
        batch_events_max: int,
    ):
        assert state.columns is not None
        self._parts = parts
        self._state = state
        self._waiting: WaitingColumns = state.columns
        self._s_transactions = s_transactions
        self._by_rows = by_rows
        self._program = program
        self._journal = journal
        self._batch_events_max = batch_events_max

    def run(self, entry: LedgerEntry, arrivals: Arrivals) -> None:
        """Process the events that `entry`'s punctuation has passed, starting with its part."""
        assert isinstance(arrivals, ColumnArrivals)
        passed_us = entry.punctuation_us
        passed = ColumnEvents.joined(
            [self._waiting.passed(passed_us), arrivals.events.before(passed_us)]
        )
        only_waits = passed_us is None
        if not self._run_part(entry, passed.in_order(), arrivals, must=only_waits):
            self._run_in_pieces(entry, arrivals, len(passed))

    # -- in columns ------------------------------------------------------------------------

    def _run_part(
        self,
        entry: LedgerEntry,
        passed: ColumnEvents,
        arrivals: ColumnArrivals,
        *,
        must: bool = False,
    ) -> bool:
        """Process a part; return False, with no effects, if the database refuses an operation.

        With `must` a refusal is an error.
        """
        state, program = self._state, self._program
        entry = replace(
            entry,
            sequence=state.next_sequence,
            events=len(passed),
            late=len(arrivals.late),
        )

        def committed(part: Part) -> None:
            program.committed(len(passed))
            self._waiting.remove_passed(entry.punctuation_us)
            self._waiting.add(arrivals.events.since(entry.punctuation_us))
            state.has_notes = False

        process = partial(self._process, entry=entry, passed=passed, arrivals=arrivals)
        try:
            self._parts.run(entry, process, committed, is_careful=False)
        except ConnectionLost:
            raise
        except StoreError:
            if must:
                raise
            program.take_back()
            return False
        self._parts.on_progress(len(passed))
        return True

    def _process(
        self, t: TransactionNode, entry: LedgerEntry, passed: ColumnEvents, arrivals: ColumnArrivals
    ) -> Part:
        each, program = self._s_transactions, self._program
        reached_us = entry.punctuation_us
        letters = [each.refuse(entry.batch_id, refused) for refused in arrivals.refused]
        if reached_us is not None:
            letters += program.process(t, passed, reached_us, fail_fast=each.fail_fast)
        waiting = arrivals.events.since(entry.punctuation_us)
        has_notes = self._state.has_notes

        def write(connection: Connection) -> None:
            if has_notes:  # notes of rules, which exclude the events that a program processes
                self._journal.columns.forget_notes(connection)
            if reached_us is not None:
                program.write(connection, entry.sequence, reached_us)
                self._journal.columns.forget_waiting(connection, reached_us)
            pieces = [
                (events_to_bytes(piece), piece.us.item(-1))
                for piece in map(waiting.take, pieces_of(len(waiting)))
            ]
            self._journal.columns.write(connection, entry.sequence, pieces)

        return Part(entry, letters, arrivals.late, write, forget_before_us=reached_us)

    # -- after a refusal by the database ---------------------------------------------------

    def _run_in_pieces(self, entry: LedgerEntry, arrivals: ColumnArrivals, count: int) -> None:
        """Process `count` events that were refused together, in smaller parts."""
        punctuation_us = entry.punctuation_us
        assert punctuation_us is not None, "who only waits is not refused"
        before_us = self._state.punctuation_us
        kept = replace(entry, punctuation_us=before_us, complete=False)
        self._run_part(kept, ColumnEvents.none(), arrivals, must=True)
        if count <= self._batch_events_max:  # by rows they are one part anyway
            whole = self._following(entry, None)
            self._run_by_rows(whole, self._waiting.passed(punctuation_us))
            return
        small = min(self._batch_events_max, _SMALL)
        count_max = max(count // 2, small)
        next_us: int | None = punctuation_us
        while next_us is not None:
            passed, next_us = self._waiting.first(punctuation_us, count_max)
            piece = self._following(entry, next_us)
            if not self._run_part(piece, passed, ColumnArrivals()):
                if count_max > small:
                    next_us, count_max = punctuation_us, max(count_max // 2, small)
                    continue
                self._run_by_rows(piece, passed)
            count_max *= 2

    def _following(self, entry: LedgerEntry, next_us: int | None) -> LedgerEntry:
        """Return the next part of `entry`'s batch, up to a time; None: up to its end."""
        last = self._state.last
        assert last is not None
        return replace(
            entry,
            part=last.part + 1,
            punctuation_us=entry.punctuation_us if next_us is None else next_us,
            complete=entry.complete and next_us is None,
        )

    def _run_by_rows(self, entry: LedgerEntry, passed: ColumnEvents) -> None:
        """Process waiting events that `entry`'s punctuation has passed, one by one."""
        self._state.buffer.add(passed.arrivals())
        self._program.to_rows()
        self._by_rows.run(entry, Arrivals())
        self._program.of_rows()
        self._waiting.remove_passed(entry.punctuation_us)
