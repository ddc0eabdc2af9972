"""How long top-level transactions and their commits take."""

from __future__ import annotations

import time

from activedb.metrics import Histogram
from activedb.transactions import Observer, State, Transaction

__all__ = ["Latencies"]


class Latencies(Observer):
    """Durations of top-level transactions, of every try; a forest needs one of these at most.

    A caller's own transaction, in which blocks of ours are, is not measured: how long it takes is
    the caller's affair.

    Attributes
    ----------
    committed, aborted : Histogram
        From the begin of the block, or function, to the end of the commit or abort.
    commit : Histogram
        From the moment at which the work is done, all deferred rules included, to the end of the
        commit: that is the server's part.
    """

    def __init__(self) -> None:
        self.committed = Histogram()
        self.aborted = Histogram()
        self.commit = Histogram()
        self._entered: dict[int, float] = {}
        self._committing: dict[int, float] = {}

    def entered(self, t: Transaction) -> None:
        """Take the time, if it is a top-level transaction."""
        if t.parent is None:
            self._entered[t.id] = time.perf_counter()

    def committing(self, t: Transaction) -> None:
        """Take the time, if it is a top-level transaction that was entered."""
        if t.id in self._entered:
            self._committing[t.id] = time.perf_counter()

    def ended(self, t: Transaction) -> None:
        """Record how long it took."""
        began_s = self._entered.get(t.id)
        if began_s is None:
            return
        now_s = time.perf_counter()
        committing_s = self._committing.pop(t.id, None)
        if t.state is not State.COMMITTED:
            self.aborted.record(now_s - began_s)
            return
        self.committed.record(now_s - began_s)
        if committing_s is not None:
            self.commit.record(now_s - committing_s)

    def left(self, t: Transaction) -> None:
        """Forget it."""
        self._entered.pop(t.id, None)
