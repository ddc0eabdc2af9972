"""Commits of a workflow's transactions and compensations, with records and state kept in step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from activedb.batches import (
    Batch,
    CompensationPlan,
    Forming,
    Mode,
    Piece,
    Step,
    Workflow,
    is_begun,
    plan_compensation,
)
from activedb.errors import (
    AlreadyCompensated,
    CompensationFailed,
    ConfigurationError,
    HistoryForgotten,
    Interferes,
    NotCompensable,
    NotRecorded,
    PlanOutdated,
    SerializationConflict,
)
from activedb.events import decode_params
from activedb.firing import SYSTEMIC, Launcher
from activedb.functions import checked_result, typed_text
from activedb.spelling import listed
from activedb.store.journals import Repeated, WorkflowChanges, WorkflowJournal
from activedb.transactions import Forest, Run, Transaction, TransactionNode
from activedb.workflows._definition import (
    Execution,
    Row,
    WorkflowDefinition,
    check_unchanged,
    decoded,
    described,
    part_of,
)
from activedb.workflows._state import WorkflowState, run_name

__all__ = ["Commits", "Compensating", "Record", "pieces_of"]


T = TypeVar("T")

_DETACHED_MAX = 10_000
_PREFIX = Repeated.WORKFLOW.prefix

Record = Callable[[WorkflowState, WorkflowChanges], object]
"""Effect of a transaction on the state of its workflow, applied within its commit."""


class Commits:
    """State of one workflow in memory, updated by the commits of its transactions.

    ```
      body of the transaction, beside others ──► Record, or None
      commit: flush ──► the workflow's row is locked ──► latch ──► Record changes the state
                    ──► its rows are written ──► durable ──► latch is released
                                                        └── failed: the state is read again
    ```

    Commits of one workflow are serialised, in the order of ``place``, so batches are formed in the
    order in which they are recorded, even if programs run in parallel.

    Between its commits, a process does not notice those of others. What is recorded is right all
    the same, as a commit checks ``place``; what is answered or refused without a commit is right
    after `keep_up`.

    Latch: ``_latch``, taken by the committing thread, after the workflow's row is locked and after
    all other latches, until the commit has ended or failed; no thread reads from the database under
    it.
    """

    def __init__(
        self,
        name: str,
        workflow: Workflow,
        *,
        forest: Forest,
        launcher: Launcher,
        journal: WorkflowJournal,
    ):
        self.name = name
        self._workflow = workflow
        self._forest = forest
        self._launcher = launcher
        self._journal = journal
        self._latch = threading.RLock()
        self._is_stale = True
        self._doubts = 0  # how often it became so
        self._state: WorkflowState
        self._begin()

    def _begin(self) -> None:
        definition = described(self._workflow)
        self._journal.begin(definition, Forming(self._workflow).state())
        kept = self._journal.load()
        assert kept is not None
        check_unchanged(self.name, kept.definition, definition)
        if kept.definition != definition:
            self._journal.redefine(definition)
        self._launcher.batch_firings.remember_done(f"{_PREFIX}{self.name}/", self._redoable)
        self.refresh()

    def _redoable(self) -> set[str]:
        """Return the names of the runs that may be repeated after a crash."""
        due = self.look(lambda state: list(state.due))
        return {self.redone(run_name(id)).name for id in due}

    def keep_up(self) -> None:
        """Mark the state as stale if another process has committed since it was read; one row."""
        if not self._journal.is_shared:
            return
        place = self._journal.place()
        with self._latch:
            if self._is_stale or self._state.place < place:
                self._doubt()

    def _doubt(self) -> None:
        """Mark the state as stale, and what is being read as too old. REQUIRES: the latch."""
        self._is_stale = True
        self._doubts += 1

    def refresh(self) -> None:
        """Read the state again, if it may differ from the records; O(rows) then."""
        while self._is_stale:
            doubts = self._doubts
            kept = self._journal.load()
            assert kept is not None
            with self._latch:
                if self._is_stale and self._doubts == doubts:
                    self._state = WorkflowState.of(self._workflow, kept)
                    self._is_stale = False

    def look(self, question: Callable[[WorkflowState], T]) -> T:
        """Return the answer of a function of the state, while no commit changes it."""
        while True:
            self.refresh()
            with self._latch:
                if not self._is_stale:
                    return question(self._state)

    def rows(self, ids: set[str]) -> dict[str, list[Any]]:
        """Return the encoded rows of batches, by id.

        Raises
        ------
        NotRecorded
            If one was forgotten since the state was read.
        """
        found = self._journal.rows(ids)
        gone = sorted(ids - found.keys())
        if gone:
            raise NotRecorded(
                f"workflow {self.name}: {listed(gone)} was forgotten while it was being read: its "
                "rows are no longer recorded"
            )
        return found

    def redone(self, name: str) -> Run:
        """Return a run that is repeated after a crash, under the same name."""
        return Run(name=f"{_PREFIX}{self.name}/{name}", batch=Repeated.WORKFLOW)

    def run(self, run: Run, work: Callable[[TransactionNode], Record | None]) -> None:
        """Run a transaction of the workflow, with the usual retries.

        Parameters
        ----------
        run : Run
        work : callable ``(t)``
            Returns the record to write with its commit; None if nothing was done.
        """
        self._launcher.join_running(running_max=_DETACHED_MAX)
        commit = _TransactionCommit(self, run)
        try:
            self._forest.run(lambda t: commit.body(t, work), run, on_failed=commit.failed)
            commit.ended()
        finally:
            commit.failed()
        batch_firings = self._launcher.batch_firings
        if run.is_batch:
            batch_firings.committed(run)
        for given_up in commit.given_up:
            batch_firings.committed(given_up)
            batch_firings.forget_done(given_up.name)
            self._launcher.triggering.run_ends.failed(given_up.name)


class _TransactionCommit:
    """Commit in progress of one transaction, across all its tries. Used by one thread.

    Attributes
    ----------
    given_up : list of Run
        Runs of transactions that are no longer due and were not executed. The independent firings
        that they have triggered are recorded, as for a commit; so are their exclusive rules.
    """

    def __init__(self, commits: Commits, run: Run):
        self.given_up: list[Run] = []
        self._commits = commits
        self._run = run
        self._has_latch = False
        self._was_late = False

    def body(self, t: TransactionNode, work: Callable[[TransactionNode], Record | None]) -> None:
        commits = self._commits
        self.given_up = []  # by an earlier try
        if self._was_late:  # so that it cannot be late again
            Transaction(t).get(commits._journal.table, commits.name, for_update=True)
        commits.refresh()
        record = work(t)
        if record is not None:
            t.hierarchy.durable.append(lambda connection: self._write(connection, record))

    def _write(self, connection: Any, record: Record) -> None:
        commits = self._commits
        assert not self._has_latch
        place = commits._journal.lock(connection)
        commits._latch.acquire()
        self._has_latch = True
        if commits._is_stale or commits._state.place != place:
            self._was_late = True
            raise SerializationConflict(
                f"another transaction of workflow {commits.name} came in between: the record "
                "is read again, and this is retried"
            )
        state, recorded = commits._state, WorkflowChanges()
        due = list(state.due)
        record(state, recorded)
        if state.place == place:
            state.place += 1  # no new rows, but a change
        commits._journal.write(
            connection,
            state.place,
            recorded,
            forming=state.forming.state(),
            due=state.due_record(),
            origins=state.origins,
        )
        batch_firings = commits._launcher.batch_firings
        over = (commits.redone(run_name(id)).name for id in due if id not in state.due)
        self.given_up = [batch_firings.left_by(name) for name in over if name != self._run.name]
        if self._run.is_batch:
            batch_firings.settle(connection, self._run)
        for run in self.given_up:
            batch_firings.settle(connection, run)
            commits._launcher.triggering.run_ends.giving_up(connection, run.name)

    def failed(self) -> None:
        """Mark the state as stale and release the latch, if the try that has failed holds it."""
        if self._has_latch:
            self._commits._doubt()
            self.ended()

    def ended(self) -> None:
        """Release the latch."""
        if self._has_latch:
            self._has_latch = False
            self._commits._latch.release()


# -- atomic execution of compensation plans --------------------------------------------------------


class Compensating:
    """Executor of compensations in one workflow.

    One top-level transaction runs the actions of all steps, in the plan's order, and writes their
    records. It makes the plan again in each try, and at its commit, so the actions fit the present
    state. It is not repeated after a crash, so its run has a name of its own: what one compensation
    has triggered is never taken for what another one triggers.
    """

    def __init__(self, definition: WorkflowDefinition, commits: Commits, journal: WorkflowJournal):
        self._definition = definition
        self._commits = commits
        self._journal = journal

    def compensate(
        self,
        batches: str | tuple[str, ...] | None,
        mode: Mode | str,
        given: CompensationPlan | None,
        *,
        allow_interference: bool,
    ) -> CompensationPlan:
        """Compensate batches, or carry out a plan; see `BatchRun.compensate`."""
        if batches is None:
            if given is None:
                raise ConfigurationError("say which batch is to be compensated, or give a plan")
            batches = given.asked
        if given is not None:
            mode = given.mode
        done: list[CompensationPlan] = []

        def planned(state: WorkflowState) -> CompensationPlan:
            plan = self._plan(state, batches, mode, given)
            self._check_whole(state, plan)
            self._check(state, plan, given, allow_interference=allow_interference)
            return plan

        def work(t: TransactionNode) -> Record:
            plan, executions = self._prepared(planned)  # while no lock is held
            done[:] = [plan]
            for execution in executions:
                self._undo(t, execution)

            def record(state: WorkflowState, recorded: WorkflowChanges) -> None:
                if planned(state) != plan:
                    raise SerializationConflict(
                        f"something that belongs to the compensation of {listed(plan.asked)} in "
                        f"workflow {self._definition.name} came in between: it is planned again, "
                        "and this is retried"
                    )
                state.compensated(recorded, plan)

            return record

        self._commits.run(Run(), work)
        return done[0]

    def _prepared(
        self, planned: Callable[[WorkflowState], CompensationPlan]
    ) -> tuple[CompensationPlan, list[Execution]]:
        """Return the plan, and the arguments of its actions.

        The plan is made again after the arguments were read, as another process may have forgotten
        some of them meanwhile.
        """
        while True:
            plan, inputs = self._commits.look(lambda state: _with_inputs(state, planned(state)))
            ids = {piece.batch for batches in inputs for b in batches for piece in pieces_of(b)}
            rows = self._journal.rows(ids | {step.output for step in plan.steps if step.output})
            arguments = [self._journal.arguments(id) for id in plan.order]
            self._commits.keep_up()
            if self._commits.look(planned) == plan:
                break
        return plan, [
            self._execution(*each, rows) for each in zip(plan.steps, inputs, arguments, strict=True)
        ]

    def _plan(
        self,
        state: WorkflowState,
        batches: str | tuple[str, ...],
        mode: Mode | str,
        given: CompensationPlan | None,
    ) -> CompensationPlan:
        cover = None if given is None else given.cover
        plain = plan_compensation(state.lineage, batches, mode)
        if cover is None or plain == given:
            return plain
        # The given plan may be based on a cover with other options.
        for consecutive, rounds in ((True, None), (False, len(cover.rounds))):
            other = plan_compensation(
                state.lineage, batches, mode, consecutive=consecutive, rounds=rounds
            )
            if other == given:
                return other
        return plain

    def _check(
        self,
        state: WorkflowState,
        plan: CompensationPlan,
        given: CompensationPlan | None,
        *,
        allow_interference: bool,
    ) -> None:
        name, asked = self._definition.name, listed(plan.asked)
        if plan.is_empty:
            if not plan.kept:
                raise AlreadyCompensated(
                    f"workflow {name}: {asked} is compensated already, or has triggered nothing: "
                    "there is nothing to do"
                )
            if is_begun(state.lineage, plan):
                raise AlreadyCompensated(
                    f"workflow {name}: {asked} is compensated already as far as no other batch "
                    f"needs it; {listed(each.transaction for each in plan.kept)} stand, for others"
                )
        if given is not None and plan != given:
            raise PlanOutdated(
                f"workflow {name}: something has happened since the compensation of {asked} was "
                "planned; plan it again, and check that the new plan is still right",
                plan=plan,
            )
        if not plan.is_possible:
            raise NotCompensable(
                f"workflow {name}: there is no compensating action for "
                f"{listed(plan.not_compensable)}, which {asked} has triggered: define one with "
                "@program.compensation, or compensate a batch after them",
                plan=plan,
            )
        if plan.is_empty:
            why = "; ".join(
                f"{each.transaction} is needed by {listed(each.because_of)}"
                for each in plan.kept
                if each.because_of
            )
            raise Interferes(
                f"workflow {name}: the {plan.mode} compensation of {asked} would do nothing: {why}"
                ". Choose the mode 'independent cover', or 'full' with allow_interference=True",
                plan=plan,
            )
        if plan.is_interfering and not allow_interference:
            raise Interferes(
                f"workflow {name}: the {plan.mode} compensation of {asked} affects other batches: "
                f"{'; '.join(map(str, plan.interference))}. Say allow_interference=True, or choose "
                "the mode 'non-intrusive' or 'independent cover'",
                plan=plan,
            )

    def _check_whole(self, state: WorkflowState, plan: CompensationPlan) -> None:
        about = {*plan.given_up, *plan.transactions}
        cut = state.lineage.descendants(about) & state.cut
        if cut:
            raise HistoryForgotten(
                f"workflow {self._definition.name}: some of what {listed(plan.asked)} has "
                f"triggered, directly behind {listed(sorted(cut))}, stands and was forgotten: it "
                "is too late to compensate it",
                plan=plan,
            )

    def _undo(self, t: TransactionNode, execution: Execution) -> None:
        action = self._definition.programs[execution.program].action
        assert action is not None, "a plan that is possible has actions"
        try:
            checked_result(
                action(Transaction(t), execution), f"the compensating action of {execution.program}"
            )
        except SYSTEMIC:
            raise
        except Exception as error:
            raise CompensationFailed(
                f"workflow {execution.workflow}: the compensating action of {execution.program} "
                f"failed for {execution.transaction}: {typed_text(error)}. Everything "
                "is as it was before: fix the cause, and compensate again",
                workflow=execution.workflow,
                program=execution.program,
                transaction=execution.transaction,
            ) from error

    def _execution(
        self, step: Step, inputs: list[Batch], arguments: Any, rows: dict[str, list[Any]]
    ) -> Execution:
        reads = self._definition.composed().programs[step.program].reads
        of_inputs: dict[str, list[Row]] = {stream: [] for stream in reads}
        for batch in inputs:
            for piece in pieces_of(batch):
                of_inputs[batch.stream] += part_of(decoded(rows[piece.batch]), piece)
        return Execution(
            workflow=self._definition.name,
            program=step.program,
            transaction=step.transaction,
            number=step.number,
            inputs=of_inputs,
            input_ids={batch.stream: batch.id for batch in inputs},
            output=decoded(rows[step.output]) if step.output else None,
            output_id=step.output,
            arguments={} if arguments is None else decode_params(arguments),
        )


def pieces_of(batch: Batch) -> tuple[Piece, ...]:
    """Return the pieces of an input batch; of another batch, the whole of it."""
    return batch.pieces or (Piece(batch.id),)


def _with_inputs(
    state: WorkflowState, plan: CompensationPlan
) -> tuple[CompensationPlan, list[list[Batch]]]:
    return plan, [[state.lineage.batch(id) for id in step.inputs] for step in plan.steps]
