"""Parts of a batch, and their runs: s-transactions with a common decision."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, fields
from time import perf_counter

from activedb.errors import DefinitionError
from activedb.scheduling._operations import At, Outcome, STransaction, Writes, check_distinct
from activedb.scheduling._scheduler import evaluate
from activedb.scheduling._state import SharedState
from activedb.scheduling._tables import SharedTable
from activedb.scheduling.tpg._execution import GraphExecution
from activedb.scheduling.tpg._model import (
    SERIAL,
    Decision,
    Properties,
    Thresholds,
    serial_is_fastest,
    threads_run_python_at_once,
)
from activedb.scheduling.tpg._planning import Planner
from activedb.scheduling.tpg._vertex import GraphTransaction, Vertex

__all__ = [
    "BatchPart",
    "PartReport",
    "PartRun",
    "PartStatistics",
    "PhaseTimes",
    "Stopwatch",
    "disjoint",
    "labelled",
]


# -- time spent by the threads of a run, by phase --------------------------------------------------


@dataclass(slots=True)
class PhaseTimes:
    """Time spent by all threads of a run, by phase (Mao et al., section 8.3.1).

    Wall-clock seconds. Under a global interpreter lock, each phase includes the time spent waiting
    for that lock.

    Attributes
    ----------
    plan_s : float
        Sorting, building TPGs, deciding, and taking TPGs apart; includes planning in `add`.
    run_s : float
        Running operations, including runs that failed or were redone later; `PartReport.runs` is
        their number.
    explore_s : float
        Taking operations, resolving their dependents, waiting for the latch of the TPG meanwhile,
        setting outcomes.
    abort_s : float
        Aborting, rolling back, and running the s-transactions given up in the serial order.
    wait_s : float
        Waiting of threads while all remaining operations depended on running ones.
    """

    plan_s: float = 0.0
    run_s: float = 0.0
    explore_s: float = 0.0
    abort_s: float = 0.0
    wait_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Sum of all phases: at most the time of planning and run times the number of threads."""
        return self.plan_s + self.run_s + self.explore_s + self.abort_s + self.wait_s

    def add(self, other: PhaseTimes) -> None:
        """Add the times of another thread."""
        for phase in fields(self):
            setattr(self, phase.name, getattr(self, phase.name) + getattr(other, phase.name))


class Stopwatch:
    """Stopwatch of one thread: each lap is the time of one phase."""

    __slots__ = ("_since_s",)

    def __init__(self) -> None:
        self._since_s = perf_counter()

    def lap_s(self) -> float:
        """Return the seconds since the last call, or since creation."""
        now_s = perf_counter()
        lap_s = now_s - self._since_s
        self._since_s = now_s
        return lap_s


# -- parts -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class PartStatistics:
    """Statistics of earlier batches for a part: each batch weighs as much as all before it.

    Attributes
    ----------
    compute_us, parallel_share, abort_ratio : float or None
        See `Properties`; None before the first measurement.
    unmeasured : int
        Number of s-transactions since the last measurement.
    """

    compute_us: float | None = None
    parallel_share: float = 0.0
    abort_ratio: float = 0.0
    unmeasured: int = 0

    def measured(self, compute_us: float, parallel_share: float) -> None:
        """Record a measurement."""
        self.unmeasured = 0
        if self.compute_us is None:
            self.compute_us, self.parallel_share = compute_us, parallel_share
        else:
            self.compute_us = (self.compute_us + compute_us) / 2
            self.parallel_share = (self.parallel_share + parallel_share) / 2

    def ended(self, transactions: Iterable[STransaction]) -> int:
        """Record the outcomes of a batch; return the number of aborts."""
        aborted = count = 0
        for transaction in transactions:
            assert transaction.outcome is not None
            count += 1
            aborted += transaction.outcome.reason is not None
        if count:
            self.abort_ratio = (self.abort_ratio + aborted / count) / 2
        return aborted


@dataclass(slots=True)
class BatchPart:
    """s-transactions of one batch with a common decision.

    Attributes
    ----------
    labels : list
        Labels of its s-transactions, returned by `group_of`.
    transactions : list of STransaction
        In any order; also in the planner, if there is one.
    planner : Planner or None
        None before planning has begun.
    most : int
        Number of s-transactions with the first of several labels; 0 if there is one label.
    """

    labels: list[Hashable]
    transactions: list[STransaction] = field(default_factory=list)
    planner: Planner | None = None
    most: int = 0

    def planned(self) -> Planner:
        """Return the planner, with all s-transactions added."""
        if self.planner is None:
            self.planner = Planner()
            for transaction in self.transactions:
                self.planner.add(transaction)
        return self.planner

    def absorb(self, other: BatchPart) -> None:
        """Merge another part into this one; the label of most s-transactions comes first."""
        self.most = self.most or len(self.transactions)
        more = len(other.transactions) > self.most
        self.labels = other.labels + self.labels if more else self.labels + other.labels
        self.most = max(self.most, len(other.transactions))
        self.planned().absorb(other.planned())
        self.transactions += other.transactions

    def sort(self) -> None:
        """Sort the s-transactions by their places."""
        self.transactions.sort(key=lambda transaction: transaction.at)


