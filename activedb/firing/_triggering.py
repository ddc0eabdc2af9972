"""Triggering: the life of a rule, from an event to the end of the transaction that raised it.

row written, signal, stream event, time
─► occurred ─► Feeding: detectors ─► matches ─► trigger, by coupling mode:
immediate            ─► Runner: children of `t`, now
deferred             ─► at_commit_point: children of `t`, in cycles
detached             ─► FiringQueue: top-level transactions, now
causal, sequential   ─► recorded at_commit_point, started when `t` has ended
exclusive            ─► an intent, started or erased when the run ends
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from activedb.clock import Clock, moment_of
from activedb.config import Settings
from activedb.errors import ConnectionLost, RuleFailed
from activedb.events import Occurrence, row_change
from activedb.firing._durable_detectors import DurableDetectors
from activedb.firing._feeding import Feeding
from activedb.firing._letters import Letter
from activedb.firing._quarantine import Quarantine, failure_of
from activedb.firing._rule_listeners import RuleFigures, RuleListeners
from activedb.firing._run_ends import RunEnds
from activedb.firing._runner import Runner
from activedb.firing._time_lines import TimeLines
from activedb.firing._transaction_events import TransactionEvents
from activedb.firing._trigger_context import TriggerContexts
from activedb.firing._triggered import Triggered, is_systemic, too_many_cycles
from activedb.metrics import NamedCounters
from activedb.rules import Catalog, OnAbort, Subscription, Taken
from activedb.store.sql import Row, TableSpec
from activedb.transactions import Run, State, TransactionNode, Version, lock_detector, run_child
from coupling import Coupling, CycleBoundReached

if TYPE_CHECKING:
    from activedb.firing._queue import FiringQueue

__all__ = ["Triggering"]


class Triggering:
    """Listener to a forest, which fires rules.

    Parameters
    ----------
    queue : FiringQueue
        Runs rules in separate top-level transactions.
    settings : Settings
        Bounds on cycles and cascades, the order of a cascade, and failures before quarantine.
    put_into_quarantine : callable ``(rule, reason)``
        Puts a rule into quarantine durably.
    write_letters, write_choices : callable ``(t, letters)``, ``(t, choices)``
        Make letters, and what detectors left open or decided, durable with the commit of `t`.
    lines : TimeLines
        Assigns each rule to the time of a stream, or to the clock.
    kept : DurableDetectors
        Makes the events durable that detectors keep for later matches.

    Attributes
    ----------
    feeding : Feeding
        Feeds detectors; streams, timers and decisions use it directly.
    runner : Runner
        Runs the triggered rules.
    contexts : TriggerContexts
        What each live transaction has triggered and fed.
    run_ends : RunEnds
        Firings begun early and intents, which wait for the end of a run.
    listeners : RuleListeners
    figures : RuleFigures
        Statistics per rule; one of the listeners.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        queue: FiringQueue,
        lines: TimeLines,
        kept: DurableDetectors,
        counters: NamedCounters,
        settings: Settings,
        clock: Clock,
        put_into_quarantine: Callable[[str, str], object],
        write_letters: Callable[[TransactionNode, list[Letter]], None],
        write_choices: Callable[[TransactionNode, list[tuple[Subscription, Taken]]], None],
    ):
        self.catalog = catalog
        self.lines = lines
        self.kept = kept
        self.counters = counters
        self.contexts = TriggerContexts(settings.cycles_max)
        self.figures = RuleFigures()
        self.listeners = RuleListeners(self.figures)
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
            self.contexts,
            counters,
            queue,
            self.quarantine,
            self.listeners,
            cascade_max=settings.cascade_max,
            breadth_first=settings.cascade_order == "breadth_first",
        )
        self.feeding = Feeding(
            catalog,
            self.contexts,
            lines=lines,
            counters=counters,
            figures=self.figures,
            listeners=self.listeners,
            cause=self.runner.cause,
        )
        self._queue = queue
        self.run_ends = RunEnds(queue)
        self._write_letters, self._write_choices = write_letters, write_choices
        self._transaction_events = TransactionEvents(catalog, self, queue, settings.restarts_max)

    # -- what the forest calls -------------------------------------------------------------

    def began(self, t: TransactionNode) -> None:
        """Handle the begin of a top-level transaction: lock the detectors that it has to, first."""
        for rule in sorted(t.hierarchy.run.detectors):
            lock_detector(t, rule)
        self._transaction_events.occur(t, "begin")

    def changed(
        self, t: TransactionNode, spec: TableSpec, old: Row | None, new: Row | None
    ) -> None:
        """Raise the data-change event of a written row, if any rule listens to it."""
        if (o := self._row_event(t, spec, old, new)) is not None:
            self.occurred(t, o, undated=not t.has_event_time)

    def changed_all(self, t: TransactionNode, spec: TableSpec, versions: Sequence[Version]) -> None:
        """Raise an event per row of one statement; set-oriented rules fire once, at the end."""
        sets: list[Triggered] = []
        for _, old, new in versions:
            if (o := self._row_event(t, spec, old, new)) is not None:
                single: list[Triggered] = []
                for item in self._fed(t, o, undated=not t.has_event_time):
                    is_set = item.rule.set_oriented and item.rule.coupling is Coupling.IMMEDIATE
                    (sets if is_set else single).append(item)
                if single:
                    self.trigger(t, single)
        if sets:
            self.trigger(t, sets)

    def at_commit_point(self, t: TransactionNode) -> None:
        """Run the deferred cycles of `t`; at the top, record letters, choices and firings."""
        if t.parent is None:
            self._transaction_events.occur(t, "commit")
        context = self.contexts.live.get(t.id)
        is_top = t.parent is None
        if context is None and is_top and self.run_ends.has_triggered(t.hierarchy.run):
            context = self.contexts.of(t)  # to end what earlier tries have begun
        if context is None:
            if is_top and self.catalog.drafts:
                self.kept.at_commit_point(t, (), self.catalog.given_up(t))
            return
        try:
            while cycle := context.cycles.next_cycle():
                self.runner.run_children(t, cycle, deferred=True)
        except CycleBoundReached as error:
            raise too_many_cycles(t, error.bound, cast("list[Triggered]", error.pending)) from error
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
        self.run_ends.at_commit_point(t, context)

    def aborting(self, t: TransactionNode) -> None:
        """Withdraw the occurrences that `t` has fed, while `t` still locks their detectors."""
        if (context := self.contexts.live.get(t.id)) is not None:
            self.feeding.aborting(context)

    def ended(self, t: TransactionNode) -> None:
        """Pass the trigger context of `t` to its parent; at the top, start its firings."""
        if self.catalog.drafts:
            self.catalog.ended(t)
        context = self.contexts.live.pop(t.id, None)
        if t.state is State.ABORTED:
            self._transaction_events.aborted(t)
        if context is None:
            return
        if t.state is State.ABORTED:
            self.run_ends.causal.aborted(context.firings)
            if t.parent is None:
                self._queue.ended(t)
                if context.firings and isinstance(t.hierarchy.session.failure, ConnectionLost):
                    self._queue.look()  # the server may have committed
                self.run_ends.exclusive.tried(t.hierarchy.run)
                if not t.hierarchy.run.is_retried:
                    self.run_ends.failed(t.hierarchy.run.name)
        elif t.parent is not None:
            self.contexts.pass_on(context, t.parent)
        else:
            self.feeding.committed(context)
            self.quarantine.ended(context.outcomes)
            self.run_ends.committed(t, context)

    def gave_up(self, run: Run, error: BaseException) -> None:
        """Handle a run that has failed for good, unless its work may be repeated later."""
        self._transaction_events.gave_up(run)
        if not (run.is_batch or run.is_detached):  # a firing fails for good with its dead letter
            self.run_ends.failed(run.name)

    # -- raising events --------------------------------------------------------------------

    def occurred(self, t: TransactionNode, o: Occurrence, *, undated: bool = False) -> None:
        """Trigger the rules that listen to `o`, which was raised in `t`.

        Parameters
        ----------
        undated : bool
            True if its time comes from the clock of this try, and does not identify the event.
        """
        triggered = self._fed(t, o, undated=undated)
        if triggered:
            self.trigger(t, triggered)

    def feed_alone(self, t: TransactionNode, o: Occurrence) -> list[Triggered]:
        """Feed the undated `o`, raised in `t`; return what it triggers, to `trigger` it.

        Each rule fails alone, whatever its `on_abort`, and so does each detector.
        """
        refused = self.feeding.refused_in(t, o, alone=True)
        triggered, fed = self.feeding.feed(o, t, undated=True, refused=refused)
        self.feeding.keep(t, fed, undated=True)
        return [replace(item, rule=replace(item.rule, on_abort=OnAbort.RULE)) for item in triggered]

    def trigger(self, t: TransactionNode, triggered: list[Triggered]) -> None:
        """Start the rules triggered in `t` by one event, each in its coupling mode."""
        for hear in self.listeners.triggered:
            hear(t, triggered)
        self.contexts.of(t).events += 1
        immediate: list[Triggered] = []
        others: list[Triggered] = []
        for item in triggered:
            (immediate if item.rule.coupling is Coupling.IMMEDIATE else others).append(item)
        if others:
            self._trigger_others(t, others)
        if immediate:
            self.runner.run_children(t, immediate, deferred=False)

    def trigger_in_child(
        self, t: TransactionNode, triggered: list[Triggered], label: str, us: int
    ) -> None:
        """Trigger as `trigger` does, but in a child of `t` at the time `us`."""
        run_child(t, lambda s: self.trigger(s, triggered), label=label, timestamp=moment_of(us))

    def trigger_alone(
        self, t: TransactionNode, item: Triggered, label: str, us: int, identity: str
    ) -> None:
        """Trigger one rule in a child of `t`; its failure is a letter, and `t` continues."""
        try:
            self.trigger_in_child(t, [item], label, us)
        except Exception as error:
            if is_systemic(error, t):
                raise
            failed = error if isinstance(error, RuleFailed) else failure_of(item.rule.name, error)
            letter = Letter.of_rule(identity, item.occurrence, failed)
            self.contexts.keep_letters(t, [letter])

    # -- inside ----------------------------------------------------------------------------

    def _trigger_others(self, t: TransactionNode, triggered: list[Triggered]) -> None:
        """Start, record or defer rules that are not immediate."""

        def by_mode(*modes: Coupling) -> list[Triggered]:
            return [item for item in triggered if item.rule.coupling in modes]

        context = self.contexts.of(t)
        dependent = by_mode(Coupling.CAUSAL, Coupling.SEQUENTIAL)
        detached, exclusive = by_mode(Coupling.DETACHED), by_mode(Coupling.EXCLUSIVE)
        undated = self.contexts.undated_in(t) if detached or dependent or exclusive else ()
        if dependent or exclusive:
            self.contexts.of(t.top)  # the top decides on them, even if `t` aborts
        lost: list[Letter] = []  # of firings whose occurrence cannot be encoded
        if detached:
            self._queue.fire(t, detached, context.events, undated)
        if dependent:
            firings, lost = self._queue.prepare(t, dependent, undated)
            self.contexts.keep_firings(t, firings)
            self.run_ends.causal.begin(t, firings)
        if exclusive:
            names, more = self.run_ends.exclusive.intend(t, exclusive, undated)
            lost += more
            with self.contexts.latch:
                context.intents |= names
        if lost:
            self.counters.add("rules_failed", len(lost))
            self.contexts.keep_letters(t, lost)
        if deferred := by_mode(Coupling.DEFERRED):
            self.contexts.defer(t, deferred)

    def _row_event(
        self, t: TransactionNode, spec: TableSpec, old: Row | None, new: Row | None
    ) -> Occurrence | None:
        """Return the event of a written row; None if no rule or listener listens to it."""
        key = ("insert" if old is None else "delete" if new is None else "update", spec.name)
        if key in self.catalog.by_key or self.catalog.drafts or self.listeners.hears_all:
            if spec.has_mutable:
                old, new = old and spec.shown(old), new and spec.shown(new)
            return row_change(key, t.timestamp, old, new)
        return None

    def _fed(self, t: TransactionNode, o: Occurrence, *, undated: bool) -> list[Triggered]:
        """Feed `o`, for which `t` is then responsible; return what it triggers."""
        triggered, fed = self.feeding.feed(o, t, undated=undated)
        if fed:
            self.feeding.keep(t, fed, undated=undated)
        return triggered
