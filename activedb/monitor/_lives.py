"""All transactions of which something is kept, within a bound."""

from __future__ import annotations

from collections import OrderedDict

from activedb.monitor._life import Life, Raw

__all__ = ["Lives"]

_LIVE_MAX = 100_000
_COMMITTED_MAX = 4_000
_ABORTED_MAX = 1_000
_STEPS_MAX = 200_000


class Lives:
    """The live transactions, and those that have ended last with their stories.

    Those that have aborted have room of their own: they are the ones that are asked for, and the
    many that commit must not push them out.

    Not thread-safe: who owns it holds a latch. Every method is O(1), or amortised so.

    Parameters
    ----------
    live_max, committed_max, aborted_max : int
        Transactions of which something is kept; one that begins beyond that is not known here, and
        neither are its inferiors.
    steps_max : int
        Steps of all of them together: for more the oldest of those that have committed are
        forgotten, then of those that have aborted, and if there are none the step is left out.

    Attributes
    ----------
    live : dict of int to Life
        In the order of their begin.
    unknown : int
        How many were not taken note of.
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
        self.live: dict[int, Life] = {}
        self.unknown = 0
        self._committed: OrderedDict[int, Life] = OrderedDict()
        self._aborted: OrderedDict[int, Life] = OrderedDict()
        self._steps = 0

    def begin(self, life: Life) -> bool:
        """Take note of a transaction that has begun; returns whether there was room."""
        if len(self.live) >= self._live_max:
            self.unknown += 1
            return False
        self.live[life.id] = life
        return True

    def add(self, life: Life, step: Raw) -> None:
        """Add a step to a live transaction."""
        while self._steps >= self._steps_max:
            if not (self._committed or self._aborted):
                life.left_out += 1
                return
            self._forget_oldest(self._committed or self._aborted)
        self._steps += life.add(step)

    def end(self, life: Life) -> None:
        """A live transaction has ended."""
        del self.live[life.id]
        is_aborted = life.state == "aborted"
        ended = self._aborted if is_aborted else self._committed
        ended[life.id] = life
        if len(ended) > (self._aborted_max if is_aborted else self._committed_max):
            self._forget_oldest(ended)

    def get(self, number: int) -> Life | None:
        """The transaction of this number, live or ended, if it is kept."""
        for place in (self.live, self._committed, self._aborted):
            if number in place:
                return place[number]
        return None

    def _forget_oldest(self, ended: OrderedDict[int, Life]) -> None:
        _, oldest = ended.popitem(last=False)
        self._steps -= oldest.kept
        oldest.forget_steps()  # an inferior that is kept for longer knows it, for its path
