"""Parts of a stream in columns, of programs or of rules, with a fallback to rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from activedb.columns.events import ColumnEvents, events_to_bytes, pieces_of
from activedb.errors import ConnectionLost, StoreError
from activedb.firing import Launcher, Letter
from activedb.store import Connection
from activedb.store.journals import LedgerEntry, StreamJournal
from activedb.streams._arrivals import Arrivals
from activedb.streams._parts import DETACHED_MAX, StreamParts, run_carefully
from activedb.streams._s_transactions import STransactions
from activedb.streams._state import StreamState
from activedb.streams.columns._admission import ColumnArrivals, WaitingColumns
from activedb.streams.columns._program import ColumnProgram
from activedb.streams.columns._rules import ColumnRules
from activedb.transactions import Forest, Run, TransactionNode

__all__ = ["ColumnParts", "ColumnRuleParts"]


@dataclass(frozen=True, slots=True)
class _PartResult:
    """Result of a part: its row of the ledger, and the number of events taken."""

    entry: LedgerEntry
    count: int


class ColumnRuleParts:
    """Processor in columns of the events that a punctuation has passed, in one part or a few.

    If the database refuses an operation of a part, the part is retried with a check after each
    s-transaction, so that only the offending one is undone, as in row-wise processing.

    Parameters
    ----------
    on_progress : callable ``(events)``
        Called with the number of events that have just been processed durably.
    """

    def __init__(
        self,
        state: StreamState,
        s_transactions: STransactions,
        *,
        rules: ColumnRules,
        forest: Forest,
        launcher: Launcher,
        journal: StreamJournal,
        on_progress: Callable[[int], None],
    ):
        assert state.columns is not None
        self._state = state
        self._waiting: WaitingColumns = state.columns
        self._s_transactions = s_transactions
        self._rules = rules
        self._forest = forest
        self._launcher = launcher
        self._journal = journal
        self._on_progress = on_progress

    def run(self, entry: LedgerEntry, arrivals: Arrivals) -> None:
        """Process the events that `entry`'s punctuation has passed, starting with its part."""
        assert isinstance(arrivals, ColumnArrivals)
        fresh = arrivals.events
        try:
            passed = ColumnEvents.joined(
                [self._waiting.passed(entry.punctuation_us), fresh.before(entry.punctuation_us)]
            ).in_order()
            while True:
                done = self._run_part(entry, passed, arrivals)
                if done.count == len(passed):
                    return
                passed = passed.take(slice(done.count, None))
                entry, arrivals = replace(entry, part=done.entry.part + 1), ColumnArrivals()
        except BaseException:
            self._state.load(begins=False)
            raise

    def _run_part(
        self, entry: LedgerEntry, passed: ColumnEvents, arrivals: ColumnArrivals
    ) -> _PartResult:
        """Process a part: all of `passed`, or its first events."""
        state = self._state
        self._launcher.join_running(running_max=DETACHED_MAX)
        done = _PartResult(entry, 0)

        def body(t: TransactionNode) -> None:
            nonlocal done
            done = self._process(t, entry, passed, arrivals)

        run = run_carefully(self._forest, state.run_name(entry), body)
        self._launcher.batch_firings.committed(run, is_whole=done.entry.complete)
        self._rules.committed(done.count)
        reached_us = done.entry.punctuation_us
        self._waiting.remove_passed(reached_us)
        self._waiting.add(arrivals.events.since(reached_us))
        state.last = done.entry
        self._on_progress(done.count)
        return done

    def _process(
        self, t: TransactionNode, entry: LedgerEntry, passed: ColumnEvents, arrivals: ColumnArrivals
    ) -> _PartResult:
        each, rules = self._s_transactions, self._rules
        each.refusals.begin()
        letters: list[Letter] = [
            each.refuse(entry.batch_id, refused) for refused in arrivals.refused
        ]
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
            dead=len(letters),
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
        late = [arrival.record() for arrival in arrivals.late]

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
            self._journal.write(
                connection, final, keep=(), late=late, drop=drop, forget_before_us=before_us
            )
            self._launcher.journal.write_letters(connection, [asdict(x) for x in letters])
            self._launcher.batch_firings.settle(connection, t.hierarchy.run)

        t.hierarchy.durable.append(write)
        return _PartResult(final, count)


