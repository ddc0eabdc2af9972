"""Order in which workers take RDY operations: the three kinds of exploration of a TPG."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from activedb.scheduling.tpg._groups import OperationGroup
from activedb.scheduling.tpg._vertex import RDY, GraphTransaction, Vertex

if TYPE_CHECKING:
    from activedb.scheduling.tpg._execution import GraphExecution

__all__ = ["Exploration", "Take", "exploration_of"]


class Take(Enum):
    """Answer to a worker if there is no operation to take."""

    WAIT = auto()
    """No operation now; other workers are running some."""
    DONE = auto()
    """All operations have been taken."""


class Exploration(ABC):
    """Common base of all explorations: queues of units, which are operations or groups.

    Queues hold numbers of units; entries that are not RDY any more when their turn comes are
    skipped.

    Parameters
    ----------
    execution : GraphExecution
    groups : list of OperationGroup
        If empty, the units are operations.
    workers : int
    """

    def __init__(self, execution: GraphExecution, groups: list[OperationGroup], workers: int):
        self._execution = execution
        self._lazy = execution.decision.abort == "lazy"
        self._workers = workers
        self._vertices = execution.graph.vertices
        self._groups = {group.number: group for group in groups}
        self._held: list[OperationGroup | None] = [None] * workers

    # -- defined by subclasses -------------------------------------------------------------------

    @abstractmethod
    def _enqueue(self, unit: Vertex | OperationGroup) -> None:
        """Queue a unit that contains a RDY operation."""

    @abstractmethod
    def _choose(self, worker: int) -> Vertex | Take:
        """Return the next operation for a worker that holds no group."""

    def feeds_others(self) -> bool:
        """Return whether workers other than the last to take may find an operation now."""
        return True

    def fail(self, worker: int, vertex: Vertex) -> None:
        """Record a failure whose s-transaction must be aborted eagerly."""
        self._execution.failed.append(vertex.node)

    # -- common operations -----------------------------------------------------------------------

    def put(self, vertex: Vertex) -> None:
        """Queue an operation that has become RDY."""
        self._execution.may_have_work = True
        group = vertex.unit
        if group is None:
            self._enqueue(vertex)
        else:
            heappush(group.ready, vertex.number)
            if not group.blocked:
                self.put_group(group)

    def put_group(self, group: OperationGroup) -> None:
        """Queue a group whose external dependencies are resolved."""
        if not group.queued and not group.running:
            group.queued = True
            self._enqueue(group)

    def take(self, worker: int) -> Vertex | Take:
        """Return the next operation for a worker."""
        group = self._held[worker]
        if group is not None:
            vertex = self._next_of(group)
            if vertex is not None:
                return vertex
            group.running = False
            self._held[worker] = None
            self._execution.may_have_work = True
        return self._choose(worker)

    def _next_of(self, group: OperationGroup) -> Vertex | None:
        """Return the earliest RDY operation of a group, or None."""
        while group.ready:
            vertex = self._vertices[heappop(group.ready)]
            if vertex.state == RDY and vertex.failure is None and not vertex.running:
                return vertex
        return None

    def _taken(self, worker: int, number: int) -> Vertex | None:
        """Return an operation of the unit with this number, if it can still be taken."""
        if not self._groups:
            vertex = self._vertices[number]
            may_run = vertex.state == RDY and vertex.failure is None and not vertex.running
            return vertex if may_run else None
        group = self._groups[number]
        group.queued = False
        if group.blocked or group.running:
            return None
        found = self._next_of(group)
        if found is not None:
            group.running = True
            self._held[worker] = group
        return found

    def _is_busy(self) -> bool:
        """Return whether an operation is being run, so that more may follow."""
        return self._execution.running > 0 or any(self._held)

    def _aborted_failed(self) -> bool:
        """Abort the s-transactions with logged failures; return whether there were any."""
        failed, self._execution.failed = self._execution.failed, []
        if failed:
            self._execution.aborts.handle(failed)
        return bool(failed)

    def _end(self) -> Take:
        assert not self._execution.todo, "the TPG is stuck"
        return Take.DONE


class NonStructured(Exploration):
    """Exploration that takes any unit whose dependencies are resolved, the earliest first.

    With eager aborts, an s-transaction is aborted by its coordinator: the worker that took its
    head.
    """

    def __init__(self, execution: GraphExecution, groups: list[OperationGroup], workers: int):
        super().__init__(execution, groups, workers)
        self._ready: list[int] = []
        self._signals: list[deque[GraphTransaction]] = [deque() for _ in range(workers)]

    def _enqueue(self, unit: Vertex | OperationGroup) -> None:
        heappush(self._ready, unit.number)

    def feeds_others(self) -> bool:
        return bool(self._ready) or any(self._signals)

    def fail(self, worker: int, vertex: Vertex) -> None:
        coordinator = vertex.node.coordinator
        self._signals[worker if coordinator is None else coordinator].append(vertex.node)

    def take(self, worker: int) -> Vertex | Take:
        signals = self._signals[worker]
        while signals:
            self._execution.aborts.handle([signals.popleft()])
        return super().take(worker)

    def _choose(self, worker: int) -> Vertex | Take:
        while True:
            while self._ready:
                vertex = self._taken(worker, heappop(self._ready))
                if vertex is not None:
                    return vertex
            if self._is_busy() or any(self._signals):
                return Take.WAIT
            if not self._aborted_failed():
                return self._end()


class BreadthFirst(Exploration):
    """Exploration stratum by stratum, with a barrier after each.

    With eager aborts, the last worker at the barrier aborts the failed s-transactions of the
    stratum. Then all workers proceed with the outermost stratum that contains a RDY unit.
    """

    def __init__(self, execution: GraphExecution, groups: list[OperationGroup], workers: int):
        super().__init__(execution, groups, workers)
        self._ready: list[tuple[int, int]] = []  # ranks and numbers of units
        self._stratum = 0

    def _enqueue(self, unit: Vertex | OperationGroup) -> None:
        heappush(self._ready, (unit.rank, unit.number))

    def feeds_others(self) -> bool:
        return bool(self._ready) and self._ready[0][0] <= self._stratum

    def _choose(self, worker: int) -> Vertex | Take:
        while True:
            while self._ready and self._ready[0][0] <= self._stratum:
                vertex = self._taken(worker, heappop(self._ready)[1])
                if vertex is not None:
                    return vertex
            if self._is_busy():
                return Take.WAIT
            if not self._lazy and self._aborted_failed():
                self._stratum = 0
            elif self._ready:
                self._stratum = self._ready[0][0]
                self._execution.may_have_work = True
            elif self._aborted_failed():
                self._stratum = 0
            else:
                return self._end()


class DepthFirst(Exploration):
    """Exploration in which each worker processes its own units by strata, without a barrier.

    Units are dealt out over the strata. A worker whose next unit is not RDY waits for it. Eager
    aborts are performed by the worker that found the failure, when it has processed its units of
    the stratum, or would have to wait.
    """

    def __init__(self, execution: GraphExecution, groups: list[OperationGroup], workers: int):
        super().__init__(execution, groups, workers)
        units: list[Vertex] | list[OperationGroup] = groups or [
            vertex for vertex in self._vertices if vertex.operation is not None
        ]
        self._own: list[list[tuple[int, int]]] = [[] for _ in range(workers)]
        self._owner: dict[int, int] = {}
        self._failed: list[list[Vertex]] = [[] for _ in range(workers)]
        in_stratum: dict[int, int] = {}
        for unit in units:
            dealt = in_stratum.get(unit.rank, 0)
            in_stratum[unit.rank] = dealt + 1
            owner = (dealt + unit.rank) % workers
            self._owner[unit.number] = owner
            self._own[owner].append((unit.rank, unit.number))
        for own in self._own:
            heapify(own)

    def _enqueue(self, unit: Vertex | OperationGroup) -> None:
        heappush(self._own[self._owner[unit.number]], (unit.rank, unit.number))

    def fail(self, worker: int, vertex: Vertex) -> None:
        self._failed[worker].append(vertex)

    def _choose(self, worker: int) -> Vertex | Take:
        own = self._own[worker]
        while True:
            while own and not self._unit(own[0][1]).is_open:
                self._unqueue(heappop(own)[1])
            failed = self._failed[worker]
            if own and (not failed or own[0][0] <= _stratum_of(failed[-1])):
                vertex = self._taken(worker, own[0][1])
                if vertex is not None:
                    heappop(own)
                    return vertex
            if failed:
                self._failed[worker] = []
                self._execution.aborts.handle([vertex.node for vertex in failed])
            elif self._execution.todo or self._is_busy() or any(self._failed):
                return Take.WAIT
            elif not self._aborted_failed():
                return self._end()

    def _unit(self, number: int) -> Vertex | OperationGroup:
        return self._groups[number] if self._groups else self._vertices[number]

    def _unqueue(self, number: int) -> None:
        if self._groups:
            self._groups[number].queued = False


def _stratum_of(vertex: Vertex) -> int:
    return vertex.rank if vertex.unit is None else vertex.unit.rank


def exploration_of(
    execution: GraphExecution, groups: list[OperationGroup], workers: int
) -> Exploration:
    """Return the exploration chosen by the execution's decision."""
    ways: dict[str, type[Exploration]] = {
        "non-structured": NonStructured,
        "breadth-first": BreadthFirst,
        "depth-first": DepthFirst,
    }
    return ways[execution.decision.explore](execution, groups, workers)
