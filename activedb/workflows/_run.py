"""Execution and compensation of a workflow's atomic batches, resumed from the recorded state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from activedb.batches import (
    BatchLineage,
    CompensationPlan,
    Cover,
    Due,
    Lineage,
    Mode,
    Piece,
    Requirement,
    draw_svg,
    independent_scover,
    lineage_of,
    plan_compensation,
)
from activedb.errors import (
    CheckpointMismatch,
    CompensationError,
    ConfigurationError,
    ProgramFailed,
    SerializationConflict,
    TransactionStateError,
)
from activedb.events import decode_params, encode_params
from activedb.firing import SYSTEMIC, Launcher, Letter, storable
from activedb.functions import typed_text
from activedb.spelling import did_you_mean, listed
from activedb.store.journals import WorkflowChanges, WorkflowJournal
from activedb.streams import AtomicBatch
from activedb.transactions import Forest, Run, Transaction, TransactionNode, current_transaction
from activedb.workflows._commits import Commits, Compensating, Record, pieces_of
from activedb.workflows._definition import (
    Row,
    WorkflowDefinition,
    decoded,
    encoded,
    given_out,
    part_of,
    rows_of_micro_batch,
)
from activedb.workflows._state import WorkflowState, id_of, run_name

__all__ = ["BatchRun", "WorkflowExecutor"]

T = TypeVar("T")


class WorkflowExecutor:
    """Executor of the due transactions of one workflow; called by one thread at a time."""

    def __init__(
        self,
        definition: WorkflowDefinition,
        *,
        commits: Commits,
        journal: WorkflowJournal,
        compensating: Compensating,
        forest: Forest,
    ):
        self._definition = definition
        self._workflow = definition.composed()
        self._commits = commits
        self._journal = journal
        self._compensating = compensating
        self._pool = forest.pool

    def run_due(self) -> None:
        """Run due transactions, and those that become due by that, in order.

        Raises
        ------
        ProgramFailed
            If a program raised, and its transaction was not given up.
        """
        while (first := self._commits.look(WorkflowState.next_due)) is not None:
            failed = [error for error in self._attempt_all(self._beside(first)) if error]
            if not failed:
                continue
            if self._definition.on_failure == "stop":
                raise failed[0]
            self._give_back(failed[0])

    def waits_for_resume(self) -> bool:
        """Return whether a failed transaction is due."""
        return self._commits.look(lambda state: any(id in state.lineage for id in state.due))

    def _beside(self, first: Due) -> list[Due]:
        """Return the due transactions to run with `first`: several only without batch order."""
        if self._workflow.programs[first.program].requires(Requirement.BATCH_ORDER):
            return [first]
        return self._commits.look(
            lambda state: [due for due in state.due.values() if due.program == first.program]
        )

    def _attempt_all(self, due: list[Due]) -> list[ProgramFailed | None]:
        if len(due) == 1:
            return [self._attempt(due[0])]
        submit = self._pool.submit
        tasks = [submit(partial(self._attempt, each)) for each in due]
        for task in tasks:
            task.wait()
        return [task.result() for task in tasks]

    def _attempt(self, due: Due) -> ProgramFailed | None:
        """Execute a transaction, or record its failure; return the failure if it stays due."""
        try:
            self._execute(due)
        except SYSTEMIC:
            raise
        except Exception as error:
            return self._failed(due, error)
        return None

    def _execute(self, due: Due) -> None:
        program, id = self._definition.programs[due.program], id_of(due)

        def work(t: TransactionNode) -> Record | None:
            if not self._is_due(due):
                return None  # another process has executed or compensated it
            given = program.function(Transaction(t), *self._inputs(due))
            rows = given_out(program.name, given)
            return lambda state, recorded: state.executed(recorded, due, rows)

        self._commits.run(self._commits.redone(run_name(id)), work)

    def _is_due(self, due: Due) -> bool:
        return self._commits.look(lambda state: state.due.get(id_of(due)) == due)

    def _inputs(self, due: Due) -> list[list[Row]]:
        """Return the rows of a transaction's input batches, in the order of the streams read."""
        streams = list(self._workflow.programs[due.program].reads)

        def usable(state: WorkflowState) -> dict[str, list[Piece]]:
            found: dict[str, list[Piece]] = {stream: [] for stream in streams}
            for pieces in due.inputs:
                for piece in filter(state.is_usable, pieces):
                    found[state.lineage.batch(piece.batch).stream].append(piece)
            return found

        found = self._commits.look(usable)
        rows = self._commits.rows({p.batch for pieces in found.values() for p in pieces})
        return [
            [r for piece in found[stream] for r in part_of(decoded(rows[piece.batch]), piece)]
            for stream in streams
        ]

    def _failed(self, due: Due, error: Exception) -> ProgramFailed | None:
        """Record a failure; None if its completion is optional, or it is no longer due.

        The returned failure has the original error as its cause.
        """
        reason, id = storable(typed_text(error)), id_of(due)
        program = self._workflow.programs[due.program]
        is_optional = not program.requires(Requirement.COMPLETION)
        found: list[tuple[str, ...]] = []

        def record(state: WorkflowState, recorded: WorkflowChanges) -> None:
            if is_optional:
                state.give_up(recorded, due, reason)
            else:
                state.failed(recorded, due, reason)
            found[:] = [state.lineage.sources_of(id)]

        self._commits.run(Run(), lambda t: record if self._is_due(due) else None)
        if is_optional or not found:
            return None
        failure = ProgramFailed(
            f"workflow {self._definition.name}: program {due.program} failed in {id}, which is "
            f"about {listed(found[0])}: {reason}. That transaction is undone and still due: fix "
            "the cause and call resume(), or give the batch up with compensate()",
            workflow=self._definition.name,
            program=due.program,
            transaction=id,
            batches=found[0],
            reason=reason,
        )
        failure.__cause__ = error
        return failure

    def _give_back(self, failed: ProgramFailed) -> None:
        """Compensate the batches of a failed transaction, as the workflow specifies."""
        refused = self._refusal(failed)
        if refused is not None:
            failed.add_note(f"and it could not be given up: {refused}")
            raise failed
        if self._commits.look(lambda state: failed.transaction in state.due):
            failed.add_note("its batch was given up, but other batches need it: it is due for them")
            raise failed

    def _refusal(self, failed: ProgramFailed) -> CompensationError | None:
        definition = self._definition
        given = failed.batches or (failed.transaction,)
        try:
            self._compensating.compensate(
                given, definition.mode, None, allow_interference=definition.allow_interference
            )
        except CompensationError as error:
            return error
        return None


