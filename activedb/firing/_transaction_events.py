"""Begin, commit and abort of the application's transactions as events."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from activedb.events import Occurrence
from activedb.rules import Catalog
from activedb.transactions import Node, Run

if TYPE_CHECKING:
    from activedb.firing._queue import FiringQueue

__all__ = ["TransactionEvents"]

_KIND = "transaction"


class TransactionEvents:
    """Source of begin, commit and abort events of the application's top-level transactions.

    Top-level transactions of rules raise none, so a detached rule does not trigger itself.

    Parameters
    ----------
    catalog : Catalog
    occurred : callable
        Processes an event: `Triggering.occurred`.
    queue : FiringQueue
        Runs the rules on an abort on another thread, because the aborted transaction is gone.
    """

    def __init__(self, catalog: Catalog, occurred: Callable[..., object], queue: FiringQueue):
        self._catalog = catalog
        self._occurred = occurred
        self._queue = queue

    def began(self, t: Node) -> None:
        """Raise the begin event of `t`, which is top-level."""
        self._raise(t, "begin")

    def committing(self, t: Node) -> None:
        """Raise the commit event of `t`, which is top-level; its deferred cycles come after it."""
        self._raise(t, "commit")

    def aborted(self, t: Node) -> None:
        """Raise the abort event of a top-level `t`; for a retried run `gave_up` does so instead."""
        if t.parent is None and not t.hierarchy.run.is_retried:
            self.gave_up(t.hierarchy.run)

    def gave_up(self, run: Run) -> None:
        """Raise the abort event of `run`, whose last try has aborted, in a separate transaction."""
        if not run.of_application or not self._catalog.listening_to((_KIND, "abort")):
            return
        params = {"transaction": run.name}

        def tell(t: Node) -> None:
            o = Occurrence("abort", t.timestamp, params, kind=_KIND)
            self._occurred(t, o, undated=True)

        self._queue.run_in_background(f"abort of {run.name}", lambda: self._queue.forest.run(tell))

    def _raise(self, t: Node, name: str) -> None:
        if t.hierarchy.run.of_application and self._catalog.listening_to((_KIND, name), t):
            params = {"transaction": t.hierarchy.run.name}
            o = Occurrence(name, t.timestamp, params, kind=_KIND)
            self._occurred(t, o, undated=True)