# -- parts of a stream's batches in columns, with a fallback to rows -------------------------------


_SMALL = 64  # events to process by rows rather than in still smaller parts


class ColumnParts:
    """Processor in columns of the events that a punctuation has passed, in one part.

    If the database refuses an operation of the part, the arrivals are made durable, and the events
    are processed in smaller parts, halved while one is refused. A small refused part goes to
    `StreamParts`, event by event. That identifies the offending events, and its result counts.

    Parameters
    ----------
    by_rows : StreamParts
        With the `StreamPrograms` of the program.
    """

    def __init__(
        self,
        state: StreamState,
        s_transactions: STransactions,
        *,
        by_rows: StreamParts,
        program: ColumnProgram,
        forest: Forest,
        launcher: Launcher,
        journal: StreamJournal,
    ):
        assert state.columns is not None
        self._state = state
        self._waiting: WaitingColumns = state.columns
        self._s_transactions = s_transactions
        self._by_rows = by_rows
        self._program = program
        self._forest = forest
        self._launcher = launcher
        self._journal = journal

    def run(self, entry: LedgerEntry, arrivals: Arrivals) -> None:
        """Process the events that `entry`'s punctuation has passed, starting with its part."""
        assert isinstance(arrivals, ColumnArrivals)
        try:
            passed_us = entry.punctuation_us
            passed = ColumnEvents.joined(
                [self._waiting.passed(passed_us), arrivals.events.before(passed_us)]
            )
            only_waits = passed_us is None
            if not self._run_part(entry, passed.in_order(), arrivals, must=only_waits):
                self._run_in_pieces(entry, arrivals, len(passed))
        except BaseException:
            self._state.load(begins=False)
            raise

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
        run = Run(name=state.run_name(entry), is_batch=True)
        self._launcher.join_running(running_max=DETACHED_MAX)
        try:
            self._forest.run(lambda t: self._process(t, entry, passed, arrivals), run)
        except ConnectionLost:
            raise
        except StoreError:
            if must:
                raise
            program.take_back()
            return False
        self._launcher.batch_firings.committed(run, is_whole=entry.complete)
        program.committed(len(passed))
        self._waiting.remove_passed(entry.punctuation_us)
        self._waiting.add(arrivals.events.since(entry.punctuation_us))
        state.last, state.has_notes = entry, False
        self._by_rows.on_progress(len(passed))
        return True

    def _process(
        self, t: TransactionNode, entry: LedgerEntry, passed: ColumnEvents, arrivals: ColumnArrivals
    ) -> None:
        each, program = self._s_transactions, self._program
        reached_us = entry.punctuation_us
        letters = [each.refuse(entry.batch_id, refused) for refused in arrivals.refused]
        if reached_us is not None:
            letters += program.process(t, passed, reached_us, fail_fast=each.fail_fast)
        late = [arrival.record() for arrival in arrivals.late]
        final = replace(entry, dead=len(letters))
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
            self._journal.write(
                connection, final, keep=(), late=late, drop=(), forget_before_us=reached_us
            )
            self._launcher.journal.write_letters(connection, [asdict(x) for x in letters])
            self._launcher.batch_firings.settle(connection, t.hierarchy.run)

        t.hierarchy.durable.append(write)

    # -- after a refusal by the database ---------------------------------------------------

    def _run_in_pieces(self, entry: LedgerEntry, arrivals: ColumnArrivals, count: int) -> None:
        """Process `count` events that were refused together, in smaller parts."""
        punctuation_us = entry.punctuation_us
        assert punctuation_us is not None, "who only waits is not refused"
        before_us = self._state.punctuation_us
        kept = replace(entry, punctuation_us=before_us, complete=False)
        self._run_part(kept, ColumnEvents.none(), arrivals, must=True)
        batch_events_max = self._forest.settings.batch_events_max
        if count <= batch_events_max:  # StreamParts would take them in one part anyway
            whole = self._following(entry, None)
            self._run_by_rows(whole, self._waiting.passed(punctuation_us))
            return
        small = min(batch_events_max, _SMALL)
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
        try:
            self._by_rows.run(entry, Arrivals())
        finally:
            self._program.of_rows()
        self._waiting.remove_passed(entry.punctuation_us)
