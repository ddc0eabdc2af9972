"""A dependency graph, and beside it what a naive judge needs, compared at every step."""

from __future__ import annotations

from dataclasses import dataclass, field

from coupling import (
    Answer,
    Consequences,
    DependencyCycle,
    DependencyGraph,
    DependencyKind,
    DependencyUsageError,
)
from tests.coupling.formulas import Edge, History, judge, line_of, violated

__all__ = ["World"]


@dataclass
class World:
    """Transactions are numbers. Whoever is let commit does so at the next ``commit``."""

    graph: DependencyGraph[int] = field(default_factory=DependencyGraph)
    history: History = field(default_factory=list)
    parents: dict[int, int | None] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    doomed: set[int] = field(default_factory=set)
    wants_to_begin: set[int] = field(default_factory=set)
    wants_to_commit: set[int] = field(default_factory=set)
    may_commit: set[int] = field(default_factory=set)
    refused: list[DependencyCycle] = field(default_factory=list)
    handed_over: int = 0

    # -- steps -----------------------------------------------------------------------------

    def add(self, name: int, parent: int | None = None) -> None:
        try:
            self.graph.add(name, parent=parent)
        except DependencyUsageError:
            assert self.is_live(name) or parent is not None
            assert self.is_live(name) or not self._may_have_children(parent)
            return
        assert parent is None or self._may_have_children(parent)
        self.parents[name] = parent
        if parent is not None:
            self.edges += [(name, "WD", parent), (parent, "CD", name)]
        self.check()

    def depend(self, name: int, kind: DependencyKind, on: int) -> None:
        before = self.graph.dependencies(), self.graph.waits()
        meaningless = (
            not (self.is_live(name) and self.is_live(on))
            or name == on
            or name in self.may_commit
            or (kind == "SQD" and ("begin", name) in self.history)
        )
        try:
            self.graph.depend(name, kind, on)
        except DependencyCycle as error:
            assert not meaningless
            self.refused.append(error)
            self._check_refusal(error, (name, str(kind), on))
            assert (self.graph.dependencies(), self.graph.waits()) == before
        except DependencyUsageError:
            assert meaningless
            assert (self.graph.dependencies(), self.graph.waits()) == before
        else:
            assert not meaningless
            self.edges.append((name, str(kind), on))
        self.check()

    def begin(self, name: int) -> None:
        if not self.is_live(name) or ("begin", name) in self.history:
            return
        if self._attempt("begin", name):
            self.history.append(("begin", name))
        else:
            self.wants_to_begin.add(name)
        self.check()

    def commit(self, name: int) -> None:
        if not self.is_live(name) or ("begin", name) not in self.history:
            return
        if name in self.may_commit and name not in self.doomed:
            self._end("commit", name, self.graph.committed(name))
        elif self._attempt("commit", name):
            self.may_commit.add(name)
        else:
            self.wants_to_commit.add(name)
        self.check()

    def abort(self, name: int) -> None:
        if self.is_live(name):
            self._end("abort", name, self.graph.aborted(name))
            self.check()

    def finish(self) -> None:
        """End all that is live, with no voluntary aborts: each round makes progress."""
        while live := [name for name in self.parents if self.is_live(name)]:
            before = len(self.history), len(self.may_commit)
            for name in live:
                if name in self.doomed:
                    self.abort(name)
                else:
                    self.begin(name)
                    self.commit(name)
            assert (len(self.history), len(self.may_commit)) != before, self.graph.waits()

    # -- checks ----------------------------------------------------------------------------

    def is_live(self, name: int) -> bool:
        return name in self.parents and not any(
            (end, name) in self.history for end in ("commit", "abort")
        )

    def check(self) -> None:
        live = [name for name in self.parents if self.is_live(name)]
        assert len(self.graph) == len(live)
        assert all(name in self.graph for name in live)
        must = {name for name in live if self._judge("commit", name) == "abort"}
        assert self.doomed == must
        waiting = self.graph.waits()
        assert waiting == tuple(edge for name in live for edge in self.graph.waits_of(name))
        begin, commit = self.wants_to_begin - must, self.wants_to_commit - must
        assert {edge.dependent for edge in waiting} == begin | commit
        assert all(self._judge("begin", name) == "wait" for name in begin)
        assert all(self._judge("commit", name) == "wait" for name in commit)

    def check_history(self) -> None:
        """The formulas hold in the complete history."""
        assert not [edge for edge in self.edges if violated(self.history, self.parents, edge)]

    def _judge(self, event: str, name: int) -> str:
        return judge(event, name, self.history, self.parents, self.edges)

    def _attempt(self, event: str, name: int) -> bool:
        attempt = self.graph.begin if event == "begin" else self.graph.commit
        verdict = attempt(name)
        assert verdict.answer == self._judge(event, name), verdict
        assert bool(verdict.reasons) is (verdict.answer is not Answer.GO)
        for edge in verdict.reasons:
            assert edge.dependent == name
            kin = [e for e in self.edges if e[:2] == (name, edge.kind)]
            assert any(edge.on in line_of(self.parents, e) for e in kin)
            assert self.is_live(edge.on) is (verdict.answer is Answer.WAIT)
        if verdict.answer is Answer.ABORT:
            assert name in self.doomed
        return verdict.answer is Answer.GO

    def _end(self, event: str, name: int, then: Consequences[int]) -> None:
        self.history.append((event, name))
        for group in (self.doomed, self.wants_to_begin, self.wants_to_commit, self.may_commit):
            group.discard(name)
        begin, commit = self.wants_to_begin - self.doomed, self.wants_to_commit - self.doomed
        aborting = [edge.dependent for edge in then.must_abort]
        assert len(set(aborting)) == len(aborting)
        assert not self.doomed & set(aborting)
        assert all(edge.on == name for edge in then.must_abort)
        self.doomed |= set(aborting)
        assert set(then.may_begin) <= begin
        assert set(then.may_commit) <= commit
        assert all(edge.on == self.parents[name] for edge in then.handed_over)
        assert event == "commit" or not then.handed_over
        self.handed_over += len(then.handed_over)
        self.history += [("begin", other) for other in then.may_begin]
        self.wants_to_begin -= set(then.may_begin)
        self.wants_to_commit -= set(then.may_commit)
        self.may_commit |= set(then.may_commit)

    def _may_have_children(self, parent: int | None) -> bool:
        return (
            parent is not None
            and self.is_live(parent)
            and ("begin", parent) in self.history
            and parent not in self.may_commit
        )

    def _check_refusal(self, error: DependencyCycle, new: Edge) -> None:
        """All of the cycle would wait, even if everybody else committed as soon as possible."""
        cycle = [(edge.dependent, str(edge.kind), edge.on) for edge in error.cycle]
        assert cycle[0] == new
        standing = self.graph.dependencies()
        assert all(edge in standing for edge in error.cycle[1:])
        members = {edge[0] for edge in cycle}
        assert not members & self.doomed
        for edge, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            line = line_of(self.parents, edge)
            assert not self.doomed & set(line[: line.index(following[0])])
        others = [n for n in self.parents if self.is_live(n) and n not in members]
        later = self.history + [("commit", name) for name in reversed(others)]
        for name in members:
            verdicts = {judge("commit", name, later, self.parents, cycle)}
            if ("begin", name) not in self.history:
                verdicts.add(judge("begin", name, later, self.parents, cycle))
            assert "wait" in verdicts, (name, cycle)
