"""Scheduler that runs s-transactions without shared state in other processes."""

from __future__ import annotations

import heapq
import time
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

from activedb.errors import DefinitionError
from activedb.functions import typed_text
from activedb.scheduling._operations import Outcome, STransaction
from activedb.scheduling._scheduler import Scheduler
from activedb.scheduling._state import SharedState
from activedb.scheduling._tables import Range, Ref, SharedTable
from activedb.scheduling.partitioned._task import (
    INSTEAD,
    Failed,
    PickledError,
    RaisedError,
    SentOutcome,
    SentPrograms,
    SortedKeys,
    StatePart,
    Task,
    TaskResult,
    dumped,
    loads,
    named,
    part_of,
    restored,
)

__all__ = ["Costs", "Pace", "Partitioned", "TaskRunner", "components"]


_OF_MODULES = (ImportError.__name__, ModuleNotFoundError.__name__)


class Partitioned:
    """Scheduler that runs s-transactions without shared state as tasks in other processes.

    Each task is run by a scheduler like the one given, over the part of the state that it needs.
    The result is the same as from that scheduler in this process: versions, outcomes, and the order
    of both. Batches for which tasks would not pay off, according to earlier batches, are run in
    this process.

    Parameters
    ----------
    inner : Scheduler
    runner : TaskRunner

    Attributes
    ----------
    sizes : tuple of int
        Number of s-transactions in each task of the last run; empty if it was run in this process.

    Raises
    ------
    DefinitionError
        If the scheduler cannot be pickled.
    """

    def __init__(self, inner: Scheduler, runner: TaskRunner):
        self.sizes: tuple[int, ...] = ()
        self._inner = inner
        self._runner = runner
        self._pace = Pace(runner.costs)
        self._added: list[STransaction] = []
        reason = dumped(inner, runner.dumps)
        if reason is not None:
            raise DefinitionError(
                f"scheduler {inner.name} cannot be sent to other processes ({reason}): give it by "
                f"its name, {INSTEAD}"
            )
        self._sent_inner = runner.dumps(inner)
        self._programs = SentPrograms(runner.dumps)

    @property
    def name(self) -> str:
        """Name of the tasks' scheduler."""
        return self._inner.name

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction, in any order."""
        self._added.append(transaction)

    def discard(self) -> None:
        """Discard s-transactions that were added and not run."""
        self._added = []
        self._inner.discard()

    def run(self, state: SharedState) -> None:
        """Run all s-transactions added, in this process or in tasks; O(references), plus the work.

        If it raises, the s-transactions added are forgotten. None of them has taken effect then,
        unless they were run in this process, or some of them were because a task lacked a module.

        Raises
        ------
        DefinitionError
            If a part of a program cannot be pickled, or cannot be read in another process.
        ActiveDBError
            If tasks could not be run.
        BaseException
            An exception of a function that is not an `Exception`.
        """
        added, self._added = self._added, []
        added.sort(key=attrgetter("at"))
        tasks = self._tasks(added)
        self.sizes = tuple(map(len, tasks))
        if tasks:
            self._run_tasks(tasks, state)
        else:
            self._run_here(added, state)

    def _run_here(self, transactions: Sequence[STransaction], state: SharedState) -> None:
        began_s = time.perf_counter()
        for transaction in transactions:
            self._inner.add(transaction)
        self._inner.run(state)
        self._pace.learn(size_of(transactions), time.perf_counter() - began_s)

    def _tasks(self, added: list[STransaction]) -> list[list[STransaction]]:
        """Return the s-transactions of each task; empty if the batch is better run here."""
        slots = self._runner.slots
        if slots < 2 or len(added) < 2 or not self._pace.may_be_worth(size_of(added)):
            return []
        tasks = packed(components(added), slots)
        return tasks if self._pace.is_worth([size_of(task) for task in tasks]) else []

    def _run_tasks(self, tasks: Sequence[list[STransaction]], state: SharedState) -> None:
        payloads = [self._payload(transactions, state) for transactions in tasks]
        answers = [
            _read(data, transactions)
            for data, transactions in zip(self._runner.run(payloads), tasks, strict=True)
        ]
        for transactions, done in zip(tasks, answers, strict=True):
            if any(_lacks_module(sent.error) for sent in done.outcomes):
                self._run_here(transactions, state)  # the module may exist in this process
            else:
                self._take(transactions, done, state)

    def _payload(self, transactions: list[STransaction], state: SharedState) -> bytes:
        part = part_of(state, transactions)
        sent = [self._programs.send(transaction) for transaction in transactions]
        try:
            return self._runner.dumps(Task(self._sent_inner, self._programs.pickled, part, sent))
        except Exception as error:
            raise self._cannot_be_sent(transactions, part, error) from error

    def _cannot_be_sent(
        self, transactions: list[STransaction], part: StatePart, error: Exception
    ) -> DefinitionError:
        """Return an error that names the part of a task that cannot be pickled."""
        for transaction in transactions:
            reason = dumped(self._programs.send(transaction), self._runner.dumps)
            if reason is not None:
                return DefinitionError(
                    f"{named(transaction)}: parameters or functions cannot be sent to other "
                    f"processes ({reason}): use only values that can be pickled, {INSTEAD}"
                )
        for table, keys in part:
            reason = dumped(keys, self._runner.dumps)
            if reason is not None:
                return DefinitionError(
                    f"table {table.name}: a key or value cannot be sent to other processes "
                    f"({reason}): keep values that can be pickled, {INSTEAD}"
                )
        return DefinitionError(f"s-transactions cannot be pickled together: {typed_text(error)}")

    def _take(self, transactions: list[STransaction], done: TaskResult, state: SharedState) -> None:
        """Apply the result of a task to the state and the outcomes of this process."""
        tables = list(state)
        for table, key, number, value in done.versions:
            tables[table].write(key, transactions[number].at, value)
        for transaction, sent in zip(transactions, done.outcomes, strict=True):
            transaction.outcome = _outcome(sent)
        self._pace.learn(size_of(transactions), done.seconds)


def _read(data: bytes, transactions: Sequence[STransaction]) -> TaskResult:
    """Return the result of a task; raise if the task failed."""
    try:
        answer = loads(data)
    except Exception as error:  # user-defined classes may raise anything
        answer = Failed(None, "their results cannot be read here", typed_text(error))
    if isinstance(answer, RaisedError):
        raise restored(answer.error)
    if isinstance(answer, Failed):
        numbers = range(len(transactions)) if answer.number is None else (answer.number,)
        names = ", ".join(sorted({named(transactions[number]) for number in numbers}))
        raise DefinitionError(
            f"{names}: {answer.what} ({answer.reason}): give other processes what they need, "
            f"{INSTEAD}"
        )
    assert isinstance(answer, TaskResult)
    return answer


def _lacks_module(error: PickledError | None) -> bool:
    """Return whether an error may stem from a module missing only in the other process."""
    return error is not None and (
        error.name in _OF_MODULES or _lacks_module(error.cause) or _lacks_module(error.context)
    )


def _outcome(sent: SentOutcome) -> Outcome:
    error = None if sent.error is None else restored(sent.error)
    return Outcome(sent.results, sent.reason, error)


# -- packing of components into tasks of similar size ----------------------------------------------


def size_of(transactions: Sequence[STransaction]) -> int:
    """Return the amount of work in some s-transactions: their number of operations."""
    return sum(len(transaction.operations) for transaction in transactions)


def packed(found: Sequence[list[STransaction]], tasks_max: int) -> list[list[STransaction]]:
    """Distribute components over at most `tasks_max` non-empty lists; return the largest first.

    Each list is in the serial order. The largest component is assigned first, each to the smallest
    list: no list is longer than 4/3 of the optimum (Graham 1969). O(n log n).
    """
    by_size = sorted(found, key=size_of, reverse=True)
    lists: list[list[STransaction]] = [[] for _ in range(min(tasks_max, len(by_size)))]
    heap = [(0, number) for number in range(len(lists))]
    for component in by_size:
        size, number = heap[0]
        lists[number] += component
        heapq.heapreplace(heap, (size + max(size_of(component), 1), number))
    for transactions in lists:
        transactions.sort(key=lambda transaction: transaction.at)
    return sorted(lists, key=size_of, reverse=True)


# -- partition of s-transactions into sets that share no written state -------------------------


class _TableAccesses:
    """Accesses to a table, by the numbers of s-transactions.

    Attributes
    ----------
    of : dict
        Numbers of the s-transactions that access each key.
    written : set
        Keys that are written.
    whole : list
        s-transactions that may read any key of the table, or all keys of a range.
    any_writers : list
        s-transactions that may write any key.
    """

    __slots__ = ("any_writers", "of", "whole", "written")

    def __init__(self) -> None:
        self.of: dict[Hashable, list[int]] = {}
        self.written: set[Hashable] = set()
        self.whole: list[tuple[int, Ref]] = []
        self.any_writers: list[int] = []


class _DisjointSets:
    """Disjoint sets of numbers (union-find)."""

    def __init__(self, count: int):
        self._parents = list(range(count))

    def root(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    def join(self, numbers: Iterable[int]) -> None:
        first: int | None = None
        for number in numbers:
            root = self.root(number)
            if first is None:
                first = root
            elif root < first:  # the smallest number is the root of its set
                self._parents[first] = first = root
            else:
                self._parents[root] = first


def components(transactions: Sequence[STransaction]) -> list[list[STransaction]]:
    """Return sets of s-transactions of which none accesses a key that another set may write.

    This uses only the information available before they run: a computed key may be any key of its
    table. Keys that are never written connect no s-transactions.

    Parameters
    ----------
    transactions : sequence of STransaction
        In the serial order.

    Returns
    -------
    list of list of STransaction
        Each in the serial order; sorted by their first members.

    Notes
    -----
    O(references), plus O(log n) and the written keys in it for each range.
    """
    tables: dict[SharedTable, _TableAccesses] = {}
    for number, transaction in enumerate(transactions):
        for ref in transaction.writes():
            _enter(tables, number, ref, writes=True)
        for ref in transaction.reads():
            _enter(tables, number, ref, writes=False)
    joined = _DisjointSets(len(transactions))
    for table, accesses in tables.items():
        _join(joined, table, accesses)
    found: dict[int, list[STransaction]] = {}
    for number, transaction in enumerate(transactions):
        found.setdefault(joined.root(number), []).append(transaction)
    return list(found.values())


def _enter(
    tables: dict[SharedTable, _TableAccesses], number: int, ref: Ref, *, writes: bool
) -> None:
    accesses = tables.get(ref.table)
    if accesses is None:
        accesses = tables[ref.table] = _TableAccesses()
    if ref.is_whole:
        if writes:
            accesses.any_writers.append(number)
        else:
            accesses.whole.append((number, ref))
        return
    try:
        numbers = accesses.of.setdefault(ref.key, [])
    except Exception:
        return  # an invalid key; the operation fails when it runs
    if not numbers or numbers[-1] != number:
        numbers.append(number)
    if writes:
        accesses.written.add(ref.key)


def _join(joined: _DisjointSets, table: SharedTable, accesses: _TableAccesses) -> None:
    if accesses.any_writers:
        joined.join(accesses.any_writers)
        joined.join([accesses.any_writers[0], *(number for number, _ in accesses.whole)])
        for numbers in accesses.of.values():
            joined.join([accesses.any_writers[0], *numbers])
        return
    for key in accesses.written:
        joined.join(accesses.of[key])
    if not accesses.whole or not accesses.written:
        return
    written = SortedKeys(table, accesses.written)
    everything = [accesses.of[key][0] for key in accesses.written]
    joins_all: list[int] = []
    for number, ref in accesses.whole:
        if isinstance(ref.key, Range):
            joined.join([number, *(accesses.of[key][0] for key in written.within(ref.key))])
        else:
            joins_all.append(number)
    if joins_all:
        joined.join([*joins_all, *everything])


# -- interface of runners of tasks in other processes ------------------------------------------


class TaskRunner(Protocol):
    """Runner of tasks in other processes, several at once; it may run a task more than once."""

    @property
    def slots(self) -> int:
        """Number of tasks that run at once; with fewer than 2, tasks are not used."""
        ...

    @property
    def costs(self) -> Costs:
        """Costs of tasks; if 0, all batches with at least two parts are run in tasks."""
        ...

    def dumps(self, value: Any) -> bytes:
        """Pickle any value that can be sent, including functions outside modules."""
        ...

    def run(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Return the results of ``run_task(payload, dumps)`` for each payload, in their order.

        Raises
        ------
        ActiveDBError
            If a task could not be run.
        """
        ...


