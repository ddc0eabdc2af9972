"""Strict two-phase locking over a stream (Wang et al., section 5.2)."""

from __future__ import annotations

from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling._scheduler import evaluate
from activedb.scheduling._state import State
from activedb.scheduling.locking._insertion import locks_of
from activedb.scheduling.locking._lock_table import LockTable, insert_all
from activedb.scheduling.locking._locking import Locking
from activedb.scheduling.locking._modes import FIGURE_3_S2PL
from activedb.scheduling.locking._pool import Pool
from activedb.scheduling.locking._reading import resolving

__all__ = ["S2PL"]


class S2PL(Locking):
    """Scheduler that locks all possible accesses of an s-transaction from its start to its end.

    The locks of all s-transactions are inserted in timestamp order before any operation runs (phase
    I), and an s-transaction begins when all of its own locks are granted. They are released when it
    has ended (phase II).

    See `Locking` for its parameters.
    """

    name = "s2pl"

    def run(self, state: State) -> None:
        """Run all s-transactions added; O(n log n) for n locks, besides the operations.

        Raises
        ------
        AccessError
            If two s-transactions have the same place.
        BaseException
            An exception of a function that is not an `Exception`, such as KeyboardInterrupt, or an
            exception of the gate.

        After an error some s-transactions have no outcome; none of them is run later.
        """
        added = self._take_added()
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
