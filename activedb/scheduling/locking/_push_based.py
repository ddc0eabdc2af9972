"""Execution without a scheduler: every access happens when it comes (Wang et al., section 2)."""

from __future__ import annotations

import sys
import threading
from typing import Any

from activedb.scheduling._operations import Writes
from activedb.scheduling._s_transactions import At, STransaction
from activedb.scheduling._scheduler import evaluate
from activedb.scheduling._state import State
from activedb.scheduling._tables import Ref
from activedb.scheduling.locking._gate import Choose, TurnGate
from activedb.scheduling.locking._lock_table import just_after
from activedb.scheduling.locking._pool import Pool, check_threads
from activedb.scheduling.locking._reading import resolving

__all__ = ["PushBased"]

_END = At(sys.maxsize, "", 0)


class PushBased:
    """Execution as in stream engines without stream transactions, to demonstrate the anomalies.

    Not for production use. s-transactions run on threads as they arrive. A read gets the value
    written last, in the order in which writes were made, whatever its timestamp: so it may read too
    late, and a writer may write too late.

    Parameters
    ----------
    order : callable, optional
        Chooses the next access, as for `TurnGate`; by default the threads' own timing decides.
    threads : int
        Maximum number of s-transactions that run at a time.

    Attributes
    ----------
    trace : list of (At, str)
        With `order`: the accesses of the last run, in that order.
    """

    name = "push-based"

    def __init__(self, order: Choose | None = None, *, threads: int = 4):
        self._order = order
        self.threads = check_threads(threads)
        self._added: list[STransaction] = []
        self.trace: list[tuple[At, str]] = []

    def add(self, transaction: STransaction) -> None:
        """Take an s-transaction; s-transactions begin in this order."""
        self._added.append(transaction)

    def discard(self) -> None:
        """Discard s-transactions that were added and not run."""
        self._added = []

    def run(self, state: State) -> None:
        """Run all s-transactions added. Versions are placed in the order of the writes."""
        added, self._added = self._added, []
        if not added:
            return
        gate = None if self._order is None else TurnGate(self._order)
        pool = Pool(self.threads, gate=gate)
        latch = threading.Lock()
        last = min(transaction.at for transaction in added)

        def write(writes: Writes, at: At) -> None:
            nonlocal last
            with latch:
                last = at if at > last else just_after(last)
                state.write(writes, last)

        def work(transaction: STransaction) -> None:
            at = transaction.at

            def newest(ref: Ref) -> Any:
                if ref.window_us is None:
                    return state.value(ref, _END)
                return state.of(ref.table).window(ref.key, at.us - ref.window_us, _END)

            writes, outcome = evaluate(transaction, resolving(newest, at, pool))
            pool.check()
            for item in writes:
                pool.access(at, f"write {item[0][item[1]]!r}" if pool.is_gated else "")
                write([item], at)
            transaction.outcome = outcome

        pool.run(added, work)
        if gate is not None:
            self.trace = gate.trace
