"""Bounded collection of the records of transactions."""

from __future__ import annotations

from collections import OrderedDict

from activedb.monitor._records import Raw, TransactionRecord

__all__ = ["RecentTransactions"]

_LIVE_MAX = 100_000
_COMMITTED_MAX = 4_000
_ABORTED_MAX = 1_000
_STEPS_MAX = 200_000


class RecentTransactions:
    """The live transactions, and the most recently ended ones with their steps.

    Aborted transactions have a separate bound: they are the ones that users inspect, and the many
    committed ones must not evict them.

    Not thread-safe: the owner guards it with a latch. Every method is O(1), or amortised O(1).

    Parameters
    ----------
    live_max, committed_max, aborted_max : int
        Upper bounds on the transactions that are kept. A transaction that begins while there are
        `live_max` live ones is not recorded, and neither are its inferiors.
    steps_max : int
        Upper bound on the steps of all transactions together. Beyond it, the oldest committed
        transactions are forgotten, then the oldest aborted ones; if there are none the step is left
        out.

    Attributes
    ----------
    live : dict of int to Life
        Live transactions in the order of their begin.
    unknown : int
        Number of transactions that were not recorded.
    """

    def __init__(
        self,
        live_max: int = _LIVE_MAX,
        committed_max: int = _COMMITTED_MAX,
        aborted_max: int = _ABORTED_MAX,
        steps_max: int = _STEPS_MAX,
    ):
        self._live_max = live_max
        self._committed_max = committed_max
        self._aborted_max = aborted_max
        self._steps_max = steps_max
        self.live: dict[int, TransactionRecord] = {}
        self.unknown = 0
        self._committed: OrderedDict[int, TransactionRecord] = OrderedDict()
        self._aborted: OrderedDict[int, TransactionRecord] = OrderedDict()
        self._steps = 0

    def begin(self, life: TransactionRecord) -> bool:
        """Record a transaction that has begun; return whether there was room."""
        if len(self.live) >= self._live_max:
            self.unknown += 1
            return False
        self.live[life.id] = life
        return True

    def add(self, life: TransactionRecord, step: Raw) -> None:
        """Add a step to a live transaction."""
        while self._steps >= self._steps_max:
            if not (self._committed or self._aborted):
                life.left_out += 1
                return
            self._forget_oldest(self._committed or self._aborted)
        self._steps += life.add(step)

    def end(self, life: TransactionRecord) -> None:
        """Record that a live transaction has ended."""
        del self.live[life.id]
        is_aborted = life.state == "aborted"
        ended = self._aborted if is_aborted else self._committed
        ended[life.id] = life
        if len(ended) > (self._aborted_max if is_aborted else self._committed_max):
            self._forget_oldest(ended)

    def get(self, number: int) -> TransactionRecord | None:
        """Return the transaction of this number, live or ended, or None if it is not kept."""
        for place in (self.live, self._committed, self._aborted):
            if number in place:
                return place[number]
        return None

    def _forget_oldest(self, ended: OrderedDict[int, TransactionRecord]) -> None:
        _, oldest = ended.popitem(last=False)
        self._steps -= oldest.kept
        oldest.forget_steps()  # a longer-kept inferior still refers to it, for its path
