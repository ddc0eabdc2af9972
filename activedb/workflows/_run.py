"""Atomic batches of a workflow, run and compensated, from where the database says it stopped."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from activedb.batches import (
    BatchLineage,
    CompensationPlan,
    Cover,
    Lineage,
    Mode,
    Piece,
    draw_svg,
    independent_scover,
    lineage_of,
    plan_compensation,
)
from activedb.errors import ConfigurationError, TransactionStateError
from activedb.events import decode_params, encode_params
from activedb.firing import Launcher
from activedb.spelling import did_you_mean
from activedb.store.journals import Recorded, WorkflowJournal
from activedb.streams import AtomicBatch
from activedb.transactions import Forest, Run, Transaction, current_transaction
from activedb.workflows._commits import Commits, Record
from activedb.workflows._compensating import Compensating
from activedb.workflows._definition import WorkflowDefinition
from activedb.workflows._rows import Row, decoded, encoded, given_out, part_of
from activedb.workflows._running import Running
from activedb.workflows._state import WorkflowState
from activedb.workflows._taking import Taking

__all__ = ["BatchRun"]


class BatchRun:
    """Runs the programs of one workflow; `Database.batches` makes one.

    Each execution of a program is a top-level transaction: what the function writes, the
    transaction's record, its input batches, what it gives out and the lineage commit together.
    What is due is recorded, too, so whoever opens the workflow next goes on from there.

    Safe to use from many threads. Batches are taken one after another; `call` runs beside them.

    Attributes
    ----------
    name : str
        The workflow's.
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
        self._taking = Taking(self._commits, launcher)
        self._compensating = Compensating(definition, self._commits, journal)
        self._running = Running(
            definition,
            commits=self._commits,
            journal=journal,
            compensating=self._compensating,
            forest=forest,
        )
        self._busy = threading.RLock()  # one batch after another; taken before all else

    # -- running -----------------------------------------------------------------------------

    def feed(self, stream: str, rows: Iterable[Mapping[str, Any]]) -> str:
        """Take one batch of a source stream, and run all that it triggers.

        The batch is durable before the first program runs. What is due from before is run first.

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
            If a row is none; nothing was taken.
        ProgramFailed
            If a program raised. If that is about an earlier batch, this one was not taken.
        ConfigurationError
            If there is no such source stream.
        """
        self._check_source(stream)
        taken = encoded(rows, f"a batch of {stream}")
        self._check_outside()
        with self._busy:
            self._running.run_due()
            batch = self._taking.take(stream, taken)
            self._running.run_due()
        return batch

    def apply(self, batch: AtomicBatch) -> str | None:
        """Take a micro-batch from Spark, of the source of its name, and run all that it triggers.

        One that was taken before changes nothing, save that what is due is run. A row has the
        parameters by name, and ``event_type``, ``event_time_us``, ``event_id``; what is no event
        becomes a dead letter. Punctuation and lateness mean nothing here: batches are taken as
        they come.

        Returns
        -------
        str or None
            The batch's id. None if it has no rows, which makes no batch, or was taken before the
            last one.

        Raises
        ------
        CheckpointMismatch
            If it does not continue what was taken from Spark before.
        ProgramFailed, ConfigurationError
            As `feed`.
        """
        self._check_source(batch.stream)
        self._check_outside()
        with self._busy:
            self._running.run_due()
            id = self._taking.take_micro_batch(batch)
            self._running.run_due()
        return id

    def resume(self) -> tuple[str, ...]:
        """Run what is due: what a crash has left, and what had failed.

        Returns
        -------
        tuple of str
            The transactions that were due before.

        Raises
        ------
        ProgramFailed
            As `feed`.
        """
        self._check_outside()
        with self._busy:
            due = self.due()
            self._running.run_due()
        return due

    def call(self, program: str, /, *, triggered_by: Iterable[str] = (), **arguments: Any) -> str:
        """Execute an OLTP program in a transaction of its own, and run what its output triggers.

        Parameters
        ----------
        program : str
            One that reads no stream.
        triggered_by : iterable of str
            Transactions of programs that come before it, which it belongs to.
        **arguments
            What it is called with; kept for its compensating action.

        Returns
        -------
        str
            The transaction's id.

        Raises
        ------
        ConfigurationError
            If there is no such OLTP program.
        Exception
            What the program raised; nothing is recorded then.
        """
        chosen = self._definition.programs.get(program)
        if chosen is None or self._workflow.programs[program].reads:
            callable_ = [p.name for p in self._workflow.programs.values() if not p.reads]
            raise ConfigurationError(
                f"workflow {self.name} has no program {program!r} that can be called: those that "
                f"read no stream can; {did_you_mean(program, callable_)}"
            )
        causes, kept = tuple(triggered_by), encode_params(arguments)
        self._check_outside()
        executed: list[str] = []

        def work(t: Transaction) -> Record:
            rows = given_out(program, chosen.function(t, **decode_params(kept)))  # each try its own
            executed.clear()

            def record(state: WorkflowState, recorded: Recorded) -> None:
                executed.append(state.called(recorded, program, causes, kept, rows).id)

            return record

        self._commits.run(Run(of_application=True), work)
        if self._workflow.readers(program):
            with self._busy:
                self._running.run_due()
        return executed[0]

    # -- looking -----------------------------------------------------------------------------

    def due(self) -> tuple[str, ...]:
        """The transactions that are due and not executed."""
        return self._commits.look(lambda state: tuple(state.due))

    def waiting(self) -> dict[str, tuple[str, ...]]:
        """The batches that wait to be formed to an input batch, by program."""
        return self._commits.look(lambda state: state.forming.waiting())

    def rows(self, batch: str) -> list[Row]:
        """The rows of a batch; of an input batch, those of its pieces.

        Raises
        ------
        NotRecorded
            If there is no such batch.
        """
        found = self._commits.look(lambda state: state.lineage.batch(batch))
        pieces = found.pieces or (Piece(batch),)
        rows = self._journal.rows({piece.batch for piece in pieces})
        return [r for piece in pieces for r in part_of(decoded(rows[piece.batch]), piece)]

    def lineage(self, batch: str) -> BatchLineage:
        """Where a batch comes from and goes to, and what became of it.

        Raises
        ------
        NotRecorded
            If there is no such batch.
        """
        return self._commits.look(lambda state: lineage_of(state.lineage, batch))

    def whole_lineage(self) -> Lineage:
        """A copy of all that is recorded, for the functions of `activedb.batches`. O(rows)."""
        records = self._commits.look(lambda state: state.lineage.records())
        return Lineage.of(self._workflow, records)

    def cover(self, batch: str, *, consecutive: bool = False, rounds: int | None = None) -> Cover:
        """The least independent cover of a batch; see `activedb.batches.independent_scover`."""
        return self._commits.look(
            lambda state: independent_scover(
                state.lineage, batch, consecutive=consecutive, rounds=rounds
            )
        )

    def draw_svg(self, batch: str | None = None, *, plan: CompensationPlan | None = None) -> str:
        """A drawing, of all or of what hangs together with a batch; see `activedb.batches`."""
        return self._commits.look(lambda state: draw_svg(state.lineage, batch, plan=plan))

    # -- compensation ------------------------------------------------------------------------

    def plan(
        self,
        batch: str | Iterable[str],
        mode: Mode | str = Mode.FULL,
        *,
        consecutive: bool = False,
        rounds: int | None = None,
    ) -> CompensationPlan:
        """What the compensation of batches would be; nothing is done.

        Raises
        ------
        NotRecorded, LineageError
            As `activedb.batches.plan_compensation`.
        """
        ids = batch if isinstance(batch, str) else tuple(batch)
        return self._commits.look(
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
        """Compensate batches: all actions and what is recorded of it, in one transaction.

        Then what is due is run, as with `resume`.

        Parameters
        ----------
        batch : str or iterable of str, optional
            Left out: those that `plan` is about.
        mode : Mode or str
        plan : CompensationPlan, optional
            What `plan` returned, to do this and nothing else.
        allow_interference : bool
            Whether the completion of other batches may be affected.

        Returns
        -------
        CompensationPlan
            What was done.

        Raises
        ------
        AlreadyCompensated, Interferes, NotCompensable, PlanOutdated, CompensationFailed
            As they say; everything is as it was.
        NotRecorded
            If there is no such batch.
        """
        self._check_outside()
        if batch is not None and not isinstance(batch, str):
            batch = tuple(batch)
        with self._busy:
            done = self._compensating.compensate(
                batch, mode, plan, allow_interference=allow_interference
            )
            if not self._running.waits_for_resume():
                self._running.run_due()
        return done

    # -- old history -------------------------------------------------------------------------

    def forget(self, before: datetime) -> int:
        """Forget batches and transactions that nobody needs any more, so that tables stay small.

        Those that were recorded before a moment, are complete, and from which nothing that is kept
        comes; nor the last of a stream or program. What they have written stays. A batch of which
        a part stands and is forgotten cannot be compensated any more.

        Parameters
        ----------
        before : datetime
            With a time zone; by the clock of the database.

        Returns
        -------
        int
            How many were forgotten.

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

        def work(t: Transaction) -> Record:
            kept = self._journal.load()
            rows = [] if kept is None else kept.nodes
            old = {row["id"] for row in rows if row["recorded_at"] < before}

            def record(state: WorkflowState, recorded: Recorded) -> None:
                state.forget(recorded, old)
                forgotten[:] = recorded.forgotten

            return record

        with self._busy:
            self._commits.run(Run(), work)
        return len(forgotten)

    # -- inside ----------------------------------------------------------------------------

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
