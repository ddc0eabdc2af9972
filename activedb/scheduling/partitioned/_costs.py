"""Whether tasks are worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Costs", "Pace"]


@dataclass(frozen=True, slots=True)
class Costs:
    """What tasks cost beside the work itself.

    Attributes
    ----------
    batch_s : float
        Seconds per batch: to start its tasks and to gather what they give.
    operation_s : float
        Seconds per operation: to plan, send, and merge it, by the one process that does so.
    """

    batch_s: float
    operation_s: float


class Pace:
    """What operations have taken so far, wherever they ran.

    Attributes
    ----------
    operation_s : float or None
        The seconds of one, newer runs counting more; None: nothing was run yet.
    """

    def __init__(self, costs: Costs):
        self.operation_s: float | None = None
        self._costs = costs

    def learn(self, operations: int, seconds: float) -> None:
        """So many operations have taken so many seconds of one process."""
        if operations:
            each_s = seconds / operations
            self.operation_s = (
                each_s if self.operation_s is None else (self.operation_s + each_s) / 2
            )

    def may_be_worth(self, operations: int) -> bool:
        """Whether so many operations may gain from tasks, however many processes there are."""
        return self._gains(operations, 0)

    def is_worth(self, sizes: Sequence[int]) -> bool:
        """Whether tasks of these sizes are expected to be faster than this process alone."""
        return len(sizes) > 1 and self._gains(sum(sizes), max(sizes))

    def _gains(self, operations: int, longest: int) -> bool:
        """Whether what others do meanwhile is more than tasks cost; nobody knows: yes."""
        if self.operation_s is None:
            return True
        costs = self._costs.batch_s + self._costs.operation_s * operations
        return (operations - longest) * self.operation_s >= costs
