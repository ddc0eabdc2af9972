"""Atomic execution of compensation plans."""

from __future__ import annotations

from typing import Any

from activedb.batches import CompensationPlan, Mode, Piece, Step, is_begun, plan_compensation
from activedb.errors import (
    AlreadyCompensated,
    CompensationFailed,
    ConfigurationError,
    HistoryForgotten,
    Interferes,
    NotCompensable,
    PlanOutdated,
)
from activedb.events import decode_params
from activedb.firing import SYSTEMIC
from activedb.functions import checked_result
from activedb.spelling import listed
from activedb.store.journals import WorkflowJournal
from activedb.transactions import Node, Transaction
from activedb.workflows._commits import Commits, Record
from activedb.workflows._definition import Execution, WorkflowDefinition
from activedb.workflows._rows import Row, decoded, part_of
from activedb.workflows._state import WorkflowState, compensation_name

__all__ = ["Compensating"]


class Compensating:
    """Executor of compensations in one workflow.

    One top-level transaction runs the actions of all steps, in the plan's order, and writes their
    records. It makes the plan again in each try, so the actions fit the present state.
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

        def work(t: Node) -> Record | None:
            plan = self._plan(batches, mode, given)
            self._check_whole(plan)
            self._check(plan, batches, given, allow_interference=allow_interference)
            done[:] = [plan]
            if not plan.transactions and not plan.to_withdraw:
                return None
            executions = [self._execution(step) for step in plan.steps]  # while no lock is held
            for execution in executions:
                self._undo(t, execution)
            return lambda state, recorded: state.compensated(recorded, plan)

        place = self._commits.look(lambda state: state.place)
        self._commits.run(self._commits.redone(compensation_name(place)), work)
        return done[0]

    def _plan(
        self, batches: str | tuple[str, ...], mode: Mode | str, given: CompensationPlan | None
    ) -> CompensationPlan:
        cover = None if given is None else given.cover

        def make(state: WorkflowState) -> CompensationPlan:
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

        return self._commits.look(make)

    def _check(
        self,
        plan: CompensationPlan,
        batches: str | tuple[str, ...],
        given: CompensationPlan | None,
        *,
        allow_interference: bool,
    ) -> None:
        name, asked = self._definition.name, listed(plan.asked)
        if not plan.transactions and not plan.to_withdraw:
            if not plan.kept:
                raise AlreadyCompensated(
                    f"workflow {name}: {asked} is compensated already, or has triggered nothing: "
                    "there is nothing to do"
                )
            if self._commits.look(lambda state: is_begun(state.lineage, plan)):
                raise AlreadyCompensated(
                    f"workflow {name}: {asked} is compensated already as far as no other batch "
                    f"needs it; {listed(each.transaction for each in plan.kept)} stand, for others"
                )
        if given is not None and plan != given:
            raise PlanOutdated(
                f"workflow {name}: something has happened since the compensation of {asked} was "
                "planned; plan it again, and look whether it is still what you want",
                plan=plan,
            )
        if not plan.is_possible:
            raise NotCompensable(
                f"workflow {name}: there is no compensating action for "
                f"{listed(plan.not_compensable)}, which {asked} has triggered: define one with "
                "@program.compensation, or compensate a batch behind them",
                plan=plan,
            )
        if plan.is_interfering and not allow_interference:
            raise Interferes(
                f"workflow {name}: the {plan.mode} compensation of {asked} affects other batches: "
                f"{'; '.join(map(str, plan.interference))}. Say allow_interference=True, or choose "
                "the mode 'non-intrusive' or 'independent cover'",
                plan=plan,
            )

    def _check_whole(self, plan: CompensationPlan) -> None:
        about = {*plan.given_up, *plan.transactions}
        cut = self._commits.look(lambda state: state.lineage.descendants(about) & state.cut)
        if cut:
            raise HistoryForgotten(
                f"workflow {self._definition.name}: some of what {listed(plan.asked)} has "
                f"triggered, directly behind {listed(sorted(cut))}, stands and was forgotten: it "
                "is too late to compensate it",
                plan=plan,
            )

    def _undo(self, t: Node, execution: Execution) -> None:
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
                f"failed for {execution.transaction}: {type(error).__name__}: {error}. Everything "
                "is as it was before: fix the cause, and compensate again",
                workflow=execution.workflow,
                program=execution.program,
                transaction=execution.transaction,
            ) from error

    def _execution(self, step: Step) -> Execution:
        def described(state: WorkflowState) -> list[tuple[str, str, tuple[Piece, ...]]]:
            batches = [state.lineage.batch(id) for id in step.inputs]
            return [(b.stream, b.id, b.pieces or (Piece(b.id),)) for b in batches]

        inputs = self._commits.look(described)
        ids = {piece.batch for _, _, pieces in inputs for piece in pieces}
        rows = self._journal.rows(ids | ({step.output} if step.output else set()))
        arguments: Any = self._journal.arguments(step.transaction)
        reads = self._definition.composed().programs[step.program].reads
        of_inputs: dict[str, list[Row]] = {stream: [] for stream in reads}
        for stream, _, pieces in inputs:
            for piece in pieces:
                of_inputs[stream] += part_of(decoded(rows[piece.batch]), piece)
        return Execution(
            workflow=self._definition.name,
            program=step.program,
            transaction=step.transaction,
            number=step.number,
            inputs=of_inputs,
            input_ids={stream: id for stream, id, _ in inputs},
            output=decoded(rows[step.output]) if step.output else None,
            output_id=step.output,
            arguments={} if arguments is None else decode_params(arguments),
        )
