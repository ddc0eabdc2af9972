"""Deferred cycles of one commit point."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["CycleBoundReached", "DeferredCycles"]

T = TypeVar("T")


class CycleBoundReached(Exception):
    """The bound on cycles is used up; ``pending`` has the items of the next cycle."""

    def __init__(self, bound: int, pending: list[object]):
        super().__init__(f"more than {bound} deferred cycles")
        self.bound = bound
        self.pending = pending


class DeferredCycles(Generic[T]):
    """Items that wait for one commit point, cycle by cycle.

    Cycle 0 holds the items deferred up to the commit point. Items deferred while a cycle runs
    belong to the next cycle, after all siblings of the current one. (Saygin, Ulusoy,
    Chakravarthy, sections 2.1 and 3.3.2.)

    Parameters
    ----------
    bound : int
        Maximum number of cycles of one commit point.
    """

    __slots__ = ("_bound", "_taken", "_waiting")

    def __init__(self, bound: int):
        self._bound = bound
        self._taken = 0
        self._waiting: list[T] = []

    @property
    def taken(self) -> int:
        """Number of cycles taken so far; the running cycle has the number before that."""
        return self._taken

    def defer(self, item: T) -> None:
        """Add `item` to the next cycle."""
        self._waiting.append(item)

    def next_cycle(self) -> list[T]:
        """Take the next cycle's items; an empty list ends the commit point.

        Raises
        ------
        CycleBoundReached
            If items are waiting and the bound is used up.
        """
        if not self._waiting:
            return []
        if self._taken >= self._bound:
            raise CycleBoundReached(self._bound, list(self._waiting))
        self._taken += 1
        cycle, self._waiting = self._waiting, []
        return cycle