# -- cost model that decides whether tasks are worthwhile --------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """Overhead of tasks besides the work itself.

    Attributes
    ----------
    batch_s : float
        Seconds per batch: to start its tasks and to gather their results.
    operation_s : float
        Seconds per operation: to plan, send, and merge it, in the coordinating process.
    """

    batch_s: float
    operation_s: float


class Pace:
    """Measured duration of operations, in whichever process they ran.

    Attributes
    ----------
    operation_s : float or None
        Seconds per operation, with more weight on recent runs; None before the first run.
    """

    def __init__(self, costs: Costs):
        self.operation_s: float | None = None
        self._costs = costs

    def learn(self, operations: int, seconds: float) -> None:
        """Record that one process ran this number of operations in this many seconds."""
        if operations:
            each_s = seconds / operations
            self.operation_s = (
                each_s if self.operation_s is None else (self.operation_s + each_s) / 2
            )

    def may_be_worth(self, operations: int) -> bool:
        """Return whether tasks could pay off for this many operations with unlimited processes."""
        return self._gains(operations, 0)

    def is_worth(self, sizes: Sequence[int]) -> bool:
        """Return whether tasks of these sizes are expected to be faster than this process alone."""
        return len(sizes) > 1 and self._gains(sum(sizes), max(sizes))

    def _gains(self, operations: int, longest: int) -> bool:
        """Return whether the work done in parallel outweighs the cost of tasks; True if unknown."""
        if self.operation_s is None:
            return True
        costs = self._costs.batch_s + self._costs.operation_s * operations
        return (operations - longest) * self.operation_s >= costs
