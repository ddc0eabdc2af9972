"""Begin, commit and abort of the application's transactions as events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from activedb.events import Occurrence
from activedb.rules import Catalog
from activedb.transactions import Run, Transaction

if TYPE_CHECKING:
    from activedb.firing._launcher import Launcher
    from activedb.firing._triggering import Triggering

__all__ = ["Lives"]

_KIND = "transaction"


class Lives:
    """Raises the events of the top-level transactions that the application began.

    Those in which rules run by themselves raise none, so a detached rule does not trigger itself.

    Parameters
    ----------
    catalog : Catalog
    triggering : Triggering
    launcher : Launcher
        Runs the rules of an abort, whose own transaction is gone, on another thread.
    """

    def __init__(self, catalog: Catalog, triggering: Triggering, launcher: Launcher):
        self._catalog = catalog
        self._triggering = triggering
        self._launcher = launcher

    def began(self, t: Transaction) -> None:
        """`t`, which is top-level, has begun."""
        self._raise(t, "begin")

    def committing(self, t: Transaction) -> None:
        """`t` has reached its commit point; its deferred cycles are still to come."""
        if t.parent is None:
            self._raise(t, "commit")

    def aborted(self, t: Transaction) -> None:
        """`t` has aborted; if it is tried again that is told when it was the last time."""
        if t.parent is None and not t.hierarchy.run.is_retried:
            self.gave_up(t.hierarchy.run)

    def gave_up(self, run: Run) -> None:
        """The last try of `run` has aborted: raise that, in a transaction of its own."""
        if not run.of_application or not self._catalog.listening_to((_KIND, "abort")):
            return
        params = {"transaction": run.name}

        def tell(t: Transaction) -> None:
            o = Occurrence("abort", t.timestamp, params, kind=_KIND)
            self._triggering.occurred(t, o, undated=True)

        self._launcher.aside(f"abort of {run.name}", lambda: self._launcher.forest.run(tell))

    def _raise(self, t: Transaction, name: str) -> None:
        if t.hierarchy.run.of_application and self._catalog.listening_to((_KIND, name), t):
            params = {"transaction": t.hierarchy.run.name}
            o = Occurrence(name, t.timestamp, params, kind=_KIND)
            self._triggering.occurred(t, o, undated=True)
