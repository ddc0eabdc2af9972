"""Aborts: removal of an s-transaction's versions, and rollback of the operations that read them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from activedb.scheduling.tpg._vertex import ABT, BLK, EXE, RDY, Node, Vertex

if TYPE_CHECKING:
    from activedb.scheduling.tpg._execution import Execution

__all__ = ["Aborts"]


class Aborts:
    """Aborts of one execution; README.md, "Aborts", describes the rules.

    Attributes
    ----------
    redone : int
        Number of rollbacks of operations that had run.
    seconds : float
        Time spent so far.
    """

    def __init__(self, execution: Execution):
        self.redone = 0
        self.seconds = 0.0
        self._execution = execution

    def handle(self, failed: Iterable[Node]) -> None:
        """Abort the s-transactions whose failures still count, in the serial order."""
        began_s = time.perf_counter()
        for node in sorted(failed, key=lambda node: node.vertices[0].number):
            if node.failures and not node.aborted:
                self.abort(node)
        self._execution.stirred = True
        self.seconds += time.perf_counter() - began_s

    def abort(self, node: Node) -> None:
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
        # Rollback does not reach these: the operations that depend on them are later.
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
            execution.put(vertex)
