"""Standing of a batch, and its derivation in both directions, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from activedb.batches._composite import composite
from activedb.batches._lineage import Lineage
from activedb.batches._records import Batch, State
from activedb.spelling import listed

__all__ = ["BatchLineage", "Standing", "lineage_of", "standing"]


class Standing(StrEnum):
    """Recorded standing of a batch."""

    WAITING = "waiting"
    """No transaction has used it yet."""
    IN_PROCESS = "in process"
    """All transactions that it has triggered stand, and more are to come."""
    COMPLETE = "complete"
    """All transactions that it triggers stand."""
    FAILED = "failed"
    """A transaction that it has triggered failed, and none was compensated."""
    PARTIALLY_DROPPED = "partially dropped"
    """Some transactions that it has triggered are compensated, others stand or are to come."""
    DROPPED = "dropped"
    """All transactions that it has triggered are compensated."""
    WITHDRAWN = "withdrawn"
    """The transaction that produced it is compensated."""


@dataclass(frozen=True, slots=True)
class BatchLineage:
    """Derivation of a batch: its ancestors and its descendants.

    Attributes
    ----------
    batch : Batch
    standing : Standing
    sources : tuple of str
        Source batches that it is derived from.
    made_of, made_by : tuple of str
        All batches, and all transactions, before it.
    triggered : tuple of str
        Its composite transaction.
    derived : tuple of str
        All batches after it.
    """

    batch: Batch
    standing: Standing
    sources: tuple[str, ...]
    made_of: tuple[str, ...]
    made_by: tuple[str, ...]
    triggered: tuple[str, ...]
    derived: tuple[str, ...]

    def explain(self) -> list[str]:
        """Return the lineage as human-readable sentences."""
        lines = [f"{self.batch.id} is {self.standing}; it is derived from {listed(self.sources)}."]
        if self.batch.pieces:
            lines.append(f"It is formed of {listed(map(str, self.batch.pieces))}.")
        if self.made_by:
            lines.append(f"Made by {listed(self.made_by)}.")
        lines.append(f"It has triggered {listed(self.triggered)}.")
        if self.derived:
            lines.append(f"Derived from it: {listed(self.derived)}.")
        return lines

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {
            **self.batch.record(),
            "standing": str(self.standing),
            "sources": list(self.sources),
            "made_of": list(self.made_of),
            "made_by": list(self.made_by),
            "triggered": list(self.triggered),
            "derived": list(self.derived),
        }


def lineage_of(lineage: Lineage, id: str) -> BatchLineage:
    """Return the derivation of a batch; raise `NotRecorded` if there is none.

    O(edges found).
    """
    batch = lineage.batch(id)
    above = lineage.ancestors(id) - {id}
    return BatchLineage(
        batch,
        standing(lineage, id),
        lineage.sources_of(id),
        lineage.in_order(other for other in above if not lineage.is_transaction(other)),
        lineage.in_transaction_order(other for other in above if lineage.is_transaction(other)),
        composite(lineage, id),
        lineage.derived_from(id),
    )


def standing(lineage: Lineage, id: str) -> Standing:
    """Return the standing of a batch; raise `NotRecorded` if there is none.

    O(edges of all that follows from it).
    """
    batch = lineage.batch(id)
    if batch.producer and not lineage.transaction(batch.producer).is_live:
        return Standing.WITHDRAWN
    states = {lineage.transaction(each).state for each in composite(lineage, id)}
    after = (other for other in lineage.descendants(id) if not lineage.is_transaction(other))
    more = any(map(lineage.is_still_due, after))
    if State.COMPENSATED in states or batch.is_withdrawn:
        is_all = states <= {State.COMPENSATED} and not more
        return Standing.DROPPED if is_all else Standing.PARTIALLY_DROPPED
    if State.FAILED in states:
        return Standing.FAILED
    if not more:
        return Standing.COMPLETE
    return Standing.IN_PROCESS if states else Standing.WAITING
