"""Stateful TPG: effects of the run, the failure and the abort of an operation on the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any

from activedb.errors import AccessError
from activedb.scheduling._operations import Effect
from activedb.scheduling._state import SharedState
from activedb.scheduling._tables import Range, Ref, at_key
from activedb.scheduling.tpg._exploration import Exploration, Take, exploration_of
from activedb.scheduling.tpg._groups import OperationGroup, group, rank_operations
from activedb.scheduling.tpg._model import Decision
from activedb.scheduling.tpg._planning import TaskGraph
from activedb.scheduling.tpg._vertex import (
    ABT,
    BLK,
    EXE,
    MOVES,
    RDY,
    GraphTransaction,
    Guess,
    OperationState,
    Vertex,
)
from activedb.values import copied, same_values

__all__ = ["RUNS_MAX", "Aborts", "GraphExecution", "OnMove"]


class Aborts:
    """Aborts of one execution; README.md, "Aborts", describes the rules.

    Attributes
    ----------
    redone : int
        Number of rollbacks of operations that had run.
    seconds : float
        Time spent so far.
    """

    def __init__(self, execution: GraphExecution):
        self.redone = 0
        self.seconds = 0.0
        self._execution = execution

    def handle(self, failed: Iterable[GraphTransaction]) -> None:
        """Abort the s-transactions whose failures still count, in the serial order."""
        began_s = time.perf_counter()
        for node in sorted(failed, key=lambda node: node.vertices[0].number):
            if node.failures and not node.aborted:
                self.abort(node)
        self._execution.may_have_work = True
        self.seconds += time.perf_counter() - began_s

    def abort(self, node: GraphTransaction) -> None:
        """Abort an s-transaction (T4): remove its versions, roll back operations that read them."""
        assert node.failures
        assert not node.aborted
        node.aborted = True
        execution = self._execution
        affected: list[int] = []
        resolved: list[Vertex] = []
        for vertex in node.vertices:
            vertex.passed = vertex.state == EXE
            # If two operations write the same key, only the later has the readers as
            # children.
            if node.writers is not None or (vertex.effect is not None and vertex.effect.writes):
                affected += [child.number for child in vertex.children]
            execution.take_back(vertex)
            vertex.stale = vertex.running
            vertex.guess = None
            if vertex.is_open:
                execution.close(vertex)
            execution.move(vertex, ABT)
            if not vertex.waits and not vertex.settled:
                resolved.append(vertex)
        self._roll_back(affected)
        # Rollback does not reach these: operations that depend on them are numbered after them.
        execution.settle(resolved)

    def _roll_back(self, affected: list[int]) -> None:
        """Roll back operations that may have read removed versions (T5, T6).

        They are rolled back in the serial order, so that the dependencies of an operation are
        rolled back before it becomes RDY or BLK. `affected` contains numbers of vertices.
        """
        execution = self._execution
        heapify(affected)
        vertices = execution.graph.vertices
        while affected:
            vertex = vertices[heappop(affected)]
            while affected and affected[0] == vertex.number:
                heappop(affected)
            was_settled = vertex.settled
            if vertex.operation is None:
                stays_settled = not vertex.waits
            else:
                self._forget_failure(vertex, affected)
                if vertex.state == ABT and vertex.node.failures:
                    vertex.passed = False
                    stays_settled = not vertex.waits
                else:
                    self._to_be_redone(vertex)
                    stays_settled = False
            if was_settled:
                if not stays_settled:
                    execution.unsettle(vertex)
                for child in vertex.children:
                    heappush(affected, child.number)

    def _forget_failure(self, vertex: Vertex, affected: list[int]) -> None:
        """Clear a failure whose inputs have changed, and undo the abort if no failure is left.

        When an abort is undone, the operations of the s-transaction, which are ABT, must be redone.
        """
        node = vertex.node
        if node.clash:
            # The owner of the version is unknown: all operations are redone.
            node.clash = False
            for other in node.vertices:
                self._clear_failure(other)
                heappush(affected, other.number)
        self._clear_failure(vertex)
        if node.aborted and not node.failures:
            node.aborted = False
            for other in node.vertices:
                heappush(affected, other.number)

    def _clear_failure(self, vertex: Vertex) -> None:
        if vertex.failure is not None:
            vertex.failure = None
            vertex.node.failures -= 1
            if vertex.state != ABT:
                self._execution.open(vertex)

    def _to_be_redone(self, vertex: Vertex) -> None:
        execution, old = self._execution, vertex.state
        if old == EXE:
            self.redone += 1
            execution.take_back(vertex)
        vertex.stale = vertex.running
        new = BLK if vertex.waits else RDY
        if old != new:
            execution.move(vertex, new)
            if old >= EXE:
                execution.open(vertex)
        if new == RDY and not vertex.running:
            execution.exploration.put(vertex)


# -- execution: states of the operations, and the moves between them -------------------------------


RUNS_MAX = 5
"""Upper bound on the mean number of executions per operation: one, and four repetitions.