@dataclass(frozen=True, slots=True)
class PartReport:
    """Decision about a part of a batch, and its results.

    Attributes
    ----------
    labels : tuple
        Labels of its s-transactions, returned by `group_of`; (None,) without that function.
        Several, if their s-transactions access common keys.
    decision : Decision
    properties : Properties
        Dependencies are 0 if no TPG was built.
    aborted : int
        Number of aborted s-transactions.
    redone : int
        Number of rollbacks of operations that had run.
    runs : int
        Number of runs of operations by the TPG; at most `RUNS_MAX` times the number of operations.
    given_up : int
        Number of s-transactions, the latest ones, that were run in the serial order in the end
        because the TPG would have exceeded the bound; 0 if it was explored to its end.
    """

    labels: tuple[Hashable, ...]
    decision: Decision
    properties: Properties
    aborted: int
    redone: int
    runs: int = 0
    given_up: int = 0


def labelled(
    transactions: Iterable[STransaction], group_of: Callable[[STransaction], Hashable]
) -> list[BatchPart]:
    """Return a part per label that `group_of` gives.

    Raises
    ------
    DefinitionError
        If a label is not hashable.
    Exception
        An exception of `group_of`, with a note that names the s-transaction.
    """
    parts: dict[Hashable, BatchPart] = {}
    for transaction in transactions:
        try:
            label = group_of(transaction)
        except Exception as error:
            error.add_note(f"raised by group_of for {transaction!r}")
            raise
        try:
            part = parts.setdefault(label, BatchPart([label]))
        except TypeError as error:
            raise DefinitionError(
                f"group_of gave {label!r} for {transaction!r}: a label has to be hashable"
            ) from error
        part.transactions.append(transaction)
    return list(parts.values())


def disjoint(parts: Iterable[BatchPart]) -> list[BatchPart]:
    """Merge parts that may access a common key; O(keys of all)."""
    all_parts = list(parts)
    joined = list(range(len(all_parts)))  # union-find: per part, itself or its parent

    def root(number: int) -> int:
        while joined[number] != number:
            joined[number] = number = joined[joined[number]]
        return number

    first_at: dict[tuple[SharedTable, Hashable], int] = {}
    on_table: dict[SharedTable, list[int]] = {}
    whole: set[SharedTable] = set()
    for number, part in enumerate(all_parts):
        for table, lists in part.planned().tables.items():
            on_table.setdefault(table, []).append(number)
            if lists.whole:
                whole.add(table)
            for key in lists.of:
                joined[root(number)] = root(first_at.setdefault((table, key), number))
    for table in whole:
        for number in on_table[table]:
            joined[root(number)] = root(on_table[table][0])
    merged: dict[int, BatchPart] = {}
    for number, part in enumerate(all_parts):
        other = merged.setdefault(root(number), part)
        if other is not part:
            other.absorb(part)
    return list(merged.values())


# -- run of a part of a batch ----------------------------------------------------------------------


class PartRun:
    """Run of a part of a batch: its earliest s-transactions alone, the rest by a TPG.

    Attributes
    ----------
    part : BatchPart
    decision : Decision
    properties : Properties
    execution : GraphExecution or None
        Execution of the s-transactions that are not run alone.
    alone : int
        Number of the earliest s-transactions that were run alone.
    alone_s, rest_s : float
        Seconds spent on these, and on the s-transactions that the TPG has given up.
    """

    def __init__(self, part: BatchPart, known: PartStatistics, state: SharedState):
        self.part = part
        self.decision = SERIAL
        self.properties = self._properties(known)
        self.execution: GraphExecution | None = None
        self.alone = 0
        self.alone_s = 0.0
        self.rest_s = 0.0
        self._known = known
        self._state = state
        self._written: list[tuple[At, Writes]] = []

    def _properties(self, known: PartStatistics) -> Properties:
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


# -- outcomes of the s-transactions of a TPG that was run ------------------------------------------


def outcome_of(node: GraphTransaction, state: SharedState) -> Outcome:
    """Return the outcome of an s-transaction in the serial order.

    REQUIRES: the state has the versions of all earlier s-transactions, and is not changed.
    """
    if not node.failures:
        results: list[object] = []
        for vertex in node.vertices:
            assert vertex.effect is not None
            results.append(vertex.effect.result)
        return Outcome(tuple(results))
    error = _first_error(node, state)
    assert error is not None
    return Outcome.of_error(error)


def _first_error(node: GraphTransaction, state: SharedState) -> Exception | None:
    """Return the error of the first operation, in statement order, that fails.

    Operations that were not run because a later one had failed are run now; their writes are
    discarded.
    """
    read = state.reader(node.transaction.at)
    writes: Writes = []
    failed: Exception | None = None
    for vertex in node.vertices:
        if vertex.failure is not None and not node.clash:
            return vertex.failure
        if vertex.passed and not node.clash:
            continue
        failed = failed or vertex.failure
        assert vertex.operation is not None
        try:
            writes += vertex.operation.evaluate(read).writes
        except Exception as error:  # any error of the user's functions
            return error
    try:
        check_distinct(writes)
    except Exception as error:
        return error
    return failed or _any_failure(node.vertices)


