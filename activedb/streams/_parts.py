"""Parts of a stream's batches: each is one top-level transaction and one row of the ledger.

```
                    ┌─ RowProcessor            event by event
  arrivals ──► one  ├─ ColumnRuleProcessor     rules in columns        ──► Parts: a transaction that
               of   └─ ColumnProgramProcessor  a program in columns        commits all or nothing
```

A processor decides which events form a part, and what happens to them. The pipeline is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from activedb.columns import Arrival
from activedb.errors import ConnectionLost, StoreError
from activedb.firing import Launcher, Letter
from activedb.store import Connection
from activedb.store.journals import LedgerEntry, Repeated, StreamJournal
from activedb.streams._arrivals import Arrivals
from activedb.streams._membership import Changes, Membership
from activedb.streams._s_transactions import STransactions
from activedb.streams._state import OF_COLUMNS, StreamState
from activedb.streams._stream_programs import StreamPrograms
from activedb.streams._time import StreamTime
from activedb.transactions import Forest, Run, TransactionNode

__all__ = ["Part", "Parts", "RowProcessor"]

_DETACHED_MAX = 2_000  # detached rules under way when a part begins


@dataclass(frozen=True, slots=True)
class Part:
    """Processed part of a batch, and what its commit writes beside the effects of its events.

    Attributes
    ----------
    entry : LedgerEntry
        Its row of the ledger.
    letters : list of Letter
    late : sequence of Arrival
    write : callable ``(connection)``
        Writes what only this kind of processing keeps.
    keep : sequence of mapping
        Rows of the events to keep.
    drop : sequence of (int, int, int)
        Time, batch and position of kept events that have failed.
    forget_before_us : int or None
        Time before which kept events can take part in no later match.
    """

    entry: LedgerEntry
    letters: list[Letter]
    late: Sequence[Arrival]
    write: Callable[[Connection], None]
    keep: Sequence[dict[str, Any]] = ()
    drop: Sequence[tuple[int, int, int]] = ()
    forget_before_us: int | None = None


AnyPart = TypeVar("AnyPart", bound=Part)


class Parts:
    """Pipeline of parts: runs each in a transaction that commits it with its row of the ledger.

    Attributes
    ----------
    on_progress : callable ``(events)``
        Called with the number of events that have just been processed durably.
    """

    def __init__(
        self, state: StreamState, *, forest: Forest, launcher: Launcher, journal: StreamJournal
    ):
        self.on_progress: Callable[[int], None] = lambda events: None
        self._state = state
        self._forest = forest
        self._launcher = launcher
        self._journal = journal

    def run(
        self,
        entry: LedgerEntry,
        process: Callable[[TransactionNode], AnyPart],
        committed: Callable[[AnyPart], None],
        *,
        is_careful: bool = True,
    ) -> AnyPart:
        """Run a part as one transaction.

        Parameters
        ----------
        entry : LedgerEntry
            Names the batch.
        process : callable ``(t)``
            Processes the events of the part; called again if the transaction is retried.
        committed : callable ``(part)``
            Settles in memory what the part has made durable. If it is interrupted, the state is
            loaded again.
        is_careful : bool
            If the server refuses an operation, run the part again with a check after each event, so
            that only the offending event is undone.

        Raises
        ------
        StoreError
            If the server refuses an operation, unless `is_careful`; nothing is written then.
        """
        self._launcher.join_running(running_max=_DETACHED_MAX)
        done: list[AnyPart] = []

        def body(t: TransactionNode) -> None:
            part = process(t)
            part = replace(part, entry=replace(part.entry, dead=len(part.letters)))
            done[:] = [part]
            t.hierarchy.durable.append(lambda connection: self._write(connection, part, run))

        # Not named after the part: a retry may split the events differently.
        run = Run(name=self._state.run_name(entry), batch=Repeated.STREAM)
        try:
            self._forest.run(body, run)
        except ConnectionLost:
            raise
        except StoreError:
            if not is_careful:
                raise
            run.careful = True
            self._forest.run(body, run)
        (part,) = done
        self._launcher.batch_firings.committed(run, is_whole=part.entry.complete)
        committed(part)
        self._state.last = part.entry  # last: it says that memory agrees with the commit
        return part

    def _write(self, connection: Connection, part: Part, run: Run) -> None:
        part.write(connection)
        self._journal.write(
            connection,
            part.entry,
            keep=part.keep,
            late=[arrival.record() for arrival in part.late],
            drop=part.drop,
            forget_before_us=part.forget_before_us,
        )
        if part.letters:
            letters = [asdict(letter) for letter in part.letters]
            self._launcher.journal.write_letters(connection, letters)
        self._launcher.batch_firings.settle(connection, run)


@dataclass(frozen=True, slots=True)
class _RowPart(Part):
    """Part whose events were processed one by one, and what its commit makes durable.

    Attributes
    ----------
    producers : mapping
        Changed records of producers.
    states : mapping
        Changed states of detectors, by rule.
    reached_us : int or None
        Time that the part has reached.
    """

    producers: Changes = field(default_factory=dict)
    states: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    reached_us: int | None = None


class RowProcessor:
    """Processor of the events that a punctuation has passed, event by event.

    The s-transactions of events are subtransactions of their part, one at a time in event-time
    order (Wang, Rundensteiner, Ellison 2011, section 5.1); the s-transactions of programs follow,
    all together. The waiting events, the detectors' state and the outputs of programs commit
    together with their effects.
    """

    def __init__(
        self,
        parts: Parts,
        state: StreamState,
        s_transactions: STransactions,
        *,
        journal: StreamJournal,
        time: StreamTime,
        batch_events_max: int,
        membership: Membership | None,
        programs: StreamPrograms | None,
    ):
        self._parts = parts
        self._state = state
        self._s_transactions = s_transactions
        self._journal = journal
        self._time = time
        self._batch_events_max = batch_events_max
        self._membership = membership
        self._programs = programs

    def run(self, entry: LedgerEntry, arrivals: Arrivals) -> None:
        """Process the events that `entry`'s punctuation has passed, starting with its part.

        The last part completes the batch if `entry` says so. Rows of the batch are taken with the
        first part, or with the last part if the punctuation does not count them.
        """
        state, completes = self._state, entry.complete
        elsewhere = self._s_transactions.elsewhere
        taken = Arrivals() if elsewhere.is_used else arrivals
        state.buffer.add(arrivals.admitted)
        if elsewhere.is_used:
            state.buffer.add(elsewhere.alone(state.buffer))
        punctuation_us = entry.punctuation_us
        while True:
            chunk, next_us = self._next_chunk(punctuation_us)
            if next_us is None and elsewhere.is_used:
                taken = arrivals
            entry = replace(
                entry,
                sequence=state.next_sequence,
                punctuation_us=punctuation_us if next_us is None else next_us,
                complete=completes and next_us is None,
                events=elsewhere.count(chunk, is_last=next_us is None),
                late=len(taken.late),
            )
            self._run_part(entry, chunk, taken)
            if next_us is None:
                return
            entry, taken = replace(entry, part=entry.part + 1), Arrivals()

    def _next_chunk(self, punctuation_us: int | None) -> tuple[list[Arrival], int | None]:
        if punctuation_us is None:
            return [], None
        return self._state.buffer.first(punctuation_us, self._batch_events_max)

    def _run_part(self, entry: LedgerEntry, chunk: list[Arrival], arrivals: Arrivals) -> None:
        def committed(part: _RowPart) -> None:
            self._time.committed(part.states, part.reached_us)
            if self._programs is not None:
                self._programs.committed(len(chunk), part.reached_us)
            state = self._state
            state.buffer.remove_first(len(chunk))
            state.left_in_columns, state.is_left_in_columns = [], False
            if self._membership is not None:
                self._membership.committed(part.producers)
                self._membership.declared(entry.punctuation_us)

        self._parts.run(entry, lambda t: self._process(t, entry, chunk, arrivals), committed)
        self._parts.on_progress(entry.events)

    def _process(
        self, t: TransactionNode, entry: LedgerEntry, chunk: list[Arrival], arrivals: Arrivals
    ) -> _RowPart:
        state, each = self._state, self._s_transactions
        self._time.take_back(t)  # fed by an earlier attempt
        each.refusals.begin()
        letters = [each.refuse(entry.batch_id, refused) for refused in arrivals.refused]
        counts_rows = not each.elsewhere.is_used
        if counts_rows:
            letters += each.offer_late(t, arrivals.late, state.punctuation_us or 0)
        dead: list[Arrival] = []
        due_us = self._time.due.due_us  # empty, as long as time completes nothing
        for place, arrival in enumerate(chunk):
            if due_us:
                letters += each.advance(t, arrival.occurrence.low_us)
            letter = each.process(t, arrival, state.buffer.overlapping(place))
            if letter is not None:
                dead.append(arrival)
                letters.append(letter)
        reached_us = None
        if entry.punctuation_us is not None:
            reached_us = state.reached_us(entry.punctuation_us, len(chunk))
            if due_us:
                letters += each.advance(t, reached_us)
        programs = self._programs
        if programs is not None:
            letters += programs.process(
                t,
                chunk,
                reached_us,
                behind=state.buffer.behind(len(chunk)),
                sequence=entry.sequence,
                fail_fast=each.fail_fast,
            )
        if not counts_rows:  # late by the punctuation of this part
            letters += each.offer_late(t, arrivals.late, entry.punctuation_us or 0)
        states = self._time.changed_states(t, reached_us)
        forget_before_us = None  # events before can take part in no later match
        memory_us = self._time.memory_us()
        if reached_us is not None and memory_us is not None:
            forget_before_us = reached_us - memory_us
        left, is_left_in_columns = list(state.left_in_columns), state.is_left_in_columns
        keep = [
            arrival.record()
            for arrival in (*left, *arrivals.admitted)
            if forget_before_us is None or arrival.occurrence.us >= forget_before_us
        ]
        producers = {} if self._membership is None else self._membership.changes()

        def write(connection: Connection) -> None:
            if is_left_in_columns:
                self._journal.columns.forget_waiting(connection)
                self._journal.columns.forget_notes(connection, *OF_COLUMNS)
            each.refusals.write(connection, self._journal.columns, entry.sequence, forget_before_us)
            if states:
                self._time.write(connection, states)
            if producers:
                self._journal.write_producers(connection, producers)
            if programs is not None:
                programs.write(connection, reached_us)

        drop = [(a.occurrence.us, a.batch_id, a.position) for a in dead]
        return _RowPart(
            entry,
            letters,
            arrivals.late,
            write,
            keep,
            drop,
            forget_before_us,
            producers=producers,
            states=states,
            reached_us=reached_us,
        )
