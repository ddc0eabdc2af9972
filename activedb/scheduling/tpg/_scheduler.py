"""Scheduler: planning, decision and execution of batches by task precedence graphs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

from activedb.errors import DefinitionError
from activedb.scheduling._operations import Effect, STransaction
from activedb.scheduling._scheduler import check_threads, wait_for
from activedb.scheduling._state import SharedState
from activedb.scheduling.tpg._execution import GraphExecution, OnMove
from activedb.scheduling.tpg._exploration import Take
from activedb.scheduling.tpg._groups import OperationGroup, group, ungroup
from activedb.scheduling.tpg._model import (
    SERIAL,
    Decision,
    Properties,
    Thresholds,
    decide,
    properties_of,
    serial_is_fastest,
)
from activedb.scheduling.tpg._parts import (
    BatchPart,
    PartReport,
    PartRun,
    PartStatistics,
    PhaseTimes,
    Stopwatch,
    disjoint,
    labelled,
)
from activedb.scheduling.tpg._planning import Planner, TaskGraph, refine
from activedb.scheduling.tpg._vertex import Vertex

__all__ = ["TPG", "by_tables"]


LABELS_MAX = 1024
"""Maximum number of groups of s-transactions with stored statistics."""


class TPG:
    """Scheduler that runs batches by task precedence graphs (Mao et al., sections 3 to 6).

    Parameters
    ----------
    threads : int
        Maximum number of threads, including the one that calls `run`.
    decision : Decision or mapping, optional
        Scheduling of all batches, or per group of s-transactions. By default, and for groups
        missing in the mapping, the decision model decides on each batch.
    group_of : callable, optional
        ``group_of(transaction)`` returns a hashable label of the s-transaction's group. Groups that
        access common keys are merged, and treated as the group with the most s-transactions.
        `by_tables` is one such function. It is called by `run`.
    thresholds : Thresholds, optional
        Thresholds of the decision model; `calibrate` measures them.
    on_move : callable, optional
        ``on_move(vertex, old, new, name)`` is called on every move of an operation; by many
        threads, but by one at a time.

    Attributes
    ----------
    last : tuple of PartReport
        The decisions of the last `run`, and their reasons.
    times : PhaseTimes
        Time spent by the threads of the last `run`, by phase.

    Raises
    ------
    DefinitionError
        If an argument is invalid.

    Examples
    --------
    >>> scheduler = TPG(threads=4)
    >>> scheduler = TPG(decision=Decision("breadth-first", "group", "lazy"))
    >>> scheduler = TPG(decision={"vip": Decision()}, group_of=lambda t: t.params["class"])
    """

    name = "tpg"

    def __init__(
        self,
        threads: int = 2,
        decision: Decision | Mapping[Hashable, Decision] | None = None,
        *,
        group_of: Callable[[STransaction], Hashable] | None = None,
        thresholds: Thresholds | None = None,
        on_move: OnMove | None = None,
    ):
        by_label = dict(decision) if isinstance(decision, Mapping) else {}
        fixed = None if isinstance(decision, Mapping) else decision
        if isinstance(decision, Mapping) and group_of is None:
            raise DefinitionError(
                "decisions per group need group_of, which returns the group of an s-transaction"
            )
        for one in (*by_label.values(), *([] if fixed is None else [fixed])):
            if not isinstance(one, Decision):
                raise DefinitionError(f"a decision is a Decision, not {one!r}")
        if group_of is not None and not callable(group_of):
            raise DefinitionError(f"group_of is a function, not {group_of!r}")
        if thresholds is not None and not isinstance(thresholds, Thresholds):
            raise DefinitionError(f"thresholds are Thresholds, not {thresholds!r}")
        self.threads = check_threads(threads)
        self.thresholds = Thresholds() if thresholds is None else thresholds
        self.last: tuple[PartReport, ...] = ()
        self.times = PhaseTimes()
        self._fixed = fixed
        self._by_label = by_label
        self._group_of = group_of
        self._on_move = on_move
        self._added: BatchPart | None = None
        self._planned_s = 0.0  # planning time of `add` since the last run
        self._known: dict[Hashable, PartStatistics] = {}

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction, in any order: the stream phase; O(references).

        With `group_of`, all planning happens in `run`: `add` calls no function of the user's, so no
        error leaves half of a batch.
        """
        if self._added is None:
            self._added = BatchPart([None])
            if self._group_of is None and self._expects_tpg(None):
                self._added.planner = Planner()
        self._added.transactions.append(transaction)
        if self._added.planner is not None:
            began_s = time.perf_counter()
            self._added.planner.add(transaction)
            self._planned_s += time.perf_counter() - began_s

    def discard(self) -> None:
        """Discard s-transactions that were added and not run."""
        self._added = None
        self._planned_s = 0.0

    def run(self, state: SharedState) -> None:
        """Run all s-transactions added: the transaction phase, the decision, the execution.

        If it raises, the s-transactions added are forgotten, have no outcome, and leave no versions
        in the state.

        Raises
        ------
        DefinitionError
            If `group_of` gives a label that is not hashable.
        BaseException
            An exception of `group_of`, or an exception of an operation's function that is not an
            `Exception`.
        """
        added, self._added = self._added, None
        parts = [] if added is None else [added]
        times, watch = PhaseTimes(plan_s=self._planned_s), Stopwatch()
        self._planned_s = 0.0
        runs: list[PartRun] = []
        try:
            if self._group_of is not None and added is not None:
                parts = labelled(added.transactions, self._group_of)
            for part in disjoint(parts) if len(parts) > 1 else parts:
                runs.append(PartRun(part, self._known_of(part.labels[0]), state))
            operations = sum(run.properties.operations for run in runs)
            workers = min(self.threads, max(operations, 1))
            for run in runs:
                self._start(run, state, workers)
            times.run_s = sum(run.alone_s for run in runs)
            times.plan_s += watch.lap_s() - times.run_s
            executions = [run.execution for run in runs if run.execution is not None]
            if executions:
                times.add(run_all(executions, workers))
            watch.lap_s()
            self.last = tuple(run.end() for run in runs)
            rest_s = sum(run.rest_s for run in runs)
            times.abort_s += rest_s
            times.explore_s += watch.lap_s() - rest_s
        except BaseException:
            for run in runs:
                run.take_back()
            raise
        finally:
            for run in runs:
                run.dissolve()
        times.plan_s += watch.lap_s()
        self.times = times

    # -- decisions -------------------------------------------------------------------------------

    def _expects_tpg(self, label: Hashable) -> bool:
        """Return whether planning ahead will be useful, according to earlier batches."""
        fixed = self._fixed_for(label)
        if fixed is not None:
            return not fixed.is_serial
        known = self._known.get(label)
        return (
            known is not None
            and known.compute_us is not None
            and not serial_is_fastest(
                Properties(compute_us=known.compute_us, parallel_share=known.parallel_share),
                self.thresholds,
                self.threads,
            )
        )

    def _fixed_for(self, label: Hashable) -> Decision | None:
        return self._fixed if self._fixed is not None else self._by_label.get(label)

    def _known_of(self, label: Hashable) -> PartStatistics:
        known = self._known.pop(label, None) or PartStatistics()
        self._known[label] = known  # most recently used last
        if len(self._known) > LABELS_MAX:
            del self._known[next(iter(self._known))]
        return known

    def _start(self, run: PartRun, state: SharedState, workers: int) -> None:
        """Decide about a part; run the s-transactions to be run alone, plan the TPG of the rest."""
        part = run.part
        decision = self._fixed_for(part.labels[0])
        if decision is None:
            part.sort()
            run.pilot(self.thresholds, self.threads)
            if serial_is_fastest(run.properties, self.thresholds, self.threads):
                decision = SERIAL
        left = len(part.transactions) - run.alone
        if not left or (decision is not None and decision.is_serial):
            part.sort()
            run.run_alone(left)
            run.decision = decision or SERIAL
            return
        planner = part.planned()
        planner.leave_out(run.alone)
        graph = refine(planner)
        run.properties = properties_of(planner, graph, run.properties)
        groups: list[OperationGroup] | None = None
        if decision is None:
            grouping = _LazyGroups(graph)
            decision = decide(run.properties, self.thresholds, grouping.is_cyclic)
            groups = grouping.kept(decision)
            run.properties = replace(run.properties, cyclic=grouping.cyclic)
        run.decision = decision
        run.execution = GraphExecution(graph, state, decision, workers, self._on_move, groups)


