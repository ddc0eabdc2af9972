"""The stateful TPG: what the run, the failure and the abort of an operation does to the others."""

from __future__ import annotations

from collections.abc import Callable

from activedb.errors import AccessError
from activedb.scheduling._operations import Effect
from activedb.scheduling._state import State
from activedb.scheduling.tpg._aborts import Aborts
from activedb.scheduling.tpg._decision import Decision
from activedb.scheduling.tpg._exploration import Exploration, Take, exploration_of
from activedb.scheduling.tpg._groups import Group, group, rank_operations
from activedb.scheduling.tpg._refinement import TaskGraph
from activedb.scheduling.tpg._speculation import Speculation
from activedb.scheduling.tpg._vertex import (
    ABT,
    BLK,
    EXE,
    RDY,
    Node,
    OperationState,
    Vertex,
    move_name,
)

__all__ = ["RUNS_MAX", "Execution", "OnMove"]

RUNS_MAX = 5
"""So often are operations run at most, in the mean of a TPG: once, and redone four times.

Beyond that not even five threads that never wait would be faster than one in the serial order.
"""

OnMove = Callable[[Vertex, OperationState, OperationState, str], None]


class Execution:
    """Runs one TPG: a pure core, which says what to run next, and that there is nothing now.

    Workers `take` operations, `evaluate` them, and tell what came of it with `finish`. Nothing here
    waits. All methods REQUIRE that one thread at a time is in them; evaluating is done outside.

    Parameters
    ----------
    graph : TaskGraph
    state : State
    decision : Decision
    workers : int
        How many workers there are; they are called by their numbers from 0.
    on_move : callable, optional
        ``on_move(vertex, old, new, name)`` is called on every move of an operation.
    groups : list of Group, optional
        What `group` has made of the graph, if that was done already.

    Attributes
    ----------
    todo : int
        How many operations have still to be run.
    running : int
        How many are being run.
    runs, runs_max : int
        How many runs were begun, speculative ones among them; how many may be.
    gave_up : bool
        Whether there would have been more: what is not settled is left to `run_rest`.
    stirred : bool
        Whether there may be something to take for workers that were told to wait; whoever tells
        them sets it to False.
    failed : list of Node
        s-transactions with failures that were logged.
    aborts : Aborts
    """

    def __init__(
        self,
        graph: TaskGraph,
        state: State,
        decision: Decision,
        workers: int,
        on_move: OnMove | None = None,
        groups: list[Group] | None = None,
    ):
        self.graph = graph
        self.state = state
        self.decision = decision
        self.todo = graph.operations
        self.running = 0
        self.runs = 0
        self.runs_max = RUNS_MAX * graph.operations
        self.gave_up = False
        self.stirred = False
        self.failed: list[Node] = []
        self.aborts = Aborts(self)
        self._on_move = on_move
        self._lazy = decision.abort == "lazy"
        if decision.unit == "group" and groups is None:
            groups, _ = group(graph)
        elif decision.unit == "operation" and decision.explore != "non-structured":
            rank_operations(graph)
        self._exploration: Exploration = exploration_of(self, groups or [], workers)
        self._speculation = Speculation(graph.vertices, state) if decision.speculative else None
        free: list[Vertex] = []
        for vertex in [vertex for vertex in graph.vertices if not vertex.waits]:
            self._resolve(vertex, free)
        self.settle(free)

    # -- what workers do -------------------------------------------------------------------------

    def take(self, worker: int) -> Vertex | Take:
        """An operation to run, or that there is none now, or that all is done."""
        taken = self._ended() if self.gave_up else self._exploration.take(worker)
        if taken is Take.WAIT and self._speculation is not None and not self.gave_up:
            taken = self._speculation.take() or taken
        if isinstance(taken, Vertex):
            if self.runs >= self.runs_max:
                self.gave_up = self.stirred = True
                return self._ended()
            taken.running = True
            self.running += 1
            self.runs += 1
            if taken.node.vertices[0] is taken:
                taken.node.coordinator = worker
        return taken

    def _ended(self) -> Take:
        return Take.WAIT if self.running else Take.DONE

    def feeds_others(self) -> bool:
        """Whether there may be something to take beside what was taken last."""
        return self._exploration.feeds_others()

    def evaluate(self, vertex: Vertex) -> tuple[Effect | None, Exception | None]:
        """Run an operation that was taken: what it makes, or what it raised.

        Nothing is changed by this; it is done outside of what the others do.
        """
        assert vertex.operation is not None, "virtual operations are not taken"
        at = vertex.node.transaction.at
        read = self.state.reader(at)
        if vertex.guessing:
            assert self._speculation is not None
            read = self._speculation.reader(vertex, read)
        try:
            return vertex.operation.evaluate(read), None
        except Exception as error:  # whatever the user's functions raise
            return None, error

    def finish(
        self, worker: int, vertex: Vertex, effect: Effect | None, error: Exception | None
    ) -> None:
        """Tell what running an operation gave."""
        self.running -= 1
        vertex.running = False
        if not self.running:
            self.stirred = True
        if self.gave_up:
            return  # it will be run again with the rest
        resolved: list[Vertex] = []
        if vertex.guessing:
            assert self._speculation is not None
            self._speculation.keep(vertex, effect, error)
            self._again(vertex, resolved)
        elif vertex.stale:
            self._again(vertex, resolved)
        else:
            self._conclude(worker, vertex, effect, error, resolved)
        self.settle(resolved)

    def _again(self, vertex: Vertex, resolved: list[Vertex]) -> None:
        """What the run gave does not count, or not yet."""
        vertex.stale = vertex.guessing = False
        if vertex.state == RDY:
            self.put(vertex)
        elif vertex.state == BLK and not vertex.waits:
            self._resolve(vertex, resolved)

    def _conclude(
        self,
        worker: int,
        vertex: Vertex,
        effect: Effect | None,
        error: Exception | None,
        resolved: list[Vertex],
    ) -> None:
        """What an operation has made, of what it really reads, takes effect."""
        if effect is not None and vertex.node.clashes(vertex, effect):
            error = AccessError("two operations of one s-transaction write the same key")
        self.close(vertex)
        if error is None:
            assert effect is not None
            vertex.effect = effect
            if effect.writes:
                self.state.write(effect.writes, vertex.node.transaction.at)
            self.move(vertex, EXE)
            resolved.append(vertex)
            return
        if vertex.state == BLK:  # it was run speculatively
            self.move(vertex, RDY)
        vertex.failure = error
        vertex.node.failures += 1
        if self._lazy:
            self.failed.append(vertex.node)
            resolved.append(vertex)
        else:
            self.stirred = True
            self._exploration.fail(worker, vertex)

    # -- dependencies ----------------------------------------------------------------------------

    def settle(self, resolved: list[Vertex]) -> None:
        """Those that depend on these need not wait for them any more; O(edges)."""
        while resolved:
            vertex = resolved.pop()
            assert not vertex.settled, vertex
            vertex.settled = True
            unit = vertex.unit
            for child in vertex.children:
                child.waits -= 1
                other = child.unit
                if other is not None and other is not unit:
                    other.blocked -= 1
                    if not other.blocked and other.ready:
                        self._exploration.put_group(other)
                        self.stirred = True
                if not child.waits:
                    self._resolve(child, resolved)

    def _resolve(self, vertex: Vertex, resolved: list[Vertex]) -> None:
        """It waits for nothing any more; if nobody need wait for it either, it is `resolved`."""
        if vertex.operation is None or vertex.state == ABT:
            if not vertex.settled:
                resolved.append(vertex)
        elif vertex.state == BLK and not vertex.running:
            if self._speculation is not None and vertex.guess is not None:
                guess = self._speculation.confirmed(vertex)
                if guess is not None:
                    worker = vertex.node.coordinator or 0
                    self._conclude(worker, vertex, guess.effect, guess.error, resolved)
                    return
            self.move(vertex, RDY)
            self.put(vertex)

    def unsettle(self, vertex: Vertex) -> None:
        """Those that depend on it have to wait for it again."""
        vertex.settled = False
        for child in vertex.children:
            child.waits += 1
            if child.unit is not None and child.unit is not vertex.unit:
                child.unit.blocked += 1

    # -- moves -----------------------------------------------------------------------------------

    def take_back(self, vertex: Vertex) -> None:
        """Remove the versions of an operation."""
        effect, vertex.effect = vertex.effect, None
        if effect is not None:
            self.state.take_back(effect.writes, vertex.node.transaction.at)
            writers = vertex.node.writers
            if writers is not None:
                for table, key, _ in effect.writes:
                    writers.pop((table.name, key), None)

    def take_back_all(self) -> None:
        """Remove all versions of the batch: its run has ended with an error."""
        for vertex in self.graph.vertices:
            self.take_back(vertex)

    def dissolve(self) -> None:
        """Let go of all at the end, piece by piece: no cycles are left."""
        for vertex in self.graph.vertices:
            if vertex.unit is not None:
                vertex.unit.vertices = []
        self.graph.dissolve()
        del self._exploration, self.aborts

    def move(self, vertex: Vertex, new: OperationState) -> None:
        """Move an operation to a state it may move to."""
        old = vertex.state
        name = move_name(old, new)
        vertex.state = new
        if self._on_move is not None:
            self._on_move(vertex, old, new, name)

    def put(self, vertex: Vertex) -> None:
        """An operation has become RDY."""
        self.stirred = True
        self._exploration.put(vertex)

    def open(self, vertex: Vertex) -> None:
        """It has to be run (again)."""
        self.todo += 1
        if vertex.unit is not None:
            vertex.unit.open += 1

    def close(self, vertex: Vertex) -> None:
        """It has not to be run (any more)."""
        self.todo -= 1
        if vertex.unit is not None:
            vertex.unit.open -= 1
