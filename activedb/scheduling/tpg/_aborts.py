"""Aborts: s-transactions give up what they have done, and who has seen it is rolled back."""

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
    """The aborts of one execution; README.md, "Aborts", tells the rules.

    Attributes
    ----------
    redone : int
        How often an operation that was run was rolled back.
    seconds : float
        How long it has taken so far.
    """

    def __init__(self, execution: Execution):
        self.redone = 0
        self.seconds = 0.0
        self._execution = execution

    def handle(self, failed: Iterable[Node]) -> None:
        """Abort s-transactions whose failures still count, in the serial order."""
        began_s = time.perf_counter()
        for node in sorted(failed, key=lambda node: node.vertices[0].number):
            if node.failures and not node.aborted:
                self.abort(node)
        self._execution.stirred = True
        self.seconds += time.perf_counter() - began_s

    def abort(self, node: Node) -> None:
        """Abort an s-transaction (T4): its versions go, and who has read them is rolled back."""
        assert node.failures
        assert not node.aborted
        node.aborted = True
        execution = self._execution
        affected: list[int] = []
        resolved: list[Vertex] = []
        for vertex in node.vertices:
            vertex.passed = vertex.state == EXE
            # Of two operations that write one key only the later has those who read it as children.
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
        # Rolling back does not reach these: what depends on them is later than they are.
        execution.settle(resolved)

    def _roll_back(self, affected: list[int]) -> None:
        """Roll back operations that may have read what is not there any more (T5, T6).

        In the serial order, so that what an operation depends on is rolled back before it is
        decided whether it is RDY or BLK. `affected` are numbers of vertices.
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
        """What an operation failed on has changed; so may have what its s-transaction aborted for.

        Then the abort is taken back, and its operations, which are ABT, are to be redone.
        """
        node = vertex.node
        if node.clash:
            # Which of them has the version cannot be told: all are redone.
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
