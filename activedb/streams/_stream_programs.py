"""Execution of a stream's programs within its parts, and its durability."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from activedb.clock import moment_of
from activedb.columns import Arrival
from activedb.errors import BadEvent, BatchFailed, TableOwned
from activedb.events import Occurrence
from activedb.firing import Letter, is_systemic, storable
from activedb.functions import typed_text
from activedb.metrics import NamedCounters
from activedb.scheduling import (
    At,
    Detection,
    Outcome,
    Partitioned,
    Refusal,
    Scheduler,
    SerialOrder,
    SharedState,
    STransaction,
    TaskRunner,
    build_s_transaction,
)
from activedb.store.journals import ProgramJournal
from activedb.store.sql import TableSpec
from activedb.streams._declaration import StreamDeclaration
from activedb.streams._program_decisions import ProgramDecisions
from activedb.streams._programs import (
    PROGRAMS_MAX,
    Defined,
    Output,
    ProgramsOfStream,
    ProgramTable,
    take_tables,
)
from activedb.transactions import Forest, Transaction, TransactionNode, run_child

__all__ = ["ProgramTransaction", "StreamPrograms", "letter_of", "post_process"]


@dataclass(frozen=True, slots=True)
class ProgramTransaction:
    """S-transaction of a part.

    Attributes
    ----------
    defined : Defined
        Program it belongs to.
    transaction : STransaction
    arrival : Arrival or None
        Its event; None if it was triggered by time alone, or by a resolved decision.
    decision : str or None
        Id of that decision.
    """

    defined: Defined
    transaction: STransaction
    arrival: Arrival | None
    decision: str | None = None

    @property
    def identity(self) -> str:
        """Identity of the s-transaction, unique in the stream and the same when it is repeated."""
        return _identity(self.defined, self.arrival, self.transaction.at.us, self.decision)

    @property
    def timestamp(self) -> Any:
        """Time of the event."""
        if self.arrival is None:
            return moment_of(self.transaction.at.us)
        return self.arrival.occurrence.timestamp

    @property
    def outcome(self) -> Outcome:
        """Outcome of the s-transaction. REQUIRES: it has ended."""
        assert self.transaction.outcome is not None
        return self.transaction.outcome

    def output(self, value: Any, reason: str | None) -> Output:
        """Return the output of the s-transaction."""
        at = self.transaction.at
        id_ = None if self.arrival is None else self.arrival.occurrence.id
        return Output(at.us, at.arrival, id_, self.transaction.type, value, reason)

    def letter(self, stream: str, error: Exception) -> Letter:
        """Return the letter for an output that cannot be stored."""
        us, decision = self.transaction.at.us, self.decision
        return letter_of(stream, self.defined, self.arrival, error, us=us, decision=decision)


def letter_of(
    stream: str,
    defined: Defined,
    arrival: Arrival | None,
    error: Exception | None,
    *,
    reason: str | None = None,
    us: int = 0,
    decision: str | None = None,
) -> Letter:
    """Return the letter of an event, or of a time or a decision, that a program refuses."""
    name = defined.program.name
    said = reason or typed_text(error or BadEvent())
    return Letter(
        source=stream,
        identity=_identity(defined, arrival, us, decision),
        kind="event",
        payload={"program": name, "us": us} if arrival is None else arrival.record(),
        error=type(error or BadEvent()).__name__,
        reason=storable(f"program {name}: {said}"),
    )


def _identity(defined: Defined, arrival: Arrival | None, us: int, decision: str | None) -> str:
    if decision is not None:
        place = f"decision.{decision}"
    else:
        place = f"time.{us}" if arrival is None else f"{arrival.batch_id}.{arrival.position}"
    return f"{place}.{defined.program.name}"


# -- post-processing in a part: stored outputs, and rows for the user's own tables -----------------


_Rows: TypeAlias = list[tuple[ProgramTransaction, list[Mapping[str, Any]]]]


def post_process(
    t: TransactionNode, stream: str, works: Iterable[ProgramTransaction]
) -> tuple[list[Mapping[str, Any]], list[Letter]]:
    """Post-process completed s-transactions in the serial order.

    If post-processing raises, or its result cannot be stored, the event becomes a letter; the
    effects of its s-transaction stay.

    Returns
    -------
    records : list of mapping
        Outputs that activedb stores: those of programs without an output table, and aborts.
    letters : list of Letter
    """
    records: list[Mapping[str, Any]] = []
    letters: list[Letter] = []
    rows: _Rows = []
    for work in works:
        s, defined = work.transaction, work.defined
        reason = None if work.outcome.reason is None else storable(work.outcome.reason)
        try:
            value = defined.program.output(s.type, s.params, work.outcome)
            if value is not None and defined.outputs is not None:
                rows.append((work, _as_rows(value)))
                value = None
            if value is not None or reason is not None:
                records.append(work.output(value, reason).record(defined.program.name))
        except Exception as error:  # the user's function may raise anything
            letters.append(work.letter(stream, error))
            if reason is not None:
                records.append(work.output(None, reason).record(defined.program.name))
    if not rows or (not t.hierarchy.run.careful and _inserted(t, rows) is None):
        return records, letters
    for one in rows:
        refused = _inserted(t, [one])
        if refused is not None:
            letters.append(one[0].letter(stream, refused))
    return records, letters


def _as_rows(value: Any) -> list[Mapping[str, Any]]:
    """Return the rows of an output: the mapping itself, or each item of a list."""
    found = [value] if isinstance(value, Mapping) else value
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        raise BadEvent(
            "an output that goes into a table is a mapping of columns, or a list of such, not "
            f"{value!r}"
        )
    return found


def _inserted(t: TransactionNode, rows: _Rows) -> Exception | None:
    """Insert rows in a subtransaction; return the error, in which case none is inserted."""
    by_spec: dict[TableSpec, list[Mapping[str, Any]]] = {}
    for work, found in rows:
        if work.defined.outputs is not None:
            by_spec.setdefault(work.defined.outputs, []).extend(found)

    def insert(s: TransactionNode) -> None:
        for spec, found in by_spec.items():
            for same in _of_same_columns(found):
                Transaction(s).execute(spec.table.insert(), same)

    first = rows[0][0]
    try:
        with t.hierarchy.undoing() if t.hierarchy.run.careful else nullcontext():
            run_child(t, insert, label=f"{first.identity}.outputs", timestamp=first.timestamp)
    except Exception as error:
        if is_systemic(error, t):
            raise
        return error
    return None


def _of_same_columns(rows: Iterable[Mapping[str, Any]]) -> list[Sequence[Mapping[str, Any]]]:
    """Group rows by their columns, as one statement writes the same columns for all its rows."""
    found: dict[frozenset[str], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(frozenset(row), []).append(row)
    return list(found.values())


# -- execution of a stream's programs within its parts, and its durability -------------------------


_OF_MOMENTS = 2**62
"""Offset of a time's arrival number, which follows all events; the program's index is added."""


@dataclass(slots=True)
class _ProgramEffects:
    """Effects of a part, to be written with it."""

    versions: list[Mapping[str, Any]] = field(default_factory=list)
    outputs: list[Mapping[str, Any]] = field(default_factory=list)
    states: dict[str, Any] = field(default_factory=dict)
    committed: int = 0
    aborted: int = 0
    last_us: int | None = None  # of its last event


class StreamPrograms:
    """Programs of one stream: their shared state, and the parts of its events.

    Changes of a part are written through the part's transaction, so rows, versions and outputs
    commit with the ledger row. In memory they are visible earlier: `take_back` removes them.

    Not thread-safe: used only by the thread that feeds the stream.

    Attributes
    ----------
    state : SharedState
        Committed state, plus the changes of the current part.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        of: ProgramsOfStream,
        *,
        forest: Forest,
        journal: ProgramJournal,
        counters: NamedCounters,
        decisions: ProgramDecisions,
    ):
        self.state = SharedState(of.tables)
        self._name = f"the programs of stream {stream.name}"
        self._stream = stream
        self._of = of
        self._forest = forest
        self._journal = journal
        self._counters = counters
        self._decisions = decisions
        self._scheduler: Scheduler = of.scheduler
        self._tables = [ProgramTable(shared, kept) for shared, kept in of.tables.items()]
        self._processed = 0
        # Of programs with rules: their detectors, and the detector states at the last commit.
        self._detections: dict[str, Detection] = {}
        self._detected: dict[str, Mapping[str, Any]] = {}
        self._last_us: int | None = None  # latest time of all committed events and versions
        self._is_begun = False  # True if a part has fed the detectors since
        # Of the current part: the place of its first event, and the data it writes.
        self._first: At | None = None
        self._left = _ProgramEffects()

    @property
    def processed(self) -> int:
        """Number of events of all committed parts."""
        return self._processed

    def run_in_tasks(self, runner: TaskRunner | None) -> None:
        """Let a task runner execute s-transactions that share no state; None: run all here.

        Raises
        ------
        DefinitionError
            If the scheduler cannot be sent there.
        """
        of = self._of.scheduler
        self._scheduler = of if runner is None else Partitioned(of, runner)

    # -- loading and recovery --------------------------------------------------------------

    def begin(self, processed: int) -> None:
        """Take ownership of the tables for this process and this stream, and load them.

        Raises
        ------
        TableOwned
            If another process uses one of them.
        DefinitionError
            If the server itself changes rows of one of them, or one has a row that no s-transaction
            can have written.
        """
        specs = [table.kept.spec for table in self._tables]
        take_tables(self._forest, specs, self._name, lambda: self.load(processed))

    def load(self, processed: int) -> None:
        """Load the committed state.

        Parameters
        ----------
        processed : int
            Number of events of the stream processed so far.
        """
        state = SharedState(self._of.tables)
        for table in self._tables:
            table.load(state, self._journal)
        self.go_on(state, processed)
        self._last_us = max((us for v in state if (us := v.last_us()) is not None), default=None)
        self._detected = self._journal.states()
        self._restore_detections()

    def go_on(self, state: SharedState, processed: int) -> None:
        """Continue from a committed state after a number of processed events."""
        self.state, self._processed, self._first = state, processed, None

    def take_back(self) -> None:
        """Return to the committed state; discard the changes of an earlier attempt at a part."""
        if self._first is not None:
            self._take_back_since(self._first)
            self._first = None
        if self._is_begun:
            self._restore_detections()
        self._left = _ProgramEffects()
        self._decisions.take_back()

    def committed(self, events: int, reached_us: int | None) -> None:
        """Record that a part has committed: its number of events, and the time reached."""
        left, self._left, self._first = self._left, _ProgramEffects(), None
        self._processed += events
        self._detected |= left.states
        self._is_begun = False
        if left.last_us is not None:
            self._last_us = left.last_us
        self._decisions.committed()
        if reached_us is not None:
            self.state.trim(At(reached_us, "", 0))
        for name, count in (("committed", left.committed), ("aborted", left.aborted)):
            if count:
                self._counters.add(f"s_transactions_{name}", count)

    # -- a part ----------------------------------------------------------------------------

    def process(
        self,
        t: TransactionNode,
        chunk: Sequence[Arrival],
        reached_us: int | None,
        *,
        behind: Sequence[Occurrence],
        sequence: int,
        fail_fast: bool,
    ) -> list[Letter]:
        """Run the s-transactions of a part's events; return letters of refused events.

        Parameters
        ----------
        t : TransactionNode
            Transaction of the part.
        chunk : sequence of Arrival
            In event-time order.
        reached_us : int or None
            Time that no later event precedes.
        behind : sequence of Occurrence
            Events outside the part that may be before some of its events.
        sequence : int
            Sequence number of the part.
        fail_fast : bool
            Raise `BatchFailed` instead of making a letter.
        """
        self.take_back()
        if reached_us is None:
            return []  # no event has been passed
        self._is_begun = True
        self._left.last_us = chunk[-1].occurrence.low_us if chunk else None
        self._decisions.begin(self._detections)
        works, letters = self._prepared(chunk, reached_us, behind)
        chosen, told = self._decided(sequence, reached_us)
        works = sorted([*works, *chosen], key=lambda work: work.transaction.at)
        for detection in self._detections.values():
            detection.trim(reached_us)
        self._left.states = self._changed_states()
        if works:
            self._first = works[0].transaction.at
            if t.hierarchy.run.careful or not self._run_together(t, works):
                self._run_one_by_one(t, works)
        records, more = post_process(t, self._stream.name, works)
        self._left.outputs += records
        for work in works:
            if work.outcome.committed:
                self._left.committed += 1
            else:
                self._left.aborted += 1
        letters += more
        if letters and fail_fast:
            raise BatchFailed(
                f"stream {self._stream.name}: event {letters[0].identity}: {letters[0].reason}"
            )
        return letters + told

    def write(self, connection: Any, reached_us: int | None) -> None:
        """Write the effects of the part, within its commit."""
        self._journal.write_versions(connection, self._left.versions)
        self._journal.write_outputs(connection, self._left.outputs)
        self._journal.write_states(connection, self._left.states)
        self._decisions.write(connection)
        for table in self._tables:
            if reached_us is not None and table.shared.history_us:
                before_us = reached_us - table.shared.history_us
                self._journal.forget_versions(connection, table.kept.spec.name, before_us)

    # -- internals -------------------------------------------------------------------------

    def _prepared(
        self, chunk: Sequence[Arrival], reached_us: int | None, behind: Sequence[Occurrence]
    ) -> tuple[list[ProgramTransaction], list[Letter]]:
        """Return the events' s-transactions in the serial order, and letters of refused events."""
        works: list[ProgramTransaction] = []
        letters: list[Letter] = []
        for place, defined in enumerate(self._of.programs):
            works += self._prepared_of(defined, place, chunk, reached_us, behind, letters)
        return works, letters

    def _decided(
        self, sequence: int, reached_us: int
    ) -> tuple[list[ProgramTransaction], list[Letter]]:
        """Return the s-transactions of resolved decisions, and letters of invalid ones.

        They follow all events of the part; so there are none while more events of its time may
        come.
        """
        works: list[ProgramTransaction] = []
        letters: list[Letter] = []
        for us in (self._last_us, self._left.last_us):
            if us is not None and us >= reached_us:
                return works, letters
        for defined in self._of.programs:
            name = defined.program.name
            if name in self._detections:
                made, told = self._decisions.apply(
                    name, self._detections[name], sequence, reached_us
                )
                works += [ProgramTransaction(defined, one, None, id_) for id_, one in made]
                letters += told
        letters += self._decisions.rest([d.program.name for d in self._of.programs])
        return works, letters

    def _prepared_of(
        self,
        defined: Defined,
        place: int,
        chunk: Sequence[Arrival],
        reached_us: int | None,
        behind: Sequence[Occurrence],
        letters: list[Letter],
    ) -> list[ProgramTransaction]:
        """Return the s-transactions of the stream's program number `place`; add to `letters`."""
        program, stream = defined.program, self._stream.name
        detection = self._detections.get(program.name)
        arrivals: dict[At, Arrival] = {}
        made: list[STransaction] = []
        for number, arrival in enumerate(chunk, start=self._processed + 1):
            o = arrival.occurrence
            is_for_rules = detection is not None and detection.accepts(o)
            if o.name not in program.types and not is_for_rules:
                continue
            # Lower ends do not decrease from event to event, and the number breaks all ties.
            at = At(o.low_us, "", number * PROGRAMS_MAX + place)
            one = build_s_transaction(program, o, at)
            if isinstance(one, Refusal):
                letters.append(letter_of(stream, defined, arrival, one.error, reason=one.reason))
            elif one is not None:
                arrivals[at] = arrival
                made.append(one)
                if detection is not None and is_for_rules:
                    detection.take(at, o)
        if detection is not None:
            # Those that pre-processing will drop or refuse are not for the rules, as in the part.
            later = [
                o
                for o in behind
                if detection.accepts(o)
                and isinstance(build_s_transaction(program, o, At(o.low_us, "", 0)), STransaction)
            ]
            made, refused, undecided, decided = detection.run(made, reached_us, later)
            self._decisions.found(program.name, undecided, decided)
            by_event = {id(arrival.occurrence): arrival for arrival in arrivals.values()}
            letters += [letter_of(stream, defined, by_event[id(o)], e) for o, e in refused]
        for one in made:
            if one.at not in arrivals:  # a time follows all its events
                one.at = At(one.at.us, "", _OF_MOMENTS + place)
        return [ProgramTransaction(defined, one, arrivals.get(one.at)) for one in made]

    def _run_together(self, t: TransactionNode, works: list[ProgramTransaction]) -> bool:
        """Let the scheduler run all; return False, with no effects, if the server refuses rows."""
        for work in works:
            self._scheduler.add(work.transaction)
        self._scheduler.run(self.state)
        first = works[0].transaction.at
        try:
            self._left.versions += self._write(t, f"programs.{works[0].identity}", works[-1], first)
        except TableOwned:  # the tables have got another owner
            raise
        except Exception as error:
            if is_systemic(error, t):
                raise
            self._take_back_since(first)
            self._left.versions.clear()
            return False
        return True

    def _run_one_by_one(self, t: TransactionNode, works: list[ProgramTransaction]) -> None:
        """Run all in the serial order, so that only s-transactions with refused writes abort."""
        alone = SerialOrder()
        for work in works:
            s = work.transaction
            alone.add(s)
            alone.run(self.state)
            if not work.outcome.committed:
                continue
            try:
                with t.hierarchy.undoing() if t.hierarchy.run.careful else nullcontext():
                    self._left.versions += self._write(t, work.identity, work, s.at)
            except TableOwned:
                raise
            except Exception as error:
                if is_systemic(error, t):
                    raise
                self._take_back_since(s.at)
                s.outcome = Outcome.of_error(error)

    def _write(
        self, t: TransactionNode, label: str, last: ProgramTransaction, since: At
    ) -> list[Mapping[str, Any]]:
        """Write the rows changed at or after a place; return the records of the versions."""
        found = [
            (table, rows, list(table.records(versions, since)))
            for table in self._tables
            for versions in (self.state.of(table.shared),)
            if (rows := table.rows(versions, since))
        ]

        def write(s: TransactionNode) -> None:
            s.writer = self._name
            for table, rows, _ in found:
                table.write(s, rows)

        if found:
            run_child(t, write, label=label, timestamp=last.timestamp)
        return [record for _, _, records in found for record in records]

    def _take_back_since(self, at: At) -> None:
        for versions in self.state:
            versions.take_back_since(at)

    # -- rules of programs -----------------------------------------------------------------

    def _restore_detections(self) -> None:
        """Restore the detectors to the last committed part; O(size of their state)."""
        self._is_begun = False
        for program in (defined.program for defined in self._of.programs):
            if not program.rules:
                continue
            detection = self._detections[program.name] = Detection(program.rules, program.check)
            if program.name in self._detected:
                detection.restore(self._detected[program.name])

    def _changed_states(self) -> dict[str, Any]:
        """Return detector states that differ from the database, by program."""
        states = {name: detection.state() for name, detection in self._detections.items()}
        return {name: s for name, s in states.items() if s != self._detected.get(name)}
