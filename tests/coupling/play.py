"""Play of a triggered rule by its plan, on a dependency graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from coupling import Answer, Consequences, DependencyGraph, Plan, Planned, Role, Start

__all__ = ["Play"]

TOP = "top"


@dataclass
class Play:
    """One rule, triggered once by a subtransaction of `TOP`.

    Its condition is true or not. If it is exclusive it starts at the event, or at the abort.
    """

    plan: Plan
    is_true: bool
    waits_for_abort: bool = False
    graph: DependencyGraph[str] = field(default_factory=DependencyGraph)
    committed: set[str] = field(default_factory=set)
    action_ran: bool = False

    def __post_init__(self) -> None:
        self.planned = {planned.role: planned for planned in self.plan.transactions}
        self.rule = self.planned[Role.RULE]
        self.action = self.planned.get(Role.ACTION)

    def outcome(self, ending: str) -> str:
        """Tell what became of the action: "never" ran, was "undone" or "kept"."""
        for name, parent in ((TOP, None), (Role.TRIGGERING, TOP)):
            self.graph.add(name, parent=parent)
            assert self._begins(name)
        for planned in self.plan.transactions:
            if planned.parent is not Role.RULE and planned.starts is not Start.WHEN_TRUE:
                self._add(planned)
        if self.rule.starts is not Start.AT_COMMIT_POINT and not self._is_for_an_abort():
            self._run_rule()  # at the event; a sequential one has to wait
        if ending == "aborts":
            self._abort_triggering(Role.TRIGGERING)
            self._commit(TOP)
        else:
            self._commit_point_of_triggering()
            if ending == "commits":
                self._commit(TOP)
            else:
                self._abort_triggering(TOP)
        assert len(self.graph) == 0, self.graph.dependencies()
        if not self.action_ran:
            return "never"
        return "kept" if self._is_kept(self.plan.action_in) else "undone"

    # -- the triggering side ---------------------------------------------------------------

    def _commit_point_of_triggering(self) -> None:
        if self.rule.starts is Start.AT_COMMIT_POINT:
            self._run_rule()
        if self.action is not None and self.action.parent is Role.TRIGGERING:
            self._run_action_if_true()
        self._commit(Role.TRIGGERING)

    def _abort_triggering(self, name: str) -> None:
        self._abort(name)
        if self._is_for_an_abort():
            self._run_rule()

    def _is_for_an_abort(self) -> bool:
        return self.waits_for_abort and self.rule.starts is Start.AT_EVENT_OR_ABORT

    # -- the rule --------------------------------------------------------------------------

    def _run_rule(self) -> None:
        if self._begins(Role.RULE):
            self._body()

    def _body(self) -> None:
        if Role.CONDITION in self.planned:
            self._condition_beside_action()
        elif self.action is None:
            self.action_ran = self.is_true
        elif self.action.parent is not Role.TRIGGERING:
            if self.is_true or self.action.parent is Role.RULE:
                self._add(self.action)
            self._run_action_if_true()
        self._try_to_commit(Role.RULE)

    def _condition_beside_action(self) -> None:
        for role in (Role.CONDITION, Role.ACTION):
            self._add(self.planned[role])
        assert self._begins(Role.ACTION)
        self.action_ran = True
        assert self._begins(Role.CONDITION)
        self._try_to_commit(Role.ACTION)
        assert Role.ACTION not in self.committed
        if self.is_true:
            self._commit(Role.CONDITION)
            assert Role.ACTION in self.committed
        else:
            self._abort(Role.CONDITION)
            assert Role.ACTION not in self.graph

    def _run_action_if_true(self) -> None:
        if self.is_true:
            assert self._begins(Role.ACTION)
            self.action_ran = True
            self._try_to_commit(Role.ACTION)
        elif Role.ACTION in self.graph:
            self._abort(Role.ACTION)

    # -- the graph -------------------------------------------------------------------------

    def _add(self, planned: Planned) -> None:
        self.graph.add(planned.role, parent=planned.parent)
        for edge in self.plan.dependencies:
            if edge.dependent in self.graph and edge.on in self.graph:
                self.graph.depend(edge.dependent, edge.kind, edge.on)

    def _begins(self, name: str) -> bool:
        return self.graph.begin(name).answer is Answer.GO

    def _commit(self, name: str) -> None:
        verdict = self.graph.commit(name)
        assert verdict.answer is Answer.GO, verdict
        self.committed.add(name)
        self._follow(self.graph.committed(name))

    def _try_to_commit(self, name: str) -> None:
        if self.graph.commit(name).answer is Answer.GO:
            self._commit(name)

    def _abort(self, name: str) -> None:
        self._follow(self.graph.aborted(name))

    def _follow(self, consequences: Consequences[str]) -> None:
        for edge in consequences.must_abort:
            self._abort(edge.dependent)
        for name in consequences.may_commit:
            self._commit(name)
        for name in consequences.may_begin:
            assert name == Role.RULE
            self._body()

    def _is_kept(self, name: str) -> bool:
        line: str | None = name
        while line is not None:
            if line not in self.committed:
                return False
            if line == Role.TRIGGERING:
                line = TOP
            else:
                line = None if line == TOP else self.planned[Role(line)].parent
        return True
