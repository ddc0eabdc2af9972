"""Triggering: event occurrences to the rules that they trigger, each in its coupling mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from activedb.clock import Clock
from activedb.config import Settings
from activedb.errors import ConnectionLost, UncertainOrder
from activedb.events import Occurrence
from activedb.firing._cascades import too_many_cycles
from activedb.firing._causal import Causal
from activedb.firing._exclusive import Exclusive
from activedb.firing._feeding import advanced, feed_exclusively, passed_over
from activedb.firing._kept_partials import KeptPartials
from activedb.firing._letters import Letter, uncertain
from activedb.firing._quarantine import Quarantine
from activedb.firing._rule_figures import RuleFigures
from activedb.firing._rule_listeners import RuleListener
from activedb.firing._runner import Runner
from activedb.firing._time_lines import TimeLines
from activedb.firing._transaction_events import TransactionEvents
from activedb.firing._trigger_context import TriggerContext, TriggerContexts
from activedb.firing._triggered import SYSTEMIC, Fed, Firing, Triggered, is_systemic, moment_in
from activedb.metrics import Counters
from activedb.rules import Catalog, OnAbort, Rule, Subscription, Taken
from activedb.store.sql import Key, Row, TableSpec
from activedb.transactions import Node, Run, State
from coupling import Coupling, CycleBoundReached

if TYPE_CHECKING:
    from activedb.firing._queue import FiringQueue

__all__ = ["Refused", "Triggering"]


Refused: TypeAlias = Callable[[Rule, Exception], bool]
"""Callback for a rule whose detector cannot take an event; returns whether others go on."""

_AFTER_COMMIT = (Coupling.CAUSAL, Coupling.SEQUENTIAL)
"""Modes whose firings are recorded by the triggering commit."""


class Triggering:
    """Listener to a forest, which fires rules.

    Parameters
    ----------
    catalog : Catalog
    queue : FiringQueue
        Runs rules in separate top-level transactions.
    settings : Settings
        Bounds on cycles and cascades, the order of a cascade, and failures before quarantine.
    clock : Clock
    put_into_quarantine : callable ``(rule, reason)``
        Puts a rule into quarantine durably.
    write_letters : callable ``(t, letters)``
        Makes letters durable with the commit of the top-level transaction `t`.
    write_choices : callable ``(t, choices)``
        Does the same for the choices that detectors have left open, or decided.
    lines : TimeLines
        Assigns each rule to the time of a stream, or to the clock.
    kept : KeptPartials
        Makes the events durable that detectors keep for later matches.
    counters : Counters

    Attributes
    ----------
    listeners : tuple of RuleListener
        Changed by `listen` and `unlisten`.
    figures : RuleFigures
        Statistics per rule; one of the listeners.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        queue: FiringQueue,
        lines: TimeLines,
        kept: KeptPartials,
        counters: Counters,
        settings: Settings,
        clock: Clock,
        put_into_quarantine: Callable[[str, str], object],
        write_letters: Callable[[Node, list[Letter]], None],
        write_choices: Callable[[Node, list[tuple[Subscription, Taken]]], None],
    ):
        self.catalog = catalog
        self.lines = lines
        self.kept = kept
        self.counters = counters
        self._contexts = TriggerContexts(settings.cycles_max)
        self.figures = RuleFigures()
        self.quarantine = Quarantine(
            catalog,
            after=settings.quarantine_after,
            clock=clock,
            counters=counters,
            run_in_background=queue.run_in_background,
            put=put_into_quarantine,
            refused=self.figures.refused,
        )
        self.runner = Runner(
            self._contexts,
            counters,
            queue,
            self.quarantine,
            cascade_max=settings.cascade_max,
            breadth_first=settings.cascade_order == "breadth_first",
        )
        self._queue = queue
        self._causal = Causal(queue)
        self._exclusive = Exclusive(queue)
        self._write_letters = write_letters
        self._write_choices = write_choices
        self._transaction_events = TransactionEvents(catalog, self.occurred, queue)
        self._hears_all = False
        self.listeners: tuple[RuleListener, ...] = ()
        self.listen(self.figures)

    def listen(self, listener: RuleListener) -> None:
        """Add a listener to events and rules from now on."""
        self._set_listeners((*self.listeners, listener))

    def unlisten(self, listener: RuleListener) -> None:
        """Remove a listener."""
        self._set_listeners(tuple(each for each in self.listeners if each is not listener))

    def _set_listeners(self, listeners: tuple[RuleListener, ...]) -> None:
        self._hears_all = any(listener.hears_all for listener in listeners)
        self.listeners = self.runner.listeners = listeners

    # -- what the forest calls -------------------------------------------------------------

    def began(self, t: Node) -> None:
        """Handle the begin of a top-level transaction."""
        self._transaction_events.began(t)

    def changed(self, t: Node, spec: TableSpec, old: Row | None, new: Row | None) -> None:
        """Raise the data-change event of a written row, if any rule listens to it."""
        kind = "insert" if old is None else "delete" if new is None else "update"
        catalog = self.catalog
        if (kind, spec.name) in catalog.by_key or catalog.drafts or self._hears_all:
            before = None if old is None else spec.shown(old)
            after = None if new is None else spec.shown(new)
            o = Occurrence(spec.name, t.timestamp, old=before, new=after)
            self.occurred(t, o, undated=not t.has_event_time)

    def changed_all(
        self,
        t: Node,
        spec: TableSpec,
        versions: Sequence[tuple[Key, Row | None, Row | None]],
    ) -> None:
        """Raise an event per row of one statement; set-oriented rules fire once, at the end."""
        catalog = self.catalog
        undated = not t.has_event_time
        sets: list[Triggered] = []
        for _, old, new in versions:
            kind = "insert" if old is None else "delete" if new is None else "update"
            is_heard = (kind, spec.name) in catalog.by_key or catalog.drafts or self._hears_all
            if not is_heard:
                continue
            before = None if old is None else spec.shown(old)
            after = None if new is None else spec.shown(new)
            o = Occurrence(spec.name, t.timestamp, old=before, new=after)
            triggered, fed = self.feed(o, t, undated=undated)
            if fed:
                self.keep(t, fed, undated=undated)
            sets += [item for item in triggered if _is_set(item)]
            triggered = [item for item in triggered if not _is_set(item)]
            if triggered:
                self.trigger(t, triggered)
        if sets:
            self.trigger(t, sets)

    def at_commit_point(self, t: Node) -> None:
        """Run the deferred cycles of `t`; at the top, record letters, choices and firings."""
        self._transaction_events.committing(t)
        context = self._contexts.get(t)
        if context is None:
            if t.parent is None and self.catalog.drafts:
                self.kept.at_commit_point(t, (), self.catalog.given_up(t))
            return
        try:
            while cycle := context.cycles.next_cycle():
                self.runner.run_children(t, cycle, deferred=True)
        except CycleBoundReached as error:
            pending: list[Triggered] = error.pending  # type: ignore[assignment]  # deferred items
            raise too_many_cycles(t, error.bound, pending) from error
        if t.parent is not None:
            return
        gone = self.catalog.given_up(t) if self.catalog.drafts else {}
        if context.fed or gone:
            self.kept.at_commit_point(t, context.fed, gone)
        if context.letters:
            self._write_letters(t, context.letters)
        if context.choices:
            self._write_choices(t, context.choices)
        if context.firings:
            self._queue.record(t, context.firings)
        self._exclusive.at_commit_point(t, context.intents)

    def aborting(self, t: Node) -> None:
        """Withdraw the occurrences that `t` has fed, while `t` still locks their detectors."""
        context = self._contexts.get(t)
        if context is not None:
            fed, context.fed = context.fed, []
            self.withdraw(fed)
            for subscription, o in reversed(context.taken):
                subscription.pending.insert(0, o)
            context.taken = []
            for subscription, state in reversed(context.before):
                subscription.restore(state)
                self.lines.moved(subscription)
            context.before = []

    def ended(self, t: Node) -> None:
        """Pass the trigger context of `t` to its parent; at the top, start its firings."""
        if self.catalog.drafts:
            self.catalog.ended(t)
        context = self._contexts.end(t)
        if t.state is State.ABORTED:
            self._transaction_events.aborted(t)
        if context is None:
            return
        if t.state is State.ABORTED:
            self._causal.aborted(context.firings)
            if t.parent is None:
                self._queue.ended(t)
                if context.firings and isinstance(t.hierarchy.session.failure, ConnectionLost):
                    self._queue.look()  # the server may have committed
                self._exclusive.tried(t.hierarchy.run)
                if not t.hierarchy.run.is_retried:
                    self.failed(t.hierarchy.run.name)
        elif t.parent is not None:
            self._contexts.pass_on(context, t.parent)
        else:
            newest: dict[Subscription, int] = {}
            for fed in context.fed:
                newest[fed.subscription] = max(
                    newest.get(fed.subscription, fed.occurrence.us), fed.occurrence.us
                )
            for subscription, us in newest.items():
                subscription.trim(us)
                if not subscription.is_timed:
                    self.lines.moved(subscription)
            self._queue.start(self._causal.committed(context.firings))
            self._queue.ended(t)
            self._exclusive.committed(t.hierarchy.run, context.intents)

    def gave_up(self, run: Run, error: BaseException) -> None:
        """Handle a run that has failed for good, unless its work is repeated later."""
        self._transaction_events.gave_up(run)
        is_done_again = run.is_batch or (run.is_detached and isinstance(error, SYSTEMIC))
        if not is_done_again:
            self.failed(run.name)

    def failed(self, run_name: str) -> None:
        """Start the exclusive rules of work that has failed for good."""
        self._exclusive.failed(run_name)

    def giving_up(self, connection: Any, run_name: str) -> None:
        """Record the exclusive rules of a batch, with the commit that gives the batch up."""
        self._exclusive.giving_up(connection, run_name)

    def given_up(self, run_name: str) -> None:
        """Start the firings recorded by `giving_up`, after its commit."""
        self._exclusive.given_up(run_name)

    # -- raising events --------------------------------------------------------------------

    def occurred(self, t: Node, o: Occurrence, *, undated: bool = False) -> None:
        """Trigger the rules that listen to `o`, which was raised in `t`.

        Parameters
        ----------
        undated : bool
            True if its time comes from the clock of this try, and does not identify the event.
        """
        triggered, fed = self.feed(o, t, undated=undated)
        if fed:
            self.keep(t, fed, undated=undated)
        if triggered:
            self.trigger(t, triggered)

    def feed(
        self,
        o: Occurrence,
        t: Node,
        contemporaries: Sequence[Occurrence] = (),
        *,
        undated: bool = False,
        refused: Refused | None = None,
    ) -> tuple[list[Triggered], list[Fed]]:
        """Show `o` to the detectors that listen to it in `t`; return the triggered and the fed.

        Parameters
        ----------
        contemporaries : sequence of Occurrence
            Events yet to be fed that may precede `o`.
        undated : bool
            See `occurred`.
        refused : callable, optional
            Called with each rule whose detector raises. If it returns True, the failure concerns
            this rule alone, and all others go on with `o`. By default True for a rule that fails
            alone.
        """
        refused = refused or self._refused_in(t, o)
        for listener in self.listeners:
            listener.raised(t, o)
        triggered: list[Triggered] = []
        fed: list[Fed] = []
        catalog = self.catalog
        listening = catalog.listening_to(o.key, t) if contemporaries else catalog.concerned_by(o, t)
        try:
            for subscription in listening:
                taken = self.try_feed(subscription, o, t, contemporaries, refused)
                if taken is not None:
                    triggered += self.took(t, subscription, o, taken, fed, refused, undated=undated)
        except BaseException:
            self.withdraw(fed)
            raise
        return triggered, fed

    def try_feed(
        self,
        subscription: Subscription,
        o: Occurrence,
        t: Node,
        contemporaries: Sequence[Occurrence],
        refused: Refused,
    ) -> Taken | None:
        """Feed as in `feed_to`; return None if only this detector cannot take `o`."""
        try:
            return self.feed_to(subscription, o, t, contemporaries)
        except Exception as error:
            if is_systemic(error, t) or not refused(subscription.rule, error):
                raise
        return None

    def took(
        self,
        t: Node,
        subscription: Subscription,
        o: Occurrence,
        taken: Taken,
        fed: list[Fed],
        refused: Refused,
        *,
        undated: bool = False,
    ) -> list[Triggered]:
        """Return the items that a detector triggers in `t` by `o`; note in `fed` if it kept `o`."""
        if taken.is_kept:
            fed.append(Fed(subscription, o))
        self.note(t, subscription, taken, refused)
        if not taken.matches:
            return []
        by, own = self.runner.cause(t), (o,) if undated else ()
        return [Triggered(subscription.rule, match, by, undated=own) for match in taken.matches]

    def note(self, t: Node, subscription: Subscription, taken: Taken, refused: Refused) -> None:
        """Record choices that a detector has left open, or decided, with the commit of `t`.

        A rule with the policy "raise" is handled like a rule that cannot take the event.
        """
        if not taken.undecided and not taken.decided:
            return
        context = self._contexts.of(t)
        with self._contexts.latch:
            context.choices.append((subscription, taken))
        if not taken.undecided:
            return
        rule = subscription.rule
        self.counters.add("matches_undecided", sum(len(u.candidates) for u in taken.undecided))
        self.figures.undecided(rule.name, len(taken.undecided))
        if rule.on_uncertain == "raise":
            error = uncertain(rule.name, taken.undecided)
            if not refused(rule, error):
                raise error

    def will_restore(self, t: Node, subscription: Subscription) -> None:
        """Save the state of a detector, restored if `t`, which holds the rule's lock, aborts."""
        self._contexts.of(t).before.append((subscription, subscription.state()))

    def refuse(self, t: Node, rule: Rule, identity: str, o: Occurrence, error: Exception) -> None:
        """Write a letter of `o`, which the detector of `rule` cannot take, with the commit of `t`.

        `identity` is unique among the events that may be refused.
        """
        self.counters.add("rules_failed")
        letter = Letter.of_detection(rule.name, f"{identity}/{rule.name}", o, error)
        self._keep_letters(self._contexts.of(t), [letter])

    def _refused_in(self, t: Node, o: Occurrence) -> Refused:
        """Return the handler of an event raised in `t` that a detector cannot take."""

        def refused(rule: Rule, error: Exception) -> bool:
            fails_alone = rule.on_abort is OnAbort.RULE or isinstance(error, UncertainOrder)
            if fails_alone:
                number = len(self._contexts.of(t).letters)
                self.refuse(t, rule, f"{t.path}/refused.{number}", o, error)
            return fails_alone

        return refused

    def feed_to(
        self,
        subscription: Subscription,
        o: Occurrence,
        t: Node,
        contemporaries: Sequence[Occurrence] = (),
    ) -> Taken:
        """Show `o` to one detector."""
        if subscription.is_exclusive or subscription.reads:
            taken = feed_exclusively(subscription, o, t, contemporaries)
        else:
            is_on_clock = subscription.is_stateful and self.lines.stream_of(subscription) is None
            taken = subscription.feed_kept(o, exactly=is_on_clock, contemporaries=contemporaries)
        if subscription.is_timed:
            self.lines.moved(subscription)
        if taken.matches and subscription.is_stateful:
            self.counters.add("matches", len(taken.matches))
        return taken

    def keep(self, t: Node, fed: list[Fed], *, undated: bool = False) -> None:
        """Make `t` responsible for fed occurrences; `undated` is as for `occurred`."""
        if fed:
            context = self._contexts.of(t)
            context.fed += fed
            if undated:
                context.undated |= {id(each.occurrence): each.occurrence for each in fed}

    def take(self, t: Node, subscription: Subscription) -> None:
        """Take the first match from a rule's `pending`; an abort of top-level `t` puts it back."""
        self._contexts.of(t).taken.append((subscription, subscription.pending.pop(0)))

    def keep_firings(self, t: Node, firings: list[Firing]) -> None:
        """Record firings with the top-level commit above `t`, and start them after it."""
        context = self._contexts.of(t)
        with self._contexts.latch:
            context.firings += firings

    def add_dead_letter(self, t: Node, letter: Letter) -> None:
        """Write a letter with the top-level commit above `t`."""
        self._keep_letters(self._contexts.of(t), [letter])

    def take_back(self, t: Node, fed: list[Fed]) -> None:
        """Withdraw the occurrences fed for one failed event of `t`, while `t` goes on."""
        context = self._contexts.of(t)
        for item in fed:
            if item in context.fed:
                context.fed.remove(item)
        self.withdraw(fed)

    def advance(
        self, subscription: Subscription, us: int, t: Node, refused: Refused
    ) -> list[Triggered]:
        """Return the matches of a rule that time completes before `us`; `refused` as for `feed`."""
        return self.completed(t, subscription, advanced(subscription, us, t), refused, us - 1)

    def pass_over(
        self, subscription: Subscription, us: int, t: Node, refused: Refused
    ) -> list[Triggered]:
        """Advance as in `advance`, but leave out the matches whose predicate raises."""
        return self.completed(t, subscription, passed_over(subscription, us, t), refused, us - 1)

    def completed(
        self,
        t: Node,
        subscription: Subscription,
        taken: Taken,
        refused: Refused,
        us: int | None = None,
    ) -> list[Triggered]:
        """Return the matches that trigger a rule without an event: by time, or by a decision."""
        self.lines.moved(subscription)
        self.note(t, subscription, taken, refused)
        if taken.matches:
            self.counters.add("matches", len(taken.matches))
        moment = "" if us is None else moment_in(self.lines.stream_of(subscription), us)
        return [Triggered(subscription.rule, match, moment=moment) for match in taken.matches]

    def withdraw(self, fed: Sequence[Fed]) -> None:
        """Take occurrences back from the detectors that kept them, the last one first."""
        for item in reversed(fed):
            item.subscription.withdraw(item.occurrence)

    def trigger(self, t: Node, triggered: list[Triggered]) -> None:
        """Start the rules triggered in `t` by one event, each in its coupling mode."""
        for listener in self.listeners:
            listener.triggered(t, triggered)
        context = self._contexts.of(t)
        context.events += 1
        modes = [(item, item.rule.coupling) for item in triggered]
        detached = [item for item, mode in modes if mode is Coupling.DETACHED]
        dependent = [item for item, mode in modes if mode in _AFTER_COMMIT]
        exclusive = [item for item, mode in modes if mode is Coupling.EXCLUSIVE]
        deferred = [item for item, mode in modes if mode is Coupling.DEFERRED]
        immediate = [item for item, mode in modes if mode is Coupling.IMMEDIATE]
        undated = self._contexts.undated_in(t) if detached or dependent or exclusive else ()
        if detached:
            self._queue.fire(t, detached, context.events, undated)
        if dependent:
            firings, letters = self._queue.prepare(t, dependent, context.events, undated)
            self._keep_lost(context, letters)
            with self._contexts.latch:
                context.firings += firings
            self._causal.begin(t, [f for f in firings if _is_causal(f)])
        if exclusive:
            names, letters = self._exclusive.intend(t, exclusive, context.events, undated)
            self._keep_lost(context, letters)
            self._contexts.of(t.top)  # the top decides on them, even if `t` aborts
            with self._contexts.latch:
                context.intents |= names
        if deferred:
            self._contexts.defer(t, deferred)
        if immediate:
            self.runner.run_children(t, immediate, deferred=False)

    # -- inside ----------------------------------------------------------------------------

    def _keep_lost(self, context: TriggerContext, letters: list[Letter]) -> None:
        """Keep letters of firings whose occurrence cannot be encoded."""
        if letters:
            self.counters.add("rules_failed", len(letters))
            self._keep_letters(context, letters)

    def _keep_letters(self, context: TriggerContext, letters: list[Letter]) -> None:
        with self._contexts.latch:
            context.letters += letters


def _is_set(item: Triggered) -> bool:
    """Return whether an item fires once for all its occurrences in one statement."""
    return item.rule.set_oriented and item.rule.coupling is Coupling.IMMEDIATE


def _is_causal(firing: Firing) -> bool:
    return firing.triggered.rule.coupling is Coupling.CAUSAL
