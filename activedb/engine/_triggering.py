"""From an occurrence to the rules it triggers, each in its coupling mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from activedb.engine._letters import Letter
from activedb.errors import (
    ConnectionLost,
    CycleLimitExceeded,
    Deadlock,
    LockTimeout,
    RuleFailed,
    SerializationConflict,
)
from activedb.events import Occurrence
from activedb.metrics import Counters, Histogram
from activedb.rules import Catalog, OccurrenceSet, OnAbort, Rule, Subscription
from activedb.store import Row, TableSpec
from activedb.transactions import State, Transaction
from coupling import Coupling, CycleBoundReached, DeferredCycles, priority_groups

__all__ = ["Fed", "Firing", "Triggered", "Triggering", "is_systemic"]

_SYSTEMIC = (ConnectionLost, Deadlock, LockTimeout, SerializationConflict)


def is_systemic(error: BaseException, t: Transaction) -> bool:
    """Whether `error` is about the transactions around `t` rather than about its own work."""
    return (
        not isinstance(error, Exception)
        or isinstance(error, _SYSTEMIC)
        or t.hierarchy.session.failure is not None
        or t.is_doomed
    )


@dataclass(frozen=True, slots=True)
class Triggered:
    """A rule with the occurrence that triggers it."""

    rule: Rule
    occurrence: Occurrence


@dataclass(frozen=True, slots=True)
class Fed:
    """An occurrence that a detector has kept; withdrawn when its transaction aborts."""

    subscription: Subscription
    occurrence: Occurrence


@dataclass(frozen=True, slots=True)
class Firing:
    """A rule that is to run in a top-level transaction of its own, and its row in the journal."""

    row: dict[str, Any]
    triggered: Triggered


class Launcher(Protocol):
    """What runs rules in top-level transactions of their own."""

    def fire(self, t: Transaction, items: list[Triggered], event: int) -> None:
        """Start the detached rules that the `event`-th event of `t` triggered."""

    def prepare(
        self, t: Transaction, items: list[Triggered], event: int
    ) -> tuple[list[Firing], list[Letter]]:
        """Firings to start later, and a letter for each whose occurrence cannot be kept."""

    def record(self, t: Transaction, firings: list[Firing]) -> None:
        """Make firings durable with the commit of the top-level transaction `t`."""

    def start(self, firings: list[Firing]) -> None:
        """Start firings that are recorded; never fails, as they can be started again."""


@dataclass(slots=True)
class _Trail:
    """What triggering remembers of one live transaction."""

    cycles: DeferredCycles[Triggered]
    fed: list[Fed] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    events: int = 0


class Triggering:
    """Listens to a forest and fires rules.

    Parameters
    ----------
    catalog : Catalog
    launcher : Launcher
    write_letters : callable ``(t, letters)``
        Makes letters durable with the commit of the top-level transaction `t`.
    cycles_max, cascade_max : int
        Bounds on deferred cycles of one commit point and on rules triggering rules.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        launcher: Launcher,
        write_letters: Callable[[Transaction, list[Letter]], None],
        cycles_max: int,
        cascade_max: int,
    ):
        self.catalog = catalog
        self.counters = Counters()
        self.latencies = Histogram()
        self._launcher = launcher
        self._write_letters = write_letters
        self._cycles_max = cycles_max
        self._cascade_max = cascade_max
        self._trails: dict[int, _Trail] = {}
        self._latch = threading.Lock()

    # -- what the forest calls -------------------------------------------------------------

    def changed(self, t: Transaction, spec: TableSpec, old: Row | None, new: Row | None) -> None:
        """A row was written: raise the data-change event if any rule listens."""
        kind = "insert" if old is None else "delete" if new is None else "update"
        catalog = self.catalog
        if (kind, spec.name) in catalog.by_key or catalog.drafts:
            before = None if old is None else spec.shown(old)
            after = None if new is None else spec.shown(new)
            self.occurred(t, Occurrence(spec.name, t.timestamp, old=before, new=after))

    def at_commit_point(self, t: Transaction) -> None:
        """Run the deferred cycles of `t`; at the top, hand over letters and sequential firings."""
        trail = self._trails.get(t.id)
        if trail is None:
            return
        try:
            while cycle := trail.cycles.next_cycle():
                self._run_children(t, cycle, deferred=True)
        except CycleBoundReached as error:
            rules = sorted({item.rule.name for item in error.pending})  # type: ignore[attr-defined]
            raise CycleLimitExceeded(
                f"{t.path}: {error}; still deferred: {', '.join(rules)}. These rules keep "
                f"triggering each other; give one a condition that ends it, or raise cycles_max"
            ) from error
        if t.parent is not None:
            return
        if trail.letters:
            self._write_letters(t, trail.letters)
        if trail.firings:
            self._launcher.record(t, trail.firings)

    def ended(self, t: Transaction) -> None:
        """Pass the trail of `t` on to its parent, or withdraw what it fed.

        At the top, start what waited for the commit.
        """
        if self.catalog.drafts:
            self.catalog.ended(t)
        trail = self._trails.pop(t.id, None)
        if trail is None:
            return
        if t.state is State.ABORTED:
            self.withdraw(trail.fed)
        elif t.parent is not None:
            above = self._trail(t.parent)
            with self._latch:
                above.fed += trail.fed
                above.letters += trail.letters
                above.firings += trail.firings
        else:
            newest: dict[Subscription, int] = {}
            for fed in trail.fed:
                newest[fed.subscription] = max(
                    newest.get(fed.subscription, fed.occurrence.us), fed.occurrence.us
                )
            for subscription, us in newest.items():
                subscription.trim(us)
            self._launcher.start(trail.firings)

    # -- raising events --------------------------------------------------------------------

    def occurred(self, t: Transaction, o: Occurrence) -> None:
        """`o` was raised in `t`: trigger the rules that listen to it."""
        triggered, fed = self.feed(o, t)
        if fed:
            self.keep(t, fed)
        if triggered:
            self.trigger(t, triggered)

    def feed(self, o: Occurrence, t: Transaction) -> tuple[list[Triggered], list[Fed]]:
        """Show `o` to the detectors that listen to it in `t`; what it triggers, and who kept it."""
        triggered: list[Triggered] = []
        fed: list[Fed] = []
        try:
            for subscription in self.catalog.listening_to(o.key, t):
                matches = subscription.feed(o)
                if subscription.is_composite:
                    fed.append(Fed(subscription, o))
                    if matches:
                        self.counters.add("matches", len(matches))
                triggered += [Triggered(subscription.rule, match) for match in matches]
        except BaseException:
            self.withdraw(fed)
            raise
        return triggered, fed

    def keep(self, t: Transaction, fed: list[Fed]) -> None:
        """Make `t` responsible for what was fed."""
        self._trail(t).fed += fed

    def take_back(self, t: Transaction, fed: list[Fed]) -> None:
        """Withdraw what was fed for one event of `t` that failed, while `t` goes on."""
        trail = self._trail(t)
        for item in fed:
            if item in trail.fed:
                trail.fed.remove(item)
        self.withdraw(fed)

    def absorb(self, o: Occurrence) -> None:
        """Show the detectors an event that was processed before a restart."""
        for subscription in self.catalog.listening_to(o.key):
            if subscription.is_composite:
                subscription.feed(o)

    def withdraw(self, fed: Iterable[Fed]) -> None:
        """Take occurrences back from the detectors that kept them."""
        for item in fed:
            item.subscription.withdraw(item.occurrence)

    def trigger(self, t: Transaction, triggered: list[Triggered]) -> None:
        """Start what was triggered in `t` by one event, each in its coupling mode."""
        trail = self._trail(t)
        trail.events += 1
        modes = [(item, item.rule.coupling) for item in triggered]
        detached = [item for item, mode in modes if mode is Coupling.DETACHED]
        sequential = [item for item, mode in modes if mode is Coupling.SEQUENTIAL]
        deferred = [item for item, mode in modes if mode is Coupling.DEFERRED]
        immediate = [item for item, mode in modes if mode is Coupling.IMMEDIATE]
        if detached:
            self._launcher.fire(t, detached, trail.events)
        if sequential:
            firings, letters = self._launcher.prepare(t, sequential, trail.events)
            if letters:
                self.counters.add("rules_failed", len(letters))
            with self._latch:
                trail.firings += firings
                trail.letters += letters
        if deferred:
            owner = t.parent if t.deferred and t.parent is not None else t
            cycles = self._trail(owner).cycles
            with self._latch:
                for item in deferred:
                    cycles.defer(item)
        if immediate:
            self._run_children(t, immediate, deferred=False)

    # -- running rules ---------------------------------------------------------------------

    def _run_children(self, t: Transaction, items: list[Triggered], *, deferred: bool) -> None:
        """Run rules as children: group after group, the rules of one group in parallel."""
        self._check_cascade(t, items)
        for group in priority_groups(items, lambda item: item.rule.priority):
            by_rule: dict[str, list[Triggered]] = {}
            for item in group:
                by_rule.setdefault(item.rule.name, []).append(item)
            calls = [
                self._calls_of_rule(t, same_rule, deferred=deferred)
                for same_rule in by_rule.values()
            ]
            if len(calls) == 1:
                calls[0]()
            else:
                t.run_in_parallel(calls)

    def _calls_of_rule(
        self, t: Transaction, items: list[Triggered], *, deferred: bool
    ) -> Callable[[], None]:
        """One rule's occurrences, one after another, each in a child of its own.

        Those of a set-oriented rule fire its newest version once.
        """
        if items[-1].rule.set_oriented:
            occurrences = OccurrenceSet([item.occurrence for item in items])
            items = [Triggered(items[-1].rule, occurrences)]
        labels = [f"{t.next_label()}.{item.rule.name}" for item in items]

        def call() -> None:
            for label, item in zip(labels, items, strict=True):
                self._run_child(t, item, label=label, deferred=deferred)

        return call

    def _run_child(self, t: Transaction, item: Triggered, *, label: str, deferred: bool) -> None:
        rule = item.rule
        try:
            t.run_child(
                lambda s: self.run_rule(s, item), label=label, rule=rule.name, deferred=deferred
            )
        except Exception as error:
            if is_systemic(error, t) or isinstance(error, CycleLimitExceeded):
                raise
            failed = RuleFailed(f"rule {rule.name} failed: {error}", rule=rule.name)
            if rule.on_abort is OnAbort.TRIGGERING:
                t.doom(failed)  # also if the code that triggered the rule swallows the error
                raise failed from error
            failed.__cause__ = error
            self.counters.add("rules_failed")
            trail = self._trail(t)
            with self._latch:
                trail.letters.append(Letter.of_rule(f"{t.path}/{label}", item.occurrence, failed))

    def run_rule(self, s: Transaction, item: Triggered) -> None:
        """Condition and action of a rule in its own (sub)transaction `s`."""
        began = time.perf_counter()
        rule, o = item.rule, item.occurrence
        if rule.holds(s, o):
            rule.act(s, o)
            self.counters.add("rules_fired")
            self.latencies.record(time.perf_counter() - began)

    def _check_cascade(self, t: Transaction, items: list[Triggered]) -> None:
        chain: list[str] = []
        node: Transaction | None = t
        while node is not None:
            if node.rule is not None:
                chain.append(node.rule)
            node = node.parent
        if len(chain) >= self._cascade_max:
            shown = " → ".join([*reversed(chain[:4]), items[0].rule.name])
            raise CycleLimitExceeded(
                f"rules trigger rules {len(chain)} deep (… {shown}); give one of them a condition "
                f"that ends it, or raise cascade_max"
            )

    def _trail(self, t: Transaction) -> _Trail:
        trail = self._trails.get(t.id)
        if trail is None:
            with self._latch:
                trail = self._trails.setdefault(t.id, _Trail(DeferredCycles(self._cycles_max)))
        return trail
