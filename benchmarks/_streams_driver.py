"""Driver of programs over events in batches, with the end time of each s-transaction.

All events of a batch are in memory, in columns, when its run begins; then they are made into
s-transactions, planned and run. An event's latency is from then to the end of its s-transaction.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from activedb.columns.program._run import ColumnRun
from activedb.scheduling import (
    At,
    Operation,
    Outcome,
    Program,
    Scheduler,
    SharedState,
    STransaction,
    build_s_transaction,
)
from benchmarks._streams_collector import frozen
from benchmarks._streams_loads import Batches

__all__ = ["Driven", "Stamped", "Waiting", "drive", "drive_columns", "percentile", "wait"]


def wait(wait_s: float) -> None:
    """Wait as for I/O: in the kernel, without the interpreter's lock."""
    select.select((), (), (), wait_s)


class Waiting(Operation):
    """An operation that waits as for an external service before it runs another operation."""

    __slots__ = ("_operation", "_wait_s")

    def __init__(self, operation: Operation, wait_s: float):
        super().__init__(operation.targets, operation.sources)
        self._operation = operation
        self._wait_s = wait_s

    def evaluate(self, read: Callable[[Any], Any]) -> Any:
        wait(self._wait_s)
        return self._operation.evaluate(read)


class Stamped(STransaction):
    """An s-transaction that records when it has ended.

    Attributes
    ----------
    ended_s : float
        Time of the end, by ``time.perf_counter``.
    """

    __slots__ = ("_outcome", "ended_s")

    @property
    def outcome(self) -> Outcome | None:
        """Outcome; None until it has ended."""
        return self._outcome

    @outcome.setter
    def outcome(self, outcome: Outcome | None) -> None:
        self._outcome = outcome
        self.ended_s = time.perf_counter()


@dataclass(slots=True)
class Driven:
    """Result of a run.

    Attributes
    ----------
    events, operations, aborted : int
    seconds : float
        Wall clock, from columns to committed state.
    latencies_s : list of float
        Latencies of events.
    per_batch : list of Driven
        Results of each batch.
    decision : str
        The last decision, of a scheduler that decides.
    """

    events: int = 0
    operations: int = 0
    aborted: int = 0
    seconds: float = 0.0
    latencies_s: list[float] = field(default_factory=list)
    per_batch: list[Driven] = field(default_factory=list)
    decision: str = ""

    @property
    def per_s(self) -> float:
        """Events per second."""
        return self.events / self.seconds

    def add(self, batch: Driven) -> None:
        """Add the result of a batch."""
        self.events += batch.events
        self.operations += batch.operations
        self.aborted += batch.aborted
        self.seconds += batch.seconds
        self.latencies_s += batch.latencies_s
        self.decision = batch.decision
        self.per_batch.append(batch)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of 100 values do not exceed."""
    return sorted(values)[max(math.ceil(percent / 100 * len(values)), 1) - 1]


def drive(
    program: Program,
    parts: Iterable[Any],
    scheduler: Scheduler,
    *,
    wait_s: float = 0.0,
    state: SharedState | None = None,
) -> Driven:
    """Run a program over batches by a scheduler that takes s-transactions one by one.

    Parameters
    ----------
    program : Program
    parts : iterable of GeneratedEvents
        A punctuation follows each.
    scheduler : Scheduler
    wait_s : float
        Waiting time of each operation.
    state : SharedState, optional
    """
    state = SharedState(program.tables) if state is None else state
    driven = Driven()
    with frozen():
        for part in parts:
            driven.add(_drive_batch(program, part, scheduler, wait_s, state, driven.events))
    return driven


def _drive_batch(
    program: Program,
    part: Any,
    scheduler: Scheduler,
    wait_s: float,
    state: SharedState,
    before: int,
) -> Driven:
    began_s = time.perf_counter()
    transactions = []
    for arrival, event in enumerate(part.occurrences(), before + 1):
        made = build_s_transaction(program, event, At(event.us, "", arrival))
        assert isinstance(made, STransaction), "the generator made an event that is refused"
        operations = made.operations
        if wait_s:
            operations = tuple(Waiting(operation, wait_s) for operation in operations)
        transaction = Stamped(made.at, made.type, made.params, operations)
        scheduler.add(transaction)
        transactions.append(transaction)
    scheduler.run(state)
    state.trim(At(int(part.us.max()) + 1, "", 0))
    seconds = time.perf_counter() - began_s
    return Driven(
        len(transactions),
        sum(len(t.operations) for t in transactions),
        sum(t.outcome is not None and not t.outcome.committed for t in transactions),
        seconds,
        [t.ended_s - began_s for t in transactions],
        decision=_decision(scheduler),
    )


def _decision(scheduler: Any) -> str:
    reports = getattr(scheduler, "last", ())
    return "; ".join(decision_name(report.decision) for report in reports)


def decision_name(decision: Any) -> str:
    """Return a short name of a decision."""
    if decision.explore == "serial":
        return "serial"
    return f"{decision.explore}, {decision.unit}, {decision.abort}"


def drive_columns(run: ColumnRun, batches: Batches) -> Driven:
    """Feed batches to a run over columns; all events of a batch end together."""
    driven = Driven()
    for batch, punctuation_us in batches:
        with frozen():
            began_s = time.perf_counter()
            results = run.feed(batch, punctuation_us)
            if punctuation_us is None:
                results = run.finish()
            seconds = time.perf_counter() - began_s
        driven.add(
            Driven(
                len(batch),
                seconds=seconds,
                aborted=len(results) - int(results.committed.sum()),
                latencies_s=[seconds] * len(batch),
                decision=results.decision,
            )
        )
    return driven
