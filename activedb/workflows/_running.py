"""Execution of due transactions, in order or in parallel, and handling of failures."""

from __future__ import annotations

from functools import partial

from activedb.batches import Due, Piece, Requirement
from activedb.errors import CompensationError, ProgramFailed
from activedb.firing import SYSTEMIC, storable
from activedb.spelling import listed
from activedb.store.journals import Recorded, WorkflowJournal
from activedb.transactions import Forest, Node, Run, Transaction
from activedb.workflows._commits import Commits, Record
from activedb.workflows._compensating import Compensating
from activedb.workflows._definition import WorkflowDefinition
from activedb.workflows._rows import Row, decoded, given_out, part_of
from activedb.workflows._state import WorkflowState, id_of, run_name

__all__ = ["Running"]


class Running:
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

        def work(t: Node) -> Record | None:
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

        pieces_of = self._commits.look(usable)
        rows = self._journal.rows({p.batch for pieces in pieces_of.values() for p in pieces})
        return [
            [r for piece in pieces_of[stream] for r in part_of(decoded(rows[piece.batch]), piece)]
            for stream in streams
        ]

    def _failed(self, due: Due, error: Exception) -> ProgramFailed | None:
        """Record a failure; None if its completion is optional, or it is no longer due.

        The returned failure has the original error as its cause.
        """
        reason, id = storable(f"{type(error).__name__}: {error}"), id_of(due)
        program = self._workflow.programs[due.program]
        is_optional = not program.requires(Requirement.COMPLETION)
        found: list[tuple[str, ...]] = []

        def record(state: WorkflowState, recorded: Recorded) -> None:
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
            failed.add_note("its batch was given up but for what others need: it is due for them")
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