class _LazyGroups:
    """Groups that are only computed if the decision depends on them."""

    def __init__(self, graph: TaskGraph):
        self._graph = graph
        self._groups: list[OperationGroup] | None = None
        self.cyclic: bool | None = None

    def is_cyclic(self) -> bool:
        self._groups, self.cyclic = group(self._graph)
        return self.cyclic

    def kept(self, decision: Decision) -> list[OperationGroup] | None:
        """Return the groups if the decision uses groups; else remove them and return None."""
        if self._groups is not None and decision.unit != "group":
            ungroup(self._graph)
            return None
        return self._groups


def by_tables(transaction: STransaction) -> Hashable:
    """Return the set of tables that an s-transaction accesses, as the label of its group."""
    refs = (ref for operation in transaction.operations for ref in operation.refs)
    return tuple(sorted({ref.table.name for ref in refs}))


# -- threads that run TPGs ---------------------------------------------------------------------


_Finished = tuple[GraphExecution, Vertex, Effect | None, Exception | None]


def run_all(executions: Sequence[GraphExecution], threads: int) -> PhaseTimes:
    """Run TPGs that have no key in common to their end.

    The calling thread is one of the workers; the others have ended when this returns. An exception
    of an operation that is not an `Exception`, and any internal error, ends the run and is raised.

    Parameters
    ----------
    executions : sequence of GraphExecution
        Created for the same number of workers.
    threads : int
        Number of workers.

    Returns
    -------
    PhaseTimes
        Sum over all workers, without planning.
    """
    crew = _Crew(executions, threads)
    crew.run()
    if crew.error is not None:
        raise crew.error
    return crew.times()


