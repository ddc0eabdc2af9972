"""Scheduling by low-water-marks (Wang et al., section 5.3, appendices E and F)."""

from __future__ import annotations

from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling._scheduler import evaluate
from activedb.scheduling._state import State
from activedb.scheduling._tables import Ref
from activedb.scheduling.locking._gate import Gate
from activedb.scheduling.locking._insertion import (
    Granularity,
    Lock,
    check_granularity,
    read_locks,
    write_locks_of,
)
from activedb.scheduling.locking._lock_table import LockTable, just_after
from activedb.scheduling.locking._modes import FIGURE_3_LWM
from activedb.scheduling.locking._pool import check_threads, run_in_order
from activedb.scheduling.locking._reading import resolving

__all__ = ["LWM"]


class LWM:
    """Reads wait for earlier writers alone, when they read; writes for them, when they take effect.

    Write locks are inserted as s-transactions are added, in any order. A read is granted once no
    older write lock is left on what it reads, and gets the version of its time, whatever has been
    written since. What is read is, of a computed key, its row, as soon as it is known, and not the
    table. What an s-transaction writes takes effect at its end, once its write locks are the
    oldest, and before they are released; if it aborts, nothing does.

    Parameters
    ----------
    granularity : {"table", "row"}
        What is locked.
    threads : int
        How many s-transactions run at a time, at most; those that wait count.
    gate : Gate, optional
        Chooses the order of accesses, for tests.
    """

    name = "lwm"

    def __init__(self, granularity: str = "row", *, threads: int = 4, gate: Gate | None = None):
        self.granularity: Granularity = check_granularity(granularity)
        self.threads = check_threads(threads)
        self._gate = gate
        self._begin()

    def _begin(self) -> None:
        self._added: list[tuple[STransaction, dict[Lock, None]]] = []
        self._locks = LockTable(FIGURE_3_LWM, self._gate)

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction, and insert its write locks; in any order."""
        locks = write_locks_of(transaction, self.granularity)  # read locks would block nobody
        self._locks.insert(transaction.at, locks)
        self._added.append((transaction, locks))

    def run(self, state: State) -> None:
        """Run what was added; O(n log n) for n locks, besides the operations.

        Raises
        ------
        BaseException
            What a function raises that is no `Exception`, such as KeyboardInterrupt; some
            s-transactions have no outcome then.
        """
        added, locks = self._added, self._locks
        if not added:
            return
        self._begin()
        added.sort(key=lambda pair: pair[0].at)  # the order in which threads take them
        locks.punctuate(just_after(added[-1][0].at))
        to_write = {transaction.at: needed for transaction, needed in added}

        def work(transaction: STransaction) -> None:
            at = transaction.at

            def wait(ref: Ref) -> None:
                locks.request(at, read_locks(ref, self.granularity))

            read = resolving(state.reader(at), at, before=wait, gate=self._gate)
            writes, outcome = evaluate(transaction, read)
            if writes:
                locks.request(at, to_write[at])
                if self._gate is not None:
                    self._gate.access(at, "write")
                state.write(writes, at)
            transaction.outcome = outcome
            locks.release(at)

        run_in_order(
            [transaction for transaction, _ in added],
            work,
            threads=self.threads,
            stop=locks.stop,
            gate=self._gate,
        )
