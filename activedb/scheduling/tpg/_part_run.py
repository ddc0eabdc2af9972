"""A part of a batch while it is run."""

from __future__ import annotations

import time

from activedb.scheduling._operations import Writes
from activedb.scheduling._s_transactions import At
from activedb.scheduling._scheduler import evaluate
from activedb.scheduling._state import State
from activedb.scheduling.tpg._execution import Execution
from activedb.scheduling.tpg._model import SERIAL, Thresholds, threads_run_python_at_once
from activedb.scheduling.tpg._outcomes import outcome_of
from activedb.scheduling.tpg._parts import Known, Part, PartReport
from activedb.scheduling.tpg._properties import Properties
from activedb.scheduling.tpg._rest import run_rest

__all__ = ["PartRun"]

PILOTS_MAX = 16
"""So many of the earliest s-transactions of a part are run alone at most, to be measured."""


class PartRun:
    """A part of a batch while it is run: its earliest s-transactions alone, the rest by a TPG.

    Attributes
    ----------
    part : Part
    decision : Decision
    properties : Properties
    execution : Execution or None
        Of those that are not run alone.
    alone : int
        How many of the earliest were run alone.
    """

    def __init__(self, part: Part, known: Known, state: State):
        self.part = part
        self.decision = SERIAL
        self.properties = self._properties(known)
        self.execution: Execution | None = None
        self.alone = 0
        self._known = known
        self._state = state
        self._written: list[tuple[At, Writes]] = []

    def _properties(self, known: Known) -> Properties:
        transactions = self.part.transactions
        return Properties(
            transactions=len(transactions),
            operations=sum([len(transaction.operations) for transaction in transactions]),
            compute_us=known.compute_us or 0.0,
            parallel_share=known.parallel_share,
            abort_ratio=known.abort_ratio,
        )

    def run_alone(self, count: int) -> None:
        """Run the next s-transactions one after the other, here and now.

        REQUIRES: the part is sorted; no later one has run.
        """
        state, written = self._state, self._written
        for transaction in self.part.transactions[self.alone : self.alone + count]:
            at = transaction.at
            writes, transaction.outcome = evaluate(transaction, state.reader(at))
            written.append((at, writes))
            state.write(writes, at)
        self.alone += count

    def pilot(self, thresholds: Thresholds) -> None:
        """Run the earliest s-transactions alone, and measure them.

        Another thread could use all of their time if threads run Python code at once, else the time
        in which this one has waited. The slowest few are left out: they may have been interrupted.
        """
        count = min(PILOTS_MAX, (len(self.part.transactions) + 3) // 4)
        measured = []
        for transaction in self.part.transactions[:count]:
            wall, cpu = time.perf_counter(), time.thread_time()
            self.run_alone(1)
            cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
            if transaction.operations:
                operations = len(transaction.operations)
                measured.append((wall / operations * 1e6, cpu / operations * 1e6))
        measured.sort()
        kept = measured[: len(measured) - len(measured) // 8]
        if kept:
            wall_us, cpu_us = (sum(each) / len(kept) for each in zip(*kept, strict=True))
            share = 1.0 if threads_run_python_at_once() else max(1 - cpu_us / wall_us, 0.0)
            self._known.measured(max(wall_us - thresholds.serial_us, 0.0), share)
            self.properties = self._properties(self._known)

    def end(self) -> PartReport:
        """Run what was given up, and set the outcomes. REQUIRES: the execution is at its end."""
        redone = runs = rest = 0
        if self.execution is not None:
            redone, runs = self.execution.aborts.redone, self.execution.runs
            rest = run_rest(self.execution, self._written)
            nodes = self.execution.graph.nodes
            for node in nodes[: len(nodes) - rest]:
                node.transaction.outcome = outcome_of(node, self._state)
        aborted = self._known.ended(self.part.transactions)
        labels = tuple(self.part.labels)
        return PartReport(labels, self.decision, self.properties, aborted, redone, runs, rest)

    def dissolve(self) -> None:
        """Let go of the TPG, which the traceback of a failure may keep otherwise."""
        self.part.planner = None
        if self.execution is not None:
            self.execution.dissolve()

    def take_back(self) -> None:
        """Undo it: the run of its batch has ended with an error."""
        if self.execution is not None:
            self.execution.take_back_all()
        for at, writes in self._written:
            self._state.take_back(writes, at)
        for transaction in self.part.transactions:
            transaction.outcome = None
