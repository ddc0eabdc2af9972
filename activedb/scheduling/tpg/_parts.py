"""Parts of a batch: s-transactions that are decided about together."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling._scheduler import run_alone
from activedb.scheduling._state import State
from activedb.scheduling.tpg._decision import Decision
from activedb.scheduling.tpg._model import Thresholds, threads_run_python_at_once
from activedb.scheduling.tpg._planning import Planner
from activedb.scheduling.tpg._properties import Properties

__all__ = ["Known", "Part", "PartReport", "disjoint"]

PILOTS_MAX = 16
"""So many of the earliest s-transactions of a part are run alone at most, to be measured."""


@dataclass(slots=True)
class Known:
    """What former batches tell of a part: each batch counts as much as all before it.

    Attributes
    ----------
    compute_us, parallel_share, abort_ratio : float or None
        See `Properties`; None: nothing is known.
    """

    compute_us: float | None = None
    parallel_share: float = 0.0
    abort_ratio: float = 0.0

    def measured(self, compute_us: float, parallel_share: float) -> None:
        """Take a measurement."""
        if self.compute_us is None:
            self.compute_us, self.parallel_share = compute_us, parallel_share
        else:
            self.compute_us = (self.compute_us + compute_us) / 2
            self.parallel_share = (self.parallel_share + parallel_share) / 2

    def ended(self, transactions: Iterable[STransaction]) -> int:
        """Take the outcomes of a batch; how many aborted."""
        aborted = count = 0
        for transaction in transactions:
            assert transaction.outcome is not None
            count += 1
            aborted += not transaction.outcome.committed
        if count:
            self.abort_ratio = (self.abort_ratio + aborted / count) / 2
        return aborted


@dataclass(slots=True)
class Part:
    """S-transactions of one batch that are decided about together.

    Attributes
    ----------
    labels : list
        What `group_of` has called them.
    transactions : list of STransaction
        In any order.
    planner : Planner or None
        None: nothing was planned so far.
    """

    labels: list[Hashable]
    transactions: list[STransaction] = field(default_factory=list)
    planner: Planner | None = None

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction."""
        self.transactions.append(transaction)
        if self.planner is not None:
            self.planner.add(transaction)

    def planned(self) -> Planner:
        """The planner, with all s-transactions in it."""
        if self.planner is None:
            self.planner = Planner()
            for transaction in self.transactions:
                self.planner.add(transaction)
        return self.planner

    def absorb(self, other: Part) -> None:
        """Take all that another one has; the labels of the one that has more come first."""
        more = len(other.transactions) > len(self.transactions)
        self.labels = other.labels + self.labels if more else self.labels + other.labels
        self.planned().absorb(other.planned())
        self.transactions += other.transactions

    def sort(self) -> None:
        """Bring the s-transactions into their order."""
        self.transactions.sort(key=lambda transaction: transaction.at)

    def pilot(self, state: State, thresholds: Thresholds) -> tuple[int, float, float]:
        """Run the earliest s-transactions alone, and measure them. REQUIRES: `sort`.

        Returns
        -------
        count : int
            How many were run; no other one is earlier.
        compute_us : float
            What an operation of theirs takes.
        parallel_share : float
            Which share of that another thread could use: all, if threads run Python code at once,
            else the time in which this one has waited.
        """
        count = min(PILOTS_MAX, (len(self.transactions) + 3) // 4)
        wall, cpu = time.perf_counter(), time.thread_time()
        for transaction in self.transactions[:count]:
            run_alone(transaction, state)
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
        operations = sum(len(transaction.operations) for transaction in self.transactions[:count])
        compute_us = max(wall * 1e6 / max(operations, 1) - thresholds.serial_us, 0.0)
        waited = 1 - min(cpu / wall, 1.0) if wall else 0.0
        return count, compute_us, 1.0 if threads_run_python_at_once() else waited


@dataclass(frozen=True, slots=True)
class PartReport:
    """What was decided about a part of a batch, and what came of it.

    Attributes
    ----------
    labels : tuple
        What `group_of` has called its s-transactions; None if there is no such function. Several,
        if they access common keys.
    decision : Decision
    properties : Properties
        Dependencies are 0 if no TPG was built.
    aborted : int
        How many s-transactions aborted.
    redone : int
        How often an operation was rolled back after it was run.
    """

    labels: tuple[Hashable, ...]
    decision: Decision
    properties: Properties
    aborted: int
    redone: int


def disjoint(parts: Iterable[Part]) -> list[Part]:
    """Merge parts that access a common key, as far as is known, until no two do."""
    merged: list[Part] = []
    for part in parts:
        for other in [other for other in merged if other.planned().meets(part.planned())]:
            merged.remove(other)
            part.absorb(other)
        merged.append(part)
    return merged
