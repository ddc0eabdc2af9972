"""Interference: other batches that a compensation would affect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from activedb.batches._composite import composite
from activedb.batches._lineage import Lineage
from activedb.batches._requirements import Requirement
from activedb.spelling import listed

__all__ = [
    "Interference",
    "counts",
    "interference",
    "is_independent",
    "others_of",
    "shared_transactions",
]


@dataclass(frozen=True, slots=True)
class Interference:
    """A batch whose completion would be affected.

    Attributes
    ----------
    batch : str
        A source batch. If a derived batch is compensated, it may be an output or input batch, too.
    shared : tuple of str
        Transactions of its composite transaction that would be compensated.
    """

    batch: str
    shared: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {"batch": self.batch, "shared": list(self.shared)}

    def __str__(self) -> str:
        return f"{self.batch} would lose {listed(self.shared)}"


def counts(lineage: Lineage, transaction: str) -> bool:
    """Return whether the completion of batches depends on a transaction.

    It does not if the transaction is compensated already, or its program relaxes completion.
    """
    found = lineage.transaction(transaction)
    program = lineage.workflow.programs[found.program]
    return found.is_live and program.requires(Requirement.COMPLETION)


def interference(
    lineage: Lineage, transactions: Iterable[str], *, given_up: Iterable[str]
) -> tuple[Interference, ...]:
    """Return the batches whose completion the compensation of transactions affects.

    Parameters
    ----------
    lineage : Lineage
    transactions : iterable of str
        Transactions to compensate.
    given_up : iterable of str
        Batches, or transactions, that are to be dropped anyway; see `others_of`.

    Returns
    -------
    tuple of Interference
        Empty if the compensation is non-interfering (section 3).

    Notes
    -----
    O(batches found · edges of the descendants of each).
    """
    chosen = {id for id in transactions if counts(lineage, id)}
    found = []
    for batch in others_of(lineage, chosen, given_up=given_up):
        shared = lineage.in_transaction_order(chosen & lineage.descendants(batch))
        found.append(Interference(batch, shared))
    return tuple(found)


def others_of(
    lineage: Lineage, transactions: Iterable[str], *, given_up: Iterable[str]
) -> tuple[str, ...]:
    """Return the first other batches that transactions depend on; none follows from another.

    An *other batch*, source or derived, is neither given up, nor an ancestor of a node given up,
    nor derived from nodes given up alone. O(edges of the ancestors of the transactions, and of the
    descendants of nodes given up).
    """
    given = set(given_up)
    own = lineage.ancestors(given) | _following_alone(lineage, given)
    others: dict[str, None] = {}
    behind: set[str] = set()  # descendants of another batch
    for id in lineage.in_order(lineage.ancestors(transactions) - own):
        if any(other in behind for other in lineage.previous_of(id)):
            behind.add(id)
        elif not lineage.is_transaction(id):
            others[id] = None
            behind.add(id)
    return tuple(others)


def is_independent(lineage: Lineage, sources: str | Iterable[str]) -> bool:
    """Return whether compensating source batches in full is non-interfering (section 3)."""
    given = [sources] if isinstance(sources, str) else list(sources)
    return not interference(lineage, composite(lineage, given), given_up=given)


def shared_transactions(
    lineage: Lineage, first: str | Iterable[str], second: str | Iterable[str]
) -> tuple[str, ...]:
    """Return the common transactions of the composite transactions of two sets of batches.

    Two independent sets, where neither has a source of the other, have no common transaction that
    counts.
    """
    both = set(composite(lineage, first)) & set(composite(lineage, second))
    return lineage.in_transaction_order(both)


def _following_alone(lineage: Lineage, given: set[str]) -> set[str]:
    """Return some nodes with all nodes that follow from them alone."""
    found: set[str] = set()
    for id in lineage.in_order(lineage.descendants(given)):
        previous = lineage.previous_of(id)
        if id in given or (previous and found.issuperset(previous)):
            found.add(id)
    return found
