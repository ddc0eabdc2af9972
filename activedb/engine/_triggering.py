"""From an occurrence to the rules it triggers, each in its coupling mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from activedb.engine._letters import Letter
from activedb.engine._runner import Runner
from activedb.engine._trails import Trails
from activedb.engine._triggered import Fed, Firing, Triggered
from activedb.errors import CycleLimitExceeded
from activedb.events import Occurrence
from activedb.metrics import Counters
from activedb.rules import Catalog, Subscription
from activedb.store import Row, TableSpec
from activedb.transactions import State, Transaction
from coupling import Coupling, CycleBoundReached

__all__ = ["Triggering"]


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
        self._trails = Trails(cycles_max)
        self.runner = Runner(self._trails, self.counters, cascade_max=cascade_max)
        self._launcher = launcher
        self._write_letters = write_letters

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
        trail = self._trails.get(t)
        if trail is None:
            return
        try:
            while cycle := trail.cycles.next_cycle():
                self.runner.run_children(t, cycle, deferred=True)
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
        trail = self._trails.end(t)
        if trail is None:
            return
        if t.state is State.ABORTED:
            self.withdraw(trail.fed)
        elif t.parent is not None:
            self._trails.pass_on(trail, t.parent)
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
        self._trails.of(t).fed += fed

    def take_back(self, t: Transaction, fed: list[Fed]) -> None:
        """Withdraw what was fed for one event of `t` that failed, while `t` goes on."""
        trail = self._trails.of(t)
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
        trail = self._trails.of(t)
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
            with self._trails.latch:
                trail.firings += firings
                trail.letters += letters
        if deferred:
            owner = t.parent if t.deferred and t.parent is not None else t
            cycles = self._trails.of(owner).cycles
            with self._trails.latch:
                for item in deferred:
                    cycles.defer(item)
        if immediate:
            self.runner.run_children(t, immediate, deferred=False)
