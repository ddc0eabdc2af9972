"""Parts of a batch: s-transactions with a common decision."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field

from activedb.errors import DefinitionError
from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling._tables import SharedTable
from activedb.scheduling.tpg._decision import Decision
from activedb.scheduling.tpg._planning import Planner
from activedb.scheduling.tpg._properties import Properties

__all__ = ["Part", "PartReport", "PartStatistics", "disjoint", "labelled"]


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
            aborted += not transaction.outcome.committed
        if count:
            self.abort_ratio = (self.abort_ratio + aborted / count) / 2
        return aborted


@dataclass(slots=True)
class Part:
    """s-transactions of one batch with a common decision.

    Attributes
    ----------
    labels : list
        Labels of its s-transactions, returned by `group_of`.
    transactions : list of STransaction
        In any order.
    planner : Planner or None
        None before planning has begun.
    most : int
        Number of s-transactions with the first of several labels; 0 if there is one label.
    """

    labels: list[Hashable]
    transactions: list[STransaction] = field(default_factory=list)
    planner: Planner | None = None
    most: int = 0

    def add(self, transaction: STransaction) -> None:
        """Add an s-transaction."""
        self.transactions.append(transaction)
        if self.planner is not None:
            self.planner.add(transaction)

    def planned(self) -> Planner:
        """Return the planner, with all s-transactions added."""
        if self.planner is None:
            self.planner = Planner()
            for transaction in self.transactions:
                self.planner.add(transaction)
        return self.planner

    def absorb(self, other: Part) -> None:
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
) -> list[Part]:
    """Return a part per label that `group_of` gives.

    Raises
    ------
    DefinitionError
        If a label is not hashable.
    Exception
        An exception of `group_of`, with a note that names the s-transaction.
    """
    parts: dict[Hashable, Part] = {}
    for transaction in transactions:
        try:
            label = group_of(transaction)
        except Exception as error:
            error.add_note(f"raised by group_of for {transaction!r}")
            raise
        try:
            part = parts.setdefault(label, Part([label]))
        except TypeError as error:
            raise DefinitionError(
                f"group_of gave {label!r} for {transaction!r}: a label has to be hashable"
            ) from error
        part.add(transaction)
    return list(parts.values())


def disjoint(parts: Iterable[Part]) -> list[Part]:
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
    merged: dict[int, Part] = {}
    for number, part in enumerate(all_parts):
        other = merged.setdefault(root(number), part)
        if other is not part:
            other.absorb(part)
    return list(merged.values())
