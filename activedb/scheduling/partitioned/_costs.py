"""Cost model that decides whether tasks are worthwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Costs", "Pace"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Overhead of tasks besides the work itself.

    Attributes
    ----------
    batch_s : float
        Seconds per batch: to start its tasks and to gather their results.
    operation_s : float
        Seconds per operation: to plan, send, and merge it, in the coordinating process.
    """

    batch_s: float
    operation_s: float


class Pace:
    """Measured duration of operations, in whichever process they ran.

    Attributes
    ----------
    operation_s : float or None
        Seconds per operation, with more weight on recent runs; None before the first run.
    """

    def __init__(self, costs: Costs):
        self.operation_s: float | None = None
        self._costs = costs

    def learn(self, operations: int, seconds: float) -> None:
        """Record that one process ran this number of operations in this many seconds."""
        if operations:
            each_s = seconds / operations
            self.operation_s = (
                each_s if self.operation_s is None else (self.operation_s + each_s) / 2
            )

    def may_be_worth(self, operations: int) -> bool:
        """Return whether tasks could pay off for this many operations with unlimited processes."""
        return self._gains(operations, 0)

    def is_worth(self, sizes: Sequence[int]) -> bool:
        """Return whether tasks of these sizes are expected to be faster than this process alone."""
        return len(sizes) > 1 and self._gains(sum(sizes), max(sizes))

    def _gains(self, operations: int, longest: int) -> bool:
        """Return whether the work done in parallel outweighs the cost of tasks; True if unknown."""
        if self.operation_s is None:
            return True
        costs = self._costs.batch_s + self._costs.operation_s * operations
        return (operations - longest) * self.operation_s >= costs