class _Crew:
    """Workers, and the condition on which they wait.

    Latch: `_changed`, held while a worker is in a `GraphExecution`; the latches of versions are
    taken under it. It is not held while an operation is evaluated.

    Attributes
    ----------
    error : BaseException or None
        Error that ended the run early.
    """

    def __init__(self, executions: Sequence[GraphExecution], threads: int):
        self.error: BaseException | None = None
        self._executions = executions
        self._threads = threads
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self._stirs = 0
        self._seen = [-1] * threads  # of a waiting worker: _stirs when it began to wait
        self._times = [PhaseTimes() for _ in range(threads)]  # each worker changes only its own

    def run(self) -> None:
        """Work until all executions are done."""
        threads = [
            threading.Thread(target=self._work, args=(number,), name=f"tpg-{number}", daemon=True)
            for number in range(1, self._threads)
        ]
        try:
            for thread in threads:
                thread.start()
            self._work(0)
        except BaseException as error:  # raised in the calling thread outside `_work`
            self._stop(error)
        finally:
            watch = Stopwatch()
            wait_for(threads, self._stop)
            self._times[0].wait_s += watch.lap_s()

    def times(self) -> PhaseTimes:
        """Return the times of the workers by phase. REQUIRES: all have ended."""
        found = PhaseTimes()
        for times in self._times:
            found.add(times)
        found.abort_s = sum(execution.aborts.seconds for execution in self._executions)
        found.explore_s = max(found.explore_s - found.abort_s, 0.0)  # explore_s includes aborts
        return found

    def _work(self, worker: int) -> None:
        times, ran_s = self._times[worker], time.perf_counter()
        try:
            finished: _Finished | None = None
            while True:
                with self._changed:
                    if finished is not None:
                        execution, vertex, effect, error = finished
                        execution.finish(worker, vertex, effect, error)
                    taken = self._take(worker)
                taken_s = time.perf_counter()
                times.explore_s += taken_s - ran_s
                if taken is None:
                    return
                execution, vertex = taken
                finished = (execution, vertex, *execution.evaluate(vertex))
                ran_s = time.perf_counter()
                times.run_s += ran_s - taken_s
        except BaseException as error:  # raised later by the calling thread
            self._stop(error)

    def _take(self, worker: int) -> tuple[GraphExecution, Vertex] | None:
        """Return the next operation, waiting if needed; None at the end. REQUIRES: `_changed`."""
        count = len(self._executions)
        while self.error is None:
            done = 0
            for offset in range(count):
                execution = self._executions[(worker + offset) % count]
                taken = execution.take(worker)
                if isinstance(taken, Vertex):
                    self._notify(execution)
                    return execution, taken
                done += taken is Take.DONE
            self._notify(None)
            if done == count:
                return None
            times, watch = self._times[worker], Stopwatch()
            self._wait(worker)
            waited_s = watch.lap_s()
            times.wait_s += waited_s
            times.explore_s -= waited_s  # `_work` adds all the time that this method takes
        return None

    def _notify(self, taken_from: GraphExecution | None) -> None:
        """Wake the waiting workers if there may be an operation for them.

        Workers are not woken if the only operation available was just taken from `taken_from`.
        """
        for execution in self._executions:
            if execution.may_have_work:
                execution.may_have_work = False
                if execution is not taken_from or execution.exploration.feeds_others():
                    self._stirs += 1
                    if self._waiting:
                        self._changed.notify_all()

    def _wait(self, worker: int) -> None:
        self._seen[worker] = self._stirs
        idle = self._seen.count(self._stirs) == self._threads
        assert not idle, "all workers wait for each other"
        self._waiting += 1
        self._changed.wait()
        self._waiting -= 1
        self._seen[worker] = -1

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            if self.error is None:
                self.error = error
            self._changed.notify_all()
