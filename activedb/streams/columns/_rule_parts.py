"""Parts of a stream's batches in columns, for a stream with rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from activedb.columns.events import ColumnEvents, events_to_bytes, pieces_of
from activedb.errors import ConnectionLost, StoreError
from activedb.firing import Launcher, Letter
from activedb.store import Connection
from activedb.store.journals import LedgerEntry, StreamJournal
from activedb.streams._arrivals import Arrivals
from activedb.streams._parts import DETACHED_MAX
from activedb.streams._s_transactions import STransactions
from activedb.streams._state import StreamState
from activedb.streams.columns._admission import ColumnArrivals
from activedb.streams.columns._rules import ColumnRules
from activedb.streams.columns._waiting import WaitingColumns
from activedb.transactions import Forest, Node, Run

__all__ = ["ColumnRuleParts"]


@dataclass(frozen=True, slots=True)
class _Done:
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
    ) -> _Done:
        """Process a part: all of `passed`, or its first events."""
        state = self._state
        run = Run(name=state.run_name(entry), is_batch=True)
        self._launcher.join_running(running_max=DETACHED_MAX)
        done = _Done(entry, 0)

        def body(t: Node) -> None:
            nonlocal done
            done = self._process(t, entry, passed, arrivals)

        try:
            self._forest.run(body, run)
        except ConnectionLost:
            raise
        except StoreError:
            run.careful = True
            self._forest.run(body, run)
        self._launcher.batch_firings.committed(run, is_whole=done.entry.complete)
        self._rules.committed(done.count)
        reached_us = done.entry.punctuation_us
        self._waiting.remove_passed(reached_us)
        self._waiting.add(arrivals.events.since(reached_us))
        state.last = done.entry
        self._on_progress(done.count)
        return done

    def _process(
        self, t: Node, entry: LedgerEntry, passed: ColumnEvents, arrivals: ColumnArrivals
    ) -> _Done:
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
        return _Done(final, count)
