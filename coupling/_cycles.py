"""Deferred cycles of one commit point."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["CycleBoundReached", "DeferredCycles"]

T = TypeVar("T")


class CycleBoundReached(Exception):
    """More cycles than the bound allows; ``pending`` is what the next one would run."""

    def __init__(self, bound: int, pending: list[object]):
        super().__init__(f"more than {bound} deferred cycles")
        self.bound = bound
        self.pending = pending


class DeferredCycles(Generic[T]):
    """What waits for one commit point, cycle by cycle.

    Cycle 0 is everything deferred up to the commit point. What is deferred while a cycle runs
    belongs to the next cycle, after all siblings of the current one. (Saygin, Ulusoy,
    Chakravarthy, sections 2.1 and 3.3.2.)

    Parameters
    ----------
    bound : int
        The most cycles that one commit point may take.
    """

    __slots__ = ("_bound", "_taken", "_waiting")

    def __init__(self, bound: int):
        self._bound = bound
        self._taken = 0
        self._waiting: list[T] = []

    @property
    def taken(self) -> int:
        """How many cycles have been taken so far; the one that runs has the number before that."""
        return self._taken

    def defer(self, item: T) -> None:
        """Add `item` to the cycle that comes next."""
        self._waiting.append(item)

    def next_cycle(self) -> list[T]:
        """Take the next cycle's items; an empty list ends the commit point.

        Raises
        ------
        CycleBoundReached
            When items are waiting and the bound is used up.
        """
        if not self._waiting:
            return []
        if self._taken >= self._bound:
            raise CycleBoundReached(self._bound, list(self._waiting))
        self._taken += 1
        cycle, self._waiting = self._waiting, []
        return cycle
