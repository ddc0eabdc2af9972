"""TPGs run by simulated workers: one thread, any interleaving, chosen by a seed.

After every step all that must be true of a stateful TPG is looked at.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from activedb.scheduling import At, SharedState, STransaction
from activedb.scheduling._operations import Writes
from activedb.scheduling.tpg import Decision
from activedb.scheduling.tpg._execution import GraphExecution, OnMove
from activedb.scheduling.tpg._exploration import Take
from activedb.scheduling.tpg._groups import OperationGroup
from activedb.scheduling.tpg._parts import outcome_of, run_rest
from activedb.scheduling.tpg._planning import Planner, TaskGraph, refine
from activedb.scheduling.tpg._vertex import ABT, BLK, EXE, RDY, Vertex

EVERY_DECISION = [
    Decision(explore, unit, abort, speculative)
    for explore in ("non-structured", "breadth-first", "depth-first")
    for unit in ("operation", "group")
    for abort in ("eager", "lazy")
    for speculative in (False, True)
]


def named(decision: Decision) -> str:
    """Return a decision's name, for the names of tests."""
    speculative = "-speculative" if decision.speculative else ""
    return f"{decision.explore}-{decision.unit}-{decision.abort}{speculative}"


def planned(*transactions: STransaction) -> TaskGraph:
    planner = Planner()
    for transaction in transactions:
        planner.add(transaction)
    return refine(planner)


class Simulation:
    """Workers of an execution, each at a step of its own.

    Attributes
    ----------
    running : dict
        By worker the operation it runs, and what it has evaluated it to, if it has.
    """

    def __init__(self, execution: GraphExecution, workers: int):
        self.execution = execution
        self.running: dict[int, tuple[Vertex, tuple[Any, Any] | None]] = {}
        self.workers = workers
        self._waiting: set[int] = set()
        self._done: set[int] = set()

    def step(self, worker: int) -> Vertex | Take | None:
        """Take an operation, or evaluate the one that was taken, or finish it."""
        execution = self.execution
        found: Vertex | Take | None = None
        if worker not in self.running:
            found = execution.take(worker)
            if isinstance(found, Vertex):
                self.running[worker] = found, None
            elif found is Take.WAIT:
                self._waiting.add(worker)
            else:
                self._done.add(worker)
        else:
            vertex, evaluated = self.running[worker]
            if evaluated is None:
                self.running[worker] = vertex, execution.evaluate(vertex)
            else:
                del self.running[worker]
                execution.finish(worker, vertex, *evaluated)
        verify(execution)
        if execution.may_have_work:
            execution.may_have_work = False
            self._waiting.clear()
        return found

    def run(self, choose: Callable[[list[int]], int]) -> None:
        """Run until all workers know that all is done."""
        while len(self._done) < self.workers:
            able = [w for w in range(self.workers) if w not in self._waiting | self._done]
            assert able, "all workers wait for each other"
            self.step(choose(able))


class SimulatedTPG:
    """A scheduler whose workers are simulated.

    It gives up as `TPG` does, or never, or anywhere: by the seed, too.
    """

    name = "simulated tpg"

    def __init__(self, decision: Decision, workers: int, seed: int, on_move: OnMove | None = None):
        self.decision = decision
        self.workers = workers
        self.random = random.Random(seed)
        self.on_move = on_move
        self.planner = Planner()

    def add(self, transaction: STransaction) -> None:
        self.planner.add(transaction)

    def discard(self) -> None:
        self.planner = Planner()

    def run(self, state: SharedState) -> None:
        planner, self.planner = self.planner, Planner()
        before = {v.table.name: v.all() for v in state}
        graph = refine(planner)
        for vertex in graph.vertices:
            for child in vertex.children:
                assert child.number > vertex.number, "dependencies go from earlier to later"
        execution = GraphExecution(graph, state, self.decision, self.workers, self.on_move)
        anywhere = self.random.randrange(execution.runs_max + 1)
        execution.runs_max = self.random.choice([execution.runs_max, sys.maxsize, anywhere])
        Simulation(execution, self.workers).run(self.random.choice)
        assert execution.runs <= execution.runs_max
        written: list[tuple[At, Writes]] = []
        rest = run_rest(execution, written)
        for node in graph.nodes[: len(graph.nodes) - rest]:
            node.transaction.outcome = outcome_of(node, state)
        verify_versions(graph, written, state, before)


def verify(execution: GraphExecution) -> None:
    """Check what must hold between any two steps, unless the execution was given up."""
    if execution.gave_up:
        return
    graph = execution.graph
    waits = dict.fromkeys(graph.vertices, 0)
    blocked: Counter[OperationGroup] = Counter()
    for vertex in graph.vertices:
        if not vertex.settled:
            for child in vertex.children:
                waits[child] += 1
                if child.unit is not None and child.unit is not vertex.unit:
                    blocked[child.unit] += 1
    todo = 0
    for vertex in graph.vertices:
        assert vertex.waits == waits[vertex], f"{vertex} waits for {waits[vertex]}"
        node = vertex.node
        if vertex.operation is None:
            assert vertex.settled == (not vertex.waits), vertex
            continue
        todo += vertex.is_open
        assert (vertex.state == EXE) == (vertex.effect is not None), vertex
        if vertex.state == BLK:
            assert vertex.waits or vertex.running, f"{vertex} is not blocked"
        if vertex.state in (RDY, EXE):
            assert not vertex.waits, f"{vertex} waits"
        assert (vertex.state == ABT) == node.aborted, f"{vertex}: all or none are aborted"
        logged = vertex.failure is not None and execution.decision.abort == "lazy"
        resolved = vertex.state == EXE or logged or vertex.state == ABT
        assert vertex.settled == (resolved and not vertex.waits), vertex
    for node in graph.nodes:
        assert node.failures == sum(v.failure is not None for v in node.vertices)
        assert node.failures or not node.aborted
    assert execution.todo == todo
    assert execution.running == sum(vertex.running for vertex in graph.vertices)
    for unit in {vertex.unit for vertex in graph.vertices if vertex.unit is not None}:
        assert unit.open == sum(v.is_open for v in unit.vertices if v.operation is not None)
        assert unit.blocked == blocked[unit]


def verify_versions(
    graph: TaskGraph,
    written: list[tuple[At, Writes]],
    state: SharedState,
    before: dict[str, dict[Any, tuple[Any, ...]]],
) -> None:
    """The versions are those that were there, those of EXE operations, and those of the rest."""
    right = {
        name: {key: dict(found) for key, found in all_.items()} for name, all_ in before.items()
    }
    effects = [(v.node.transaction.at, v.effect) for v in graph.vertices]
    of_graph = [(at, effect.writes) for at, effect in effects if effect is not None]
    for at, writes in of_graph + written:
        for table, key, value in writes:
            assert at not in right[table.name].setdefault(key, {})
            right[table.name][key][at] = value
    for versions in state:
        found = {key: dict(found) for key, found in versions.all().items()}
        assert found == right[versions.table.name]
