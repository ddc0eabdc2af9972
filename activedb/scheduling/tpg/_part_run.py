"""Run of a part of a batch."""

from __future__ import annotations

import time

from activedb.scheduling._operations import Writes
from activedb.scheduling._s_transactions import At
from activedb.scheduling._scheduler import evaluate
from activedb.scheduling._state import State
from activedb.scheduling.tpg._execution import Execution
from activedb.scheduling.tpg._model import SERIAL, Thresholds
from activedb.scheduling.tpg._outcomes import outcome_of
from activedb.scheduling.tpg._parts import Known, Part, PartReport
from activedb.scheduling.tpg._pilots import Pilots, pilots_due
from activedb.scheduling.tpg._properties import Properties
from activedb.scheduling.tpg._rest import run_rest
from activedb.scheduling.tpg._times import Stopwatch

__all__ = ["PartRun"]


class PartRun:
    """Run of a part of a batch: its earliest s-transactions alone, the rest by a TPG.

    Attributes
    ----------
    part : Part
    decision : Decision
    properties : Properties
    execution : Execution or None
        Execution of the s-transactions that are not run alone.
    alone : int
        Number of the earliest s-transactions that were run alone.
    alone_s, rest_s : float
        Seconds spent on these, and on the s-transactions that the TPG has given up.
    """

    def __init__(self, part: Part, known: Known, state: State):
        self.part = part
        self.decision = SERIAL
        self.properties = self._properties(known)
        self.execution: Execution | None = None
        self.alone = 0
        self.alone_s = 0.0
        self.rest_s = 0.0
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
        """Run the next s-transactions one after the other on the calling thread.

        REQUIRES: the part is sorted; no later s-transaction has run.
        """
        watch = Stopwatch()
        state, written = self._state, self._written
        for transaction in self.part.transactions[self.alone : self.alone + count]:
            at = transaction.at
            writes, transaction.outcome = evaluate(transaction, state.reader(at))
            written.append((at, writes))
            state.write(writes, at)
        self.alone += count
        self.alone_s += watch.lap_s()

    def pilot(self, thresholds: Thresholds, threads: int) -> None:
        """Run the earliest s-transactions alone and measure them, unless enough is known."""
        transactions, known = self.part.transactions, self._known
        pilots = Pilots(thresholds, threads)
        due = pilots_due(known, len(transactions), thresholds, threads)
        for transaction in transactions[:due]:
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            self.run_alone(1)
            cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
            pilots.add(len(transaction.operations), wall_s * 1e6, cpu_s * 1e6)
            if pilots.are_enough:
                break
        known.unmeasured += len(transactions)
        pilots.tell(known)
        self.properties = self._properties(known)

    def end(self) -> PartReport:
        """Run the s-transactions given up, set the outcomes. REQUIRES: the execution has ended."""
        redone = runs = rest = 0
        if self.execution is not None:
            redone, runs = self.execution.aborts.redone, self.execution.runs
            watch = Stopwatch()
            rest = run_rest(self.execution, self._written)
            self.rest_s = watch.lap_s()
            nodes = self.execution.graph.nodes
            for node in nodes[: len(nodes) - rest]:
                node.transaction.outcome = outcome_of(node, self._state)
        aborted = self._known.ended(self.part.transactions)
        labels = tuple(self.part.labels)
        return PartReport(labels, self.decision, self.properties, aborted, redone, runs, rest)

    def dissolve(self) -> None:
        """Release the TPG, which the traceback of a failure may otherwise keep alive."""
        self.part.planner = None
        if self.execution is not None:
            self.execution.dissolve()

    def take_back(self) -> None:
        """Undo the run, after its batch has ended with an error."""
        if self.execution is not None:
            self.execution.take_back_all()
        for at, writes in self._written:
            self._state.take_back(writes, at)
        for transaction in self.part.transactions:
            transaction.outcome = None
