"""State that triggering keeps for live transactions, and the events of their begin and end."""

from __future__ import annotations

import logging
import threading
from collections import ChainMap
from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from activedb.errors import ActiveDBError, ConnectionLost
from activedb.events import Occurrence
from activedb.firing._letters import Letter
from activedb.firing._quarantine import failure_of
from activedb.firing._triggered import SYSTEMIC, Fed, RecordedFiring, Triggered
from activedb.functions import typed_text
from activedb.rules import Catalog, Subscription, Taken
from activedb.transactions import Run, TransactionNode
from coupling import Coupling, DeferredCycles

if TYPE_CHECKING:
    from activedb.firing._queue import FiringQueue
    from activedb.firing._triggering import Triggering

__all__ = ["TransactionEvents", "TriggerContext", "TriggerContexts"]


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

    def began(self, t: TransactionNode) -> None:
        """Raise the begin event of `t`, which is top-level."""
        self._raise(t, "begin")

    def committing(self, t: TransactionNode) -> None:
        """Raise the commit event of `t`, which is top-level; its deferred cycles come after it."""
        self._raise(t, "commit")

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

    def _raise(self, t: TransactionNode, name: str) -> None:
        if t.hierarchy.run.of_application and self._catalog.listening_to((_KIND, name), t):
            params = {"transaction": t.hierarchy.run.name}
            o = Occurrence(name, t.timestamp, params, kind=_KIND)
            self._triggering.occurred(t, o, undated=True)


@dataclass(slots=True)
class TriggerContext:
    """State that triggering keeps for one live transaction.

    Attributes
    ----------
    cycles : DeferredCycles
        Deferred rules that wait for its commit point.
    fed : list of Fed
        Occurrences that detectors have kept for the transaction; withdrawn if it aborts.
    taken : list of (Subscription, Occurrence)
        Matches that time has completed and that have triggered their rules below it; returned to
        `pending` if it aborts.
    before : list of (Subscription, state)
        Earlier states of detectors in which choices were made below it; restored if it aborts.
    choices : list of (Subscription, Taken)
        Choices that detectors have left open, or decided; recorded by the top-level commit.
    letters : list of Letter
        Letters of rules below it that failed alone; written with the top-level commit.
    outcomes : list of (str, error or None)
        How rules below it that fail alone have ended, by name; counted once the top-level commit
        has succeeded.
    firings : list of RecordedFiring
        Firings of sequential and causal rules below it; recorded by the top-level commit, which
        is followed by the start of the sequential ones.
    intents : set of str
        Names of the firings of exclusive rules below it; the top-level commit erases them.
    events : int
        Number of events that have triggered rules in it; used in the names of firings.
    next_level : list of Triggered
        Breadth-first order: rules triggered in it or below, for the level after that of the rule
        around it.
    next_cycle : list of Triggered
        In the transaction of a deferred rule: rules deferred to the parent's next cycle.
    undated : dict of int to Occurrence
        Occurrences of `fed` whose time comes from the clock of this try, by identity (`id`).
    """

    cycles: DeferredCycles[Triggered]
    fed: list[Fed] = field(default_factory=list)
    taken: list[tuple[Subscription, Occurrence]] = field(default_factory=list)
    before: list[tuple[Subscription, dict[str, Any]]] = field(default_factory=list)
    choices: list[tuple[Subscription, Taken]] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    outcomes: list[tuple[str, BaseException | None]] = field(default_factory=list)
    firings: list[RecordedFiring] = field(default_factory=list)
    intents: set[str] = field(default_factory=set)
    events: int = 0
    next_level: list[Triggered] = field(default_factory=list)
    next_cycle: list[Triggered] = field(default_factory=list)
    undated: dict[int, Occurrence] = field(default_factory=dict)


class TriggerContexts:
    """Trigger contexts of the live transactions that need one.

    Attributes
    ----------
    live : dict of int to TriggerContext
        By id of the transaction; taken out at its end.
    latch : threading.Lock
        Guards the trigger context of a transaction against its parallel children; no other latch
        is taken under it.
    """

    def __init__(self, cycles_max: int):
        self.latch = threading.Lock()
        self._cycles_max = cycles_max
        self.live: dict[int, TriggerContext] = {}

    def of(self, t: TransactionNode) -> TriggerContext:
        """Return the trigger context of a live transaction, created if missing."""
        context = self.live.get(t.id)
        if context is None:
            with self.latch:
                context = self.live.setdefault(
                    t.id, TriggerContext(DeferredCycles(self._cycles_max))
                )
        return context

    def keep_letters(self, t: TransactionNode, letters: list[Letter]) -> None:
        """Have letters written with the top-level commit above `t`."""
        context = self.of(t)
        with self.latch:
            context.letters += letters

    def keep_firings(self, t: TransactionNode, firings: list[RecordedFiring]) -> None:
        """Have firings recorded with the top-level commit above `t`, and started after it."""
        context = self.of(t)
        with self.latch:
            context.firings += firings

    def defer(self, t: TransactionNode, items: list[Triggered]) -> None:
        """Let rules triggered in `t` wait for its commit point.

        In the transaction of a deferred rule, they wait for the parent's next cycle instead.
        """
        context = self.of(t)
        with self.latch:
            if t.deferred and t.parent is not None:
                context.next_cycle += items
            else:
                for item in items:
                    context.cycles.defer(item)

    def undated_in(self, t: TransactionNode) -> Container[int]:
        """Return the `undated` occurrences, by identity, of `t` and its superiors; O(depth)."""
        found: list[dict[int, Occurrence]] = []
        node: TransactionNode | None = t
        while node is not None:
            context = self.live.get(node.id)
            if context is not None and context.undated:
                found.append(context.undated)
            node = node.parent
        return ChainMap(*found)

    def take_level(self, t: TransactionNode) -> list[Triggered]:
        """Take the rules of the next level below `t`, so that they no longer wait."""
        context = self.of(t)
        with self.latch:
            found, context.next_level = context.next_level, []
        return found

    def pass_on(self, context: TriggerContext, above: TransactionNode) -> None:
        """Merge the trigger context of a committed subtransaction into that of its parent."""
        mine = self.of(above)
        with self.latch:
            mine.fed += context.fed
            mine.before += context.before
            mine.choices += context.choices
            mine.letters += context.letters
            mine.outcomes += context.outcomes
            mine.firings += context.firings
            mine.intents |= context.intents
            mine.next_level += context.next_level
            mine.undated |= context.undated
            if above.deferred and above.parent is not None:
                mine.next_cycle += context.next_cycle
            else:
                for item in context.next_cycle:
                    mine.cycles.defer(item)
