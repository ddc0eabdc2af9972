"""Common base of the schedulers with locks."""

from __future__ import annotations

from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling.locking._gate import Gate
from activedb.scheduling.locking._insertion import Granularity, check_granularity
from activedb.scheduling.locking._pool import check_threads

__all__ = ["Locking"]


class Locking:
    """Scheduler whose s-transactions run on threads and lock the objects that they access.

    Parameters
    ----------
    granularity : {"table", "row"}
        Kind of objects locked.
    threads : int
        Maximum number of s-transactions that run at a time, including those that wait for locks.
    gate : Gate, optional
        Chooses the order of accesses: `Turns`, for tests of interleavings.
    """

    def __init__(self, granularity: str = "row", *, threads: int = 4, gate: Gate | None = None):
        self.granularity: Granularity = check_granularity(granularity)
        self.threads = check_threads(threads)
        self._gate = gate
        self._added: list[STransaction] = []

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction, in any order."""
        self._added.append(transaction)

    def discard(self) -> None:
        """Discard s-transactions that were added and not run."""
        self._added = []

    def _take_added(self) -> list[STransaction]:
        """Return the s-transactions to run and forget them, whatever the outcome of the run."""
        added, self._added = self._added, []
        return added
