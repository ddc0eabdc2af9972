"""Strict two-phase locking over a stream (Wang et al., section 5.2)."""

from __future__ import annotations

from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling._scheduler import evaluate
from activedb.scheduling._state import State
from activedb.scheduling.locking._gate import Gate
from activedb.scheduling.locking._insertion import Granularity, check_granularity, locks_of
from activedb.scheduling.locking._lock_table import LockTable, insert_all
from activedb.scheduling.locking._modes import FIGURE_3_S2PL
from activedb.scheduling.locking._pool import Pool, check_threads
from activedb.scheduling.locking._reading import resolving

__all__ = ["S2PL"]


class S2PL:
    """Locks on all that an s-transaction may access, from before its first operation to its end.

    The locks of all s-transactions are inserted in the order of time before anything runs (phase
    I), and an s-transaction begins when all of its own are granted. They are released when it has
    ended (phase II).

    Parameters
    ----------
    granularity : {"table", "row"}
        What is locked.
    threads : int
        How many s-transactions run at a time, at most; those that wait for locks count.
    gate : Gate, optional
        Chooses the order of accesses: `Turns`, for tests of interleavings.
    """

    name = "s2pl"

    def __init__(self, granularity: str = "row", *, threads: int = 4, gate: Gate | None = None):
        self.granularity: Granularity = check_granularity(granularity)
        self.threads = check_threads(threads)
        self._gate = gate
        self._added: list[STransaction] = []

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction; in any order."""
        self._added.append(transaction)

    def run(self, state: State) -> None:
        """Run what was added; O(n log n) for n locks, besides the operations.

        Raises
        ------
        AccessError
            If two s-transactions have the same place.
        BaseException
            What a function raises that is no `Exception`, such as KeyboardInterrupt, and what the
            gate raises.

        After an error some s-transactions have no outcome; none of them is run later.
        """
        added, self._added = self._added, []
        added.sort(key=lambda t: t.at)
        locks = LockTable(FIGURE_3_S2PL, self._gate)
        needed = insert_all(added, locks, lambda t: locks_of(t, self.granularity))
        pool = Pool(self.threads, locks=locks, gate=self._gate)

        def work(transaction: STransaction) -> None:
            at = transaction.at
            locks.request(at, needed[transaction])
            writes, outcome = evaluate(transaction, resolving(state.reader(at), at, pool))
            pool.check()
            if writes:
                pool.access(at, "write")
                state.write(writes, at)
            transaction.outcome = outcome
            locks.release(at)

        pool.run(list(needed), work)
