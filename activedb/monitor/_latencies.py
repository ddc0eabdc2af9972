"""Durations of top-level transactions and of their commits."""

from __future__ import annotations

import time

from activedb.metrics import Histogram
from activedb.transactions import Node, Observer, State

__all__ = ["Latencies"]


class Latencies(Observer):
    """Durations of top-level transactions, one per try; attach at most one instance to a forest.

    A top-level transaction that the caller manages, with blocks of ours inside it, is not measured,
    since its duration is up to the caller.

    Attributes
    ----------
    committed, aborted : Histogram
        Time from the begin of the block, or function, to the end of the commit or abort.
    commit : Histogram
        Time from the end of the work, including all deferred rules, to the end of the commit: the
        server's share.
    """

    def __init__(self) -> None:
        self.committed = Histogram()
        self.aborted = Histogram()
        self.commit = Histogram()
        self._entered: dict[int, float] = {}
        self._committing: dict[int, float] = {}

    def entered(self, t: Node) -> None:
        """Record the begin of a top-level transaction."""
        if t.parent is None:
            self._entered[t.id] = time.perf_counter()

    def committing(self, t: Node) -> None:
        """Record when the work of an entered top-level transaction is done."""
        if t.id in self._entered:
            self._committing[t.id] = time.perf_counter()

    def ended(self, t: Node) -> None:
        """Record the durations of a transaction that was entered."""
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

    def left(self, t: Node) -> None:
        """Forget the times of a transaction."""
        self._entered.pop(t.id, None)
