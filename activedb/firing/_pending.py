"""Listing of firings that are recorded and not done."""

from __future__ import annotations

from dataclasses import dataclass

from activedb.events import Occurrence, decode
from activedb.store.journals import Journal

__all__ = ["PendingFiring", "read_pending"]


@dataclass(frozen=True, slots=True)
class PendingFiring:
    """Recorded rule that is due to run in a separate top-level transaction.

    Attributes
    ----------
    firing : str
        Name of the firing, the same at every restart.
    run : str
        Name of the top-level transaction, or part of a stream's batch, that triggered it.
    rule : str
    occurrence : Occurrence
        The occurrence that triggered the rule.
    """

    firing: str
    run: str
    rule: str
    occurrence: Occurrence


def read_pending(journal: Journal) -> list[PendingFiring]:
    """Return firings that are recorded and not done, oldest occurrence first."""
    found = [
        PendingFiring(row["firing"], row["run"], row["rule"], decode(row["occurrence"]))
        for row in journal.pending()
    ]
    return sorted(found, key=lambda pending: (pending.occurrence.us, pending.firing))
