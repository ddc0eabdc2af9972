"""Scheduling by low-water marks (Wang et al., section 5.3, appendices E and F)."""

from __future__ import annotations

from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling._scheduler import evaluate
from activedb.scheduling._state import State
from activedb.scheduling.locking._insertion import (
    read_locks,
    write_locks_of,
)
from activedb.scheduling.locking._lock_table import LockTable, insert_all
from activedb.scheduling.locking._locking import Locking
from activedb.scheduling.locking._modes import FIGURE_3_LWM
from activedb.scheduling.locking._pool import Pool
from activedb.scheduling.locking._reading import resolving

__all__ = ["LWM"]


class LWM(Locking):
    """Scheduler that delays reads only for earlier writers, and writes only at commit.

    Write locks are inserted in advance, in any order. A read is granted once no older write lock is
    left on its object, and gets the version of its timestamp, whatever has been written since. For
    a computed key, it locks the row as soon as the key is known, not the table. The writes of an
    s-transaction take effect at its end, once its write locks are the oldest, and before they are
    released; if it aborts, none does.

    See `Locking` for its parameters.
    """

    name = "lwm"

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
        locks = LockTable(FIGURE_3_LWM, self._gate)
        # read locks would block no request
        to_write = insert_all(added, locks, lambda t: write_locks_of(t, self.granularity))
        pool = Pool(self.threads, locks=locks, gate=self._gate)

        def work(transaction: STransaction) -> None:
            at = transaction.at
            read = resolving(
                state.reader(at), at, pool, locks=lambda ref: read_locks(ref, self.granularity)
            )
            writes, outcome = evaluate(transaction, read)
            pool.check()
            if writes:
                pool.access(at, "write", to_write[transaction])
                state.write(writes, at)
            transaction.outcome = outcome
            locks.release(at)

        pool.run(sorted(to_write, key=lambda t: t.at), work)