Beyond it, not even five threads that never wait would be faster than one in the serial order.
"""

OnMove = Callable[[Vertex, OperationState, OperationState, str], None]


class GraphExecution:
    """Execution of one TPG: a pure core that decides which operation runs next.

    Workers `take` operations, `evaluate` them, and report the result with `finish`. No method
    waits. All methods REQUIRE that only one thread at a time calls them, except `evaluate`.

    Parameters
    ----------
    graph : TaskGraph
    state : SharedState
    decision : Decision
    workers : int
        Number of workers, which are numbered from 0.
    on_move : callable, optional
        ``on_move(vertex, old, new, name)`` is called on every move of an operation.
    groups : list of OperationGroup, optional
        Result of `group` for the graph, if already computed.

    Attributes
    ----------
    todo : int
        Number of operations still to be run.
    running : int
        Number of operations being run.
    runs, runs_max : int
        Number of runs begun, speculative ones included, and its upper bound.
    gave_up : bool
        Whether the bound was reached: operations that are not settled are left to `run_rest`.
    may_have_work : bool
        Whether there may be operations for workers that got `Take.WAIT`; the caller that wakes them
        resets it to False.
    failed : list of GraphTransaction
        s-transactions with logged failures.
    aborts : Aborts
    exploration : Exploration
    """

    def __init__(
        self,
        graph: TaskGraph,
        state: SharedState,
        decision: Decision,
        workers: int,
        on_move: OnMove | None = None,
        groups: list[OperationGroup] | None = None,
    ):
        self.graph = graph
        self.state = state
        self.decision = decision
        self.todo = graph.operations
        self.running = 0
        self.runs = 0
        self.runs_max = RUNS_MAX * graph.operations
        self.gave_up = False
        self.may_have_work = False
        self.failed: list[GraphTransaction] = []
        self.aborts = Aborts(self)
        self._on_move = on_move
        self._lazy = decision.abort == "lazy"
        if decision.unit == "group" and groups is None:
            groups, _ = group(graph)
        elif decision.unit == "operation" and decision.explore != "non-structured":
            rank_operations(graph)
        self.exploration: Exploration = exploration_of(self, groups or [], workers)
        self._speculation = Speculation(graph.vertices, state) if decision.speculative else None
        free: list[Vertex] = []
        for vertex in [vertex for vertex in graph.vertices if not vertex.waits]:
            self._resolve(vertex, free)
        self.settle(free)

    # -- calls of workers ------------------------------------------------------------------------

    def take(self, worker: int) -> Vertex | Take:
        """Return an operation to run, `Take.WAIT` if there is none now, else `Take.DONE`."""
        taken = self._ended() if self.gave_up else self.exploration.take(worker)
        if taken is Take.WAIT and self._speculation is not None and not self.gave_up:
            taken = self._speculation.take() or taken
        if isinstance(taken, Vertex):
            if self.runs >= self.runs_max:
                self.gave_up = self.may_have_work = True
                return self._ended()
            taken.running = True
            self.running += 1
            self.runs += 1
            if taken.node.vertices[0] is taken:
                taken.node.coordinator = worker
        return taken

    def _ended(self) -> Take:
        return Take.WAIT if self.running else Take.DONE

    def evaluate(self, vertex: Vertex) -> tuple[Effect | None, Exception | None]:
        """Run an operation that was taken; return its effect, or the exception that it raised.

        This changes no state and may run in parallel with other calls.
        """
        assert vertex.operation is not None, "virtual operations are not taken"
        read: Callable[[Ref], Any] = partial(self.state.value, before=vertex.node.transaction.at)
        if vertex.guessing:
            assert self._speculation is not None
            read = self._speculation.reader(vertex, read)
        try:
            return vertex.operation.evaluate(read), None
        except Exception as error:  # any error of the user's functions
            return None, error

    def finish(
        self, worker: int, vertex: Vertex, effect: Effect | None, error: Exception | None
    ) -> None:
        """Report the result of an operation that was taken."""
        self.running -= 1
        vertex.running = False
        if not self.running:
            self.may_have_work = True
        if self.gave_up:
            return  # `run_rest` runs it again
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
        """Discard the result of a run that does not count, or keep it for later as a guess."""
        vertex.stale = vertex.guessing = False
        if vertex.state == RDY:
            self.exploration.put(vertex)
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
        """Apply the result of an operation whose reads are valid."""
        node = vertex.node
        if (
            effect is not None
            and (node.writers is not None or len(effect.writes) > 1)
            and node.clashes(vertex, effect)
        ):
            error = AccessError("two operations of one s-transaction write the same key")
        self.close(vertex)
        if error is None:
            assert effect is not None
            vertex.effect = effect
            if effect.writes:
                self.state.write(effect.writes, node.transaction.at)
            self.move(vertex, EXE)
            resolved.append(vertex)
            return
        if vertex.state == BLK:  # run speculatively
            self.move(vertex, RDY)
        vertex.failure = error
        node.failures += 1
        if self._lazy:
            self.failed.append(node)
            resolved.append(vertex)
        else:
            self.may_have_work = True
            self.exploration.fail(worker, vertex)

    # -- dependencies ----------------------------------------------------------------------------

    def settle(self, resolved: list[Vertex]) -> None:
        """Mark vertices as settled, and unblock the operations that depend on them; O(edges)."""
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
                        self.exploration.put_group(other)
                        self.may_have_work = True
                if not child.waits:
                    self._resolve(child, resolved)

    def _resolve(self, vertex: Vertex, resolved: list[Vertex]) -> None:
        """Process a vertex without open dependencies; if it settles, add it to `resolved`."""
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
            self.exploration.put(vertex)

    def unsettle(self, vertex: Vertex) -> None:
        """Make the operations that depend on a vertex wait for it again."""
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
        """Remove all versions of the batch, after its run has ended with an error."""
        for vertex in self.graph.vertices:
            self.take_back(vertex)

    def dissolve(self) -> None:
        """Break all reference cycles at the end."""
        for vertex in self.graph.vertices:
            if vertex.unit is not None:
                vertex.unit.vertices = []
        self.graph.dissolve()
        del self.exploration, self.aborts

    def move(self, vertex: Vertex, new: OperationState) -> None:
        """Move an operation to another state; the move must be permitted."""
        old = vertex.state
        name = MOVES[old][new]
        assert name != "-", f"an operation does not move from {old.name} to {new.name}"
        vertex.state = new
        if self._on_move is not None:
            self._on_move(vertex, old, new, name)

    def open(self, vertex: Vertex) -> None:
        """Count an operation as still to be run."""
        self.todo += 1
        if vertex.unit is not None:
            vertex.unit.open += 1

    def close(self, vertex: Vertex) -> None:
        """Count an operation as no longer to be run."""
        self.todo -= 1
        if vertex.unit is not None:
            vertex.unit.open -= 1


# -- speculative execution: operations that are run before their dependencies are resolved ---------


class Speculation:
    """Supply of BLK operations, each once, to workers that would wait, with their results.

    A result counts if the operation has read the same values as when its dependencies are resolved
    (T3); otherwise the operation is run again.

    Parameters
    ----------
    vertices : list of Vertex
        In the serial order.
    state : SharedState
    """

    def __init__(self, vertices: list[Vertex], state: SharedState):
        self._vertices = vertices
        self._state = state
        self._next = 0

    def take(self) -> Vertex | None:
        """Return the earliest BLK operation that was not taken yet, or None."""
        while self._next < len(self._vertices):
            vertex = self._vertices[self._next]
            self._next += 1
            if vertex.operation is not None and vertex.state == BLK and not vertex.running:
                vertex.guessing = True
                vertex.guess = Guess()
                return vertex
        return None

    def reader(self, vertex: Vertex, read: Callable[[Ref], Any]) -> Callable[[Ref], Any]:
        """Return `read` with a record of its values and of the computed keys."""
        guess = vertex.guess
        if guess is None:
            return read  # aborted meanwhile
        record = guess.read

        def recorded(ref: Ref) -> Any:
            try:
                if type(ref.key) is not Range:
                    ref = Ref(ref.table, at_key(ref, recorded), ref.window_us)
                value = read(ref)
            except Exception:
                guess.has_failed_read = True
                raise
            record.append((ref, copied(value)))
            return value

        return recorded

    def keep(self, vertex: Vertex, effect: Effect | None, error: Exception | None) -> None:
        """Store the result of a speculative run."""
        guess = vertex.guess
        if guess is not None:
            guess.effect, guess.error = effect, error

    def confirmed(self, vertex: Vertex) -> Guess | None:
        """Return and forget the result of a speculative run; None if its reads are outdated."""
        guess, vertex.guess = vertex.guess, None
        assert guess is not None
        if guess.has_failed_read:
            return None
        read = self._state.reader(vertex.node.transaction.at)
        refs, values = [ref for ref, _ in guess.read], [value for _, value in guess.read]
        try:
            now = [read(ref) for ref in refs]
        except Exception:
            return None  # the second run reports the error
        return guess if same_values(tuple(now), tuple(values)) else None
