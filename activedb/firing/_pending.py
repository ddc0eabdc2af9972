"""Firings that are recorded and not done, as people look at them."""

from __future__ import annotations

from dataclasses import dataclass

from activedb.events import Occurrence, decode
from activedb.store.journals import Journal

__all__ = ["PendingFiring", "read_pending"]


@dataclass(frozen=True, slots=True)
class PendingFiring:
    """A rule that is due in a top-level transaction of its own.

    Attributes
    ----------
    firing : str
        Its name, the same whenever it is started again.
    run : str
        Name of the top-level transaction, or part of a stream's batch, that triggered it.
    rule : str
    occurrence : Occurrence
        What triggered it.
    """

    firing: str
    run: str
    rule: str
    occurrence: Occurrence


def read_pending(journal: Journal) -> list[PendingFiring]:
    """Firings that are recorded and not done, those of the oldest occurrence first."""
    found = [
        PendingFiring(row["firing"], row["run"], row["rule"], decode(row["occurrence"]))
        for row in journal.pending()
    ]
    return sorted(found, key=lambda pending: (pending.occurrence.us, pending.firing))
