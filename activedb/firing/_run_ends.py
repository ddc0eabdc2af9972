"""End of a run, with all its tries, for which causal and exclusive rules wait."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from activedb.firing._causal import Causal
from activedb.firing._exclusive import Exclusive

if TYPE_CHECKING:
    from activedb.firing._queue import FiringQueue
    from activedb.firing._trigger_context import TriggerContext
    from activedb.transactions import Run, TransactionNode

__all__ = ["RunEnds"]


class RunEnds:
    """Keeper of firings begun early and of intents, until their triggering run has ended.

    A run has ended when it has committed, or failed for good. A firing begun early that the last
    try has not triggered has then failed for good, too, and so on with what it has triggered.

    Attributes
    ----------
    causal : Causal
    exclusive : Exclusive
    """

    def __init__(self, queue: FiringQueue):
        self._queue = queue
        self.causal, self.exclusive = Causal(queue), Exclusive(queue)

    def has_triggered(self, run: Run) -> bool:
        """Return whether earlier tries of a run have triggered what waits for its end. O(1)."""
        if run.of_application and run.tries == 1:
            return False  # the common case
        return self.exclusive.has_intents(run.name) or self.causal.has_begun(run.name)

    def at_commit_point(self, t: TransactionNode, context: TriggerContext) -> None:
        """Decide, with the commit of the top-level transaction `t`, on what its run has begun."""
        self.exclusive.at_commit_point(t, context.intents)
        for name in self._not_recorded(t, context):
            t.hierarchy.durable.append(partial(self.giving_up, run_name=name))

    def committed(self, t: TransactionNode, context: TriggerContext) -> None:
        """Start what is due now that the run of the top-level transaction `t` has committed."""
        self.causal.committed(context.firings)
        self._queue.ended(t)
        over = self._not_recorded(t, context)
        self.causal.settle(t.hierarchy.run.name)
        for name in over:
            self.failed(name)
        self.exclusive.committed(t.hierarchy.run, context.intents)

    def giving_up(self, connection: Any, run_name: str) -> None:
        """Record what becomes due once a run has failed for good, with the commit that ends it."""
        for name in self.causal.begun(run_name):
            self.giving_up(connection, name)
        self.exclusive.giving_up(connection, run_name)

    def failed(self, run_name: str) -> None:
        """Start what is due now that a run has failed for good."""
        for name in self.causal.settle(run_name):
            self.failed(name)
        self.exclusive.failed(run_name)

    def ended_elsewhere(self, run_name: str) -> None:
        """Forget what a firing has begun here: another process has ended it."""
        for name in self.causal.settle(run_name):
            self.ended_elsewhere(name)
        self.exclusive.ended_elsewhere(run_name)

    def _not_recorded(self, t: TransactionNode, context: TriggerContext) -> set[str]:
        begun = self.causal.begun(t.hierarchy.run.name)
        return begun and begun - {firing.name for firing in context.firings}
