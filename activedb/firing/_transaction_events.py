"""Events of the begin and end of transactions, and the rules on an abort."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from activedb.errors import ActiveDBError, ConnectionLost
from activedb.events import Occurrence
from activedb.firing._letters import Letter
from activedb.firing._quarantine import failure_of
from activedb.firing._triggered import SYSTEMIC, Triggered
from activedb.functions import typed_text
from activedb.rules import Catalog
from activedb.transactions import Run, TransactionNode
from coupling import Coupling

if TYPE_CHECKING:
    from activedb.firing._queue import FiringQueue
    from activedb.firing._triggering import Triggering

__all__ = ["TransactionEvents"]

_LOG = logging.getLogger(__name__)
_KIND = "transaction"
_ABORT = (_KIND, "abort")


class TransactionEvents:
    """Source of begin, commit and abort events of the application's top-level transactions.

    Top-level transactions of rules raise none, so a detached rule does not trigger itself.

    The rules on an abort run in a transaction of their own, on another thread. Nothing is left to
    abort with them, so each fails alone. If the transaction fails because of others, it is run
    again after a pause; if it fails for good, its rules become dead letters.

    Parameters
    ----------
    catalog : Catalog
    triggering : Triggering
    queue : FiringQueue
    restarts_max : int
        Number of times the transaction of an abort event is run again.
    """

    def __init__(
        self, catalog: Catalog, triggering: Triggering, queue: FiringQueue, restarts_max: int
    ):
        self._catalog = catalog
        self._triggering = triggering
        self._queue = queue
        self._restarts_max = restarts_max

    def occur(self, t: TransactionNode, name: str) -> None:
        """Raise the event "begin" or "commit" of `t`, which is top-level.

        The deferred cycles of `t` come after its commit event.
        """
        if t.hierarchy.run.of_application and self._catalog.listening_to((_KIND, name), t):
            params = {"transaction": t.hierarchy.run.name}
            o = Occurrence(name, t.timestamp, params, kind=_KIND)
            self._triggering.occurred(t, o, undated=True)

    def aborted(self, t: TransactionNode) -> None:
        """Raise the abort event of a top-level `t`; for a retried run `gave_up` does so instead."""
        if t.parent is None and not t.hierarchy.run.is_retried:
            self.gave_up(t.hierarchy.run)

    def gave_up(self, run: Run) -> None:
        """Raise the abort event of `run`, whose last try has aborted, in a separate transaction."""
        if run.of_application and self._catalog.listening_to(_ABORT):
            self._begin_abort(run.name, Run(is_retried=True), 0)

    def _begin_abort(self, aborted: str, run: Run, restarts: int) -> None:
        # Its own name each time: the end of the work before may come after this begin.
        name = f"abort of {aborted}" + (f", restart {restarts}" if restarts else "")
        self._queue.run_in_background(name, lambda: self._raise_abort(aborted, run, restarts))

    def _raise_abort(self, aborted: str, run: Run, restarts: int) -> None:
        """Raise an abort event in `run`, which this method gives up, if not `Forest.run`."""
        forest, restarts_queue = self._queue.forest, self._queue.restarts
        params = {"transaction": aborted}
        items: list[Triggered] | None = None

        def tell(t: TransactionNode) -> None:
            nonlocal items
            items = None  # of an earlier try
            o = Occurrence(_ABORT[1], t.timestamp, params, kind=_KIND)
            items = self._triggering.feed_alone(t, o)
            if items:
                self._triggering.trigger(t, items)

        def again(error: Exception) -> None:
            if isinstance(error, ConnectionLost):
                try:
                    self._queue.journal.standing()
                except ActiveDBError as away:  # which is no restart
                    later(away)
                    return
            self._begin_abort(aborted, run, restarts + 1)

        def later(error: Exception) -> None:
            restarts_queue.later(name, lambda: again(error), restarts, typed_text(error))

        name = f"abort of {aborted}"
        try:
            forest.retries.run(lambda: forest.top_level(run).call(tell), name=lambda: name)
        except BaseException as error:
            is_in_doubt = isinstance(error, ConnectionLost) and error.committed is not False
            if isinstance(error, SYSTEMIC) and not is_in_doubt and restarts < self._restarts_max:
                _LOG.warning("rules on the %s are tried again later", name, exc_info=error)
                later(error)
                return
            o = Occurrence(_ABORT[1], forest.clock.now(), params, kind=_KIND)
            for letter in self._letters(o, f"{name}/{run.name}", items, error):
                self._triggering.counters.add("rules_failed")
                self._queue.write_letter(letter)
            self._triggering.run_ends.failed(run.name)

    def _letters(
        self, o: Occurrence, identity: str, items: list[Triggered] | None, error: BaseException
    ) -> list[Letter]:
        """Return a letter for each rule on an abort that `error` has kept from its effects.

        Those with a firing of their own have it, or start because of the failure. `items` are the
        triggered rules; None if the detectors could not be fed.
        """
        undone = [
            item
            for item in items or ()
            if item.rule.coupling not in (Coupling.DETACHED, Coupling.EXCLUSIVE)
        ]
        letters = [
            Letter.of_rule(
                f"{identity}/{item.rule.name}.{number}",
                item.occurrence,
                failure_of(item.rule.name, error),
            )
            for number, item in enumerate(undone)
        ]
        has_letter = {item.rule.name for item in items or ()}
        return letters + [
            Letter.of_detection(subscription.rule.name, f"{identity}/event", o, error)
            for subscription in self._catalog.listening_to(_ABORT)
            if subscription.rule.name not in has_letter
            and (items is None or subscription.single is None)
        ]