class BatchRun:
    """Execution of the programs of one workflow; created by `Workflows.open`.

    Each execution of a program is a top-level transaction: the writes of the function, the
    transaction's record, its input batches, its output and the lineage commit together. The due
    transactions are recorded, too, so the next process to open the workflow continues from there.

    Thread-safe. Batches are taken one after another; `call` runs in parallel with them.

    Attributes
    ----------
    name : str
        Name of the workflow.
    """

    def __init__(
        self,
        definition: WorkflowDefinition,
        *,
        forest: Forest,
        launcher: Launcher,
        journal: WorkflowJournal,
    ):
        self.name = definition.name
        self._definition = definition
        self._workflow = definition.composed()
        self._journal = journal
        self._commits = Commits(
            self.name, self._workflow, forest=forest, launcher=launcher, journal=journal
        )
        self._compensating = Compensating(definition, self._commits, journal)
        self._running = WorkflowExecutor(
            definition,
            commits=self._commits,
            journal=journal,
            compensating=self._compensating,
            forest=forest,
        )
        self._taking = Taking(self._commits, launcher, self._running)
        self._busy = threading.RLock()  # one batch after another; taken before all else

    # -- running -----------------------------------------------------------------------------

    def feed(self, stream: str, rows: Iterable[Mapping[str, Any]]) -> str:
        """Take one batch of a source stream, and run all transactions that it triggers.

        The batch is durable before the first program runs. Transactions already due run first.

        Parameters
        ----------
        stream : str
        rows : iterable of mapping
            Values by name, of the types that `activedb.events.encode_params` takes.

        Returns
        -------
        str
            The batch's id: ``stream#number``.

        Raises
        ------
        BadEvent
            If a row is invalid; nothing was taken.
        ProgramFailed
            If a program raised. Its attribute ``taken`` is the id of this batch; it is None if the
            program ran for an earlier batch, and this one was not taken.
        ConfigurationError
            If there is no such source stream.
        """
        self._check_source(stream)
        taken = encoded(rows, f"a batch of {stream}")
        self._check_outside()
        with self._busy:
            batch = self._taking.take(stream, taken)
            self._run_taken(batch)
        return batch

    def apply(self, batch: AtomicBatch) -> str | None:
        """Take a micro-batch from Spark, for the source of its name, and run what it triggers.

        A micro-batch that was taken before has no effect, but due transactions still run. A row has
        the parameters by name, and ``event_type``, ``event_time_us``, ``event_id``; a row that is
        not a valid event becomes a dead letter. Punctuation and lateness are ignored: batches are
        taken in the order of arrival.

        Returns
        -------
        str or None
            The batch's id. None if it has no rows, and so makes no batch, or if it was taken before
            the last one.

        Raises
        ------
        CheckpointMismatch
            If it does not continue the sequence taken from Spark before.
        ProgramFailed, ConfigurationError
            As for `feed`.
        """
        self._check_source(batch.stream)
        self._check_outside()
        with self._busy:
            id = self._taking.take_micro_batch(batch)
            self._run_taken(id)
        return id

    def resume(self) -> tuple[str, ...]:
        """Run due transactions: those left by a crash, and failed ones.

        Returns
        -------
        tuple of str
            The transactions that were due before.

        Raises
        ------
        ProgramFailed
            As for `feed`.
        """
        self._check_outside()
        with self._busy:
            due = self.due()
            self._running.run_due()
        return due

    def call(self, program: str, /, *, triggered_by: Iterable[str] = (), **arguments: Any) -> str:
        """Execute an OLTP program in a separate transaction, and run what its output triggers.

        Parameters
        ----------
        program : str
            Name of a program that reads no stream.
        triggered_by : iterable of str
            Transactions of preceding programs that this call belongs to.
        **arguments
            Arguments of the function; kept for its compensating action.

        Returns
        -------
        str
            The transaction's id.

        Raises
        ------
        ConfigurationError
            If there is no such OLTP program.
        ProgramFailed
            If a program raised that was due, or that the output has triggered. The call has taken
            effect: its attribute ``taken`` is the transaction's id.
        Exception
            The error of the program; nothing is recorded then.
        """
        chosen = self._definition.programs.get(program)
        if chosen is None or self._workflow.programs[program].reads:
            callable_ = [p.name for p in self._workflow.programs.values() if not p.reads]
            raise ConfigurationError(
                f"workflow {self.name} has no program {program!r} that can be called: those that "
                f"read no stream can; {did_you_mean(program, callable_)}"
            )
        causes = (triggered_by,) if isinstance(triggered_by, str) else tuple(triggered_by)
        kept = encode_params(arguments)
        self._check_outside()
        executed: list[str] = []

        def work(t: TransactionNode) -> Record:
            rows = given_out(
                program, chosen.function(Transaction(t), **decode_params(kept))
            )  # a copy per try
            executed.clear()

            def record(state: WorkflowState, recorded: WorkflowChanges) -> None:
                executed.append(state.called(recorded, program, causes, kept, rows).id)

            return record

        self._commits.run(Run(of_application=True), work)
        if self._workflow.readers(program):
            with self._busy:
                self._run_taken(executed[0])
        return executed[0]

    # -- queries -----------------------------------------------------------------------------

    def due(self) -> tuple[str, ...]:
        """Return the ids of the transactions that are due and not executed."""
        return self._asked(lambda state: tuple(state.due))

    def waiting(self) -> dict[str, tuple[str, ...]]:
        """Return the batches that wait to be formed into an input batch, by program."""
        return self._asked(lambda state: state.forming.waiting())

    def rows(self, batch: str) -> list[Row]:
        """Return the rows of a batch; for an input batch, those of its pieces.

        Raises
        ------
        NotRecorded
            If there is no such batch, or it is being forgotten.
        """
        pieces = pieces_of(self._asked(lambda state: state.lineage.batch(batch)))
        rows = self._commits.rows({piece.batch for piece in pieces})
        return [r for piece in pieces for r in part_of(decoded(rows[piece.batch]), piece)]

    def lineage(self, batch: str) -> BatchLineage:
        """Return the ancestors and descendants of a batch, and their states.

        Raises
        ------
        NotRecorded
            If there is no such batch.
        """
        return self._asked(lambda state: lineage_of(state.lineage, batch))

    def whole_lineage(self) -> Lineage:
        """Return a copy of the whole lineage, for the functions of `activedb.batches`. O(rows)."""
        records = self._asked(lambda state: state.lineage.records())
        return Lineage.of(self._workflow, records)

    def cover(self, batch: str, *, consecutive: bool = False, rounds: int | None = None) -> Cover:
        """Return the least independent cover of a batch; see `independent_scover`."""
        return self._asked(
            lambda state: independent_scover(
                state.lineage, batch, consecutive=consecutive, rounds=rounds
            )
        )

    def draw_svg(self, batch: str | None = None, *, plan: CompensationPlan | None = None) -> str:
        """Return a drawing of all batches, or those connected with one; see `activedb.batches`."""
        return self._asked(lambda state: draw_svg(state.lineage, batch, plan=plan))

    # -- compensation ------------------------------------------------------------------------

    def plan(
        self,
        batch: str | Iterable[str],
        mode: Mode | str = Mode.FULL,
        *,
        consecutive: bool = False,
        rounds: int | None = None,
    ) -> CompensationPlan:
        """Return the plan for a compensation of batches, without executing it.

        Raises
        ------
        NotRecorded, LineageError
            As for `activedb.batches.plan_compensation`.
        """
        ids = batch if isinstance(batch, str) else tuple(batch)
        return self._asked(
            lambda state: plan_compensation(
                state.lineage, ids, mode, consecutive=consecutive, rounds=rounds
            )
        )

    def compensate(
        self,
        batch: str | Iterable[str] | None = None,
        mode: Mode | str = Mode.FULL,
        *,
        plan: CompensationPlan | None = None,
        allow_interference: bool = False,
    ) -> CompensationPlan:
        """Compensate batches: all actions and their records, in one transaction.

        Then due transactions run, as with `resume`.

        Parameters
        ----------
        batch : str or iterable of str, optional
            By default the batches of `plan`.
        mode : Mode or str
        plan : CompensationPlan, optional
            A result of `plan`, to be executed exactly.
        allow_interference : bool
            True if the completion of other batches may be affected.

        Returns
        -------
        CompensationPlan
            The executed plan.

        Raises
        ------
        AlreadyCompensated, Interferes, NotCompensable, PlanOutdated, CompensationFailed
            See these errors; nothing has changed then.
        NotRecorded
            If there is no such batch.
        """
        self._check_outside()
        if batch is not None and not isinstance(batch, str):
            batch = tuple(batch)
        with self._busy:
            self._commits.keep_up()
            done = self._compensating.compensate(
                batch, mode, plan, allow_interference=allow_interference
            )
            if not self._running.waits_for_resume():
                self._running.run_due()
        return done

    # -- old history -------------------------------------------------------------------------

    def forget(self, before: datetime) -> int:
        """Forget unneeded batches and transactions, so that tables stay small.

        Forgets those that were recorded before a moment, are complete, and have no kept
        descendants; never the last of a stream or program. Their writes stay. A batch can no
        longer be compensated once a forgotten descendant stands.

        Parameters
        ----------
        before : datetime
            Moment with a time zone, by the clock of the database.

        Returns
        -------
        int
            Number of forgotten batches and transactions.

        Raises
        ------
        ConfigurationError
            If `before` has no time zone.

        Notes
        -----
        O(rows).
        """
        if not isinstance(before, datetime) or before.tzinfo is None:
            raise ConfigurationError(f"before is a datetime with a time zone, not {before!r}")
        self._check_outside()
        forgotten: list[str] = []

        def work(t: TransactionNode) -> Record:
            kept = self._journal.load()
            rows = [] if kept is None else kept.nodes
            old = {row["id"] for row in rows if row["recorded_at"] < before}

            def record(state: WorkflowState, recorded: WorkflowChanges) -> None:
                state.forget(recorded, old)
                forgotten[:] = recorded.forgotten

            return record

        with self._busy:
            self._commits.run(Run(), work)
        return len(forgotten)

    # -- inside ----------------------------------------------------------------------------

    def _asked(self, question: Callable[[WorkflowState], T]) -> T:
        """Return the answer of a function of the state, as of now in any process."""
        self._commits.keep_up()
        return self._commits.look(question)

    def _run_taken(self, id: str | None) -> None:
        """Run what a batch that was taken, or a call, has made due."""
        try:
            self._running.run_due()
        except ProgramFailed as failed:
            failed.taken = id
            raise

    def _check_source(self, stream: str) -> None:
        if stream not in self._workflow.sources:
            raise ConfigurationError(
                f"workflow {self.name} has no source {stream!r}; "
                + did_you_mean(stream, self._workflow.sources)
            )

    def _check_outside(self) -> None:
        t = current_transaction()
        if t is not None:
            raise TransactionStateError(
                f"a workflow runs top-level transactions of its own, which cannot be inside "
                f"{t.path}: call it outside of transactions"
            )