def _any_failure(vertices: list[Vertex]) -> Exception | None:
    return next((vertex.failure for vertex in vertices if vertex.failure is not None), None)


# -- pilots: s-transactions that are run alone and measured before the decision about the rest -----

PILOTS_MAX = 16
"""Maximum number of pilots: the earliest s-transactions of a part, run alone and measured."""

PILOTS_MIN = 3
"""Number of pilots that suffices if each of them clearly favours a TPG."""

CLEARLY = 4.0
"""Ratio of the threads' gain to the costs of planning and exploring that counts as clear."""

UNMEASURED_MAX = 128
"""Number of s-transactions between measurements while TPGs are best."""


def pilots_due(known: PartStatistics, count: int, thresholds: Thresholds, threads: int) -> int:
    """Return the maximum number of the next `count` s-transactions to measure.

    Where a TPG is best, pilots keep other threads idle, so they are rare. Where the serial order is
    best, they are run alone anyway.
    """
    if (
        known.compute_us is not None
        and known.unmeasured + count < UNMEASURED_MAX
        and not _is_serial(known.compute_us, known.parallel_share, thresholds, threads)
    ):
        return 0
    return min(PILOTS_MAX, (count + 3) // 4)


class Pilots:
    """Measurements of s-transactions that were run alone.

    Parameters
    ----------
    thresholds : Thresholds
    threads : int

    Attributes
    ----------
    are_enough : bool
        Whether all of them favour a TPG so clearly that no more are needed.
    """

    def __init__(self, thresholds: Thresholds, threads: int):
        self.are_enough = False
        self._thresholds = thresholds
        self._threads = threads
        self._measured: list[tuple[float, float]] = []
        self._clear = 0

    def add(self, operations: int, wall_us: float, cpu_us: float) -> None:
        """Record the wall-clock and CPU time of a pilot with this number of operations."""
        if not operations:
            return
        one = wall_us / operations, cpu_us / operations
        self._measured.append(one)
        self._clear += not _is_serial(*self._told(*one), self._thresholds, self._threads, CLEARLY)
        self.are_enough = self._clear == len(self._measured) >= PILOTS_MIN

    def tell(self, known: PartStatistics) -> None:
        """Add the mean to `known`, without the slowest few, which may have been interrupted."""
        self._measured.sort()
        kept = self._measured[: len(self._measured) - len(self._measured) // 8]
        if kept:
            wall_us, cpu_us = (sum(each) / len(kept) for each in zip(*kept, strict=True))
            known.measured(*self._told(wall_us, cpu_us))

    def _told(self, wall_us: float, cpu_us: float) -> tuple[float, float]:
        """Return the duration of a function, and the share of it that other threads could use.

        The share is 1 if threads run Python code in parallel, else that of the time spent waiting.
        """
        share = 1.0 if threads_run_python_at_once() else max(1 - cpu_us / wall_us, 0.0)
        return max(wall_us - self._thresholds.serial_us, 0.0), share


def _is_serial(
    compute_us: float, share: float, thresholds: Thresholds, threads: int, times: float = 1.0
) -> bool:
    properties = Properties(compute_us=compute_us, parallel_share=share)
    return serial_is_fastest(properties, thresholds, threads, times)


# -- serial execution of the rest of a TPG that was given up ---------------------------------------


def run_rest(execution: GraphExecution, written: list[tuple[At, Writes]]) -> int:
    """Run the s-transactions unsettled when an execution gave up, and set their outcomes.

    s-transactions that have ended before all unsettled ones stay as they are: in the serial order,
    later ones do not change them. From the earliest unsettled s-transaction on, all versions are
    removed, and the s-transactions are run one after the other: each operation once.

    Parameters
    ----------
    execution : GraphExecution
        At its end: no worker runs any of its operations.
    written : list
        The writes are appended to it.

    Returns
    -------
    int
        Number of s-transactions that were run, the latest ones; 0 if the execution did not give up.
    """
    rest = _unsettled(execution.graph.nodes) if execution.gave_up else []
    for node in rest:
        for vertex in node.vertices:
            execution.take_back(vertex)
    state = execution.state
    for node in rest:
        transaction = node.transaction
        at = transaction.at
        writes, transaction.outcome = evaluate(_planned(node), state.reader(at))
        written.append((at, writes))
        state.write(writes, at)
    return len(rest)


def _unsettled(nodes: list[GraphTransaction]) -> list[GraphTransaction]:
    """Return the s-transactions from the earliest one on that has not ended."""
    for number, node in enumerate(nodes):
        if not node.has_ended:
            return nodes[number:]
    return []


def _planned(node: GraphTransaction) -> STransaction:
    """Return an s-transaction with the planned operations, whose computed keys are recorded."""
    transaction = node.transaction
    operations = tuple(v.operation for v in node.vertices if v.operation is not None)
    return STransaction(transaction.at, transaction.type, transaction.params, operations)