# -- ingestion of source batches, which are durable before any program runs on them ----------------


class Taking:
    """Ingestion of the source batches of one workflow, each in a separate transaction.

    Transactions that are due run first, and may raise `ProgramFailed`; a batch is taken when none
    is due, in any process. So a transaction that fails after that is about this batch, or about a
    later batch or call. Called by one thread at a time.
    """

    def __init__(self, commits: Commits, launcher: Launcher, running: WorkflowExecutor):
        self._commits = commits
        self._launcher = launcher
        self._running = running

    def take(self, stream: str, rows: list[Any]) -> str:
        """Take a batch of encoded rows; return its id."""
        taken: list[str] = []

        def record(state: WorkflowState, recorded: WorkflowChanges) -> None:
            taken[:] = [state.arrive(recorded, stream, rows).id]

        self._run(lambda t: record)
        return taken[0]

    def take_micro_batch(self, batch: AtomicBatch) -> str | None:
        """Take a micro-batch, unless it was taken before; see `BatchRun.apply`.

        Raises
        ------
        CheckpointMismatch
            If it does not continue the sequence taken from Spark before.
        """
        rows, bad = rows_of_micro_batch(batch)
        prefix = f"{batch.query_id}.{batch.batch_id}"
        letters = [
            asdict(Letter.of_event(batch.stream, f"{prefix}.{place}", payload, error))
            for place, payload, error in bad
        ]
        taken: list[str | None] = []

        def record(state: WorkflowState, recorded: WorkflowChanges) -> None:
            id = state.arrive(recorded, batch.stream, rows).id if rows else None
            state.origins[batch.stream] = [batch.query_id, batch.batch_id, id]
            taken[:] = [id]

        def work(t: TransactionNode) -> Record | None:
            last = self._commits.look(lambda state: state.origins.get(batch.stream))
            if last is not None and self._is_known(batch, last):
                taken[:] = [last[2] if last[1] == batch.batch_id else None]
                return None
            if letters:
                t.hierarchy.durable.append(
                    lambda connection: self._launcher.journal.write_letters(connection, letters)
                )
            return record

        self._run(work)
        return taken[0]

    def _run(self, work: Callable[[TransactionNode], Record | None]) -> None:
        """Run a transaction of the workflow at a moment when no other one is due."""
        is_due = True

        def alone(t: TransactionNode) -> Record | None:
            nonlocal is_due
            is_due = self._commits.look(lambda state: bool(state.due))
            record = None if is_due else work(t)
            return record and partial(self._record_alone, record)

        self._commits.keep_up()
        while is_due:
            self._running.run_due()
            self._commits.run(Run(), alone)

    def _record_alone(
        self, record: Record, state: WorkflowState, recorded: WorkflowChanges
    ) -> None:
        if state.due:
            raise SerializationConflict(
                f"a call in workflow {self._commits.name} came in between: the transactions that "
                "it has made due run first, and this is retried"
            )
        record(state, recorded)

    def _is_known(self, batch: AtomicBatch, last: list[Any]) -> bool:
        """Return whether a micro-batch was taken before, given the last one."""
        query_id, number, _ = last
        where = f"source {batch.stream} of workflow {self._commits.name}"
        if query_id != batch.query_id:
            raise CheckpointMismatch(
                f"{where} was fed by the query {query_id} up to its batch {number}, and "
                f"{batch.query_id} would start over: continue with that one's checkpoint, or feed "
                "a workflow of another name"
            )
        if batch.batch_id > number + 1:
            raise CheckpointMismatch(
                f"{where} has had batch {number} of query {query_id}, and now comes "
                f"{batch.batch_id}: those between are missing; use the checkpoint that belongs to "
                "this database"
            )
        return batch.batch_id <= int(number)
