"""What triggering remembers of live transactions."""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from activedb.events import Occurrence
from activedb.firing._letters import Letter
from activedb.firing._triggered import Fed, Firing, Triggered
from activedb.rules import Subscription, Taken
from activedb.transactions import Transaction
from coupling import DeferredCycles

__all__ = ["Trail", "Trails"]


@dataclass(slots=True)
class Trail:
    """What triggering remembers of one live transaction.

    Attributes
    ----------
    cycles : DeferredCycles
        The deferred rules that wait for its commit point.
    fed : list of Fed
        Occurrences that detectors have kept for it; withdrawn if it aborts.
    taken : list of (Subscription, Occurrence)
        Matches that time has completed and that have triggered their rules below it; they are in
        hand again if it aborts.
    before : list of (Subscription, state)
        Detectors in which choices were made below it, as they were before; so again if it aborts.
    choices : list of (Subscription, Taken)
        What detectors have left open, or decided; recorded by the top-level commit.
    letters : list of Letter
        Rules below it that failed alone; written with the top-level commit.
    firings : list of Firing
        Sequential and causal rules below it; recorded by the top-level commit, the sequential
        ones started after it.
    intents : set of str
        Names of the firings of exclusive rules below it; the top-level commit erases them.
    events : int
        How many events have triggered rules in it; names firings.
    next_level : list of Triggered
        Breadth-first: rules that were triggered in it or below, for the level after that at which
        the rule around it runs.
    next_cycle : list of Triggered
        In the transaction of a deferred rule: what is deferred to the parent's next cycle.
    undated : dict of int to Occurrence
        By identity: those of `fed` whose time is only when this try came to them.
    """

    cycles: DeferredCycles[Triggered]
    fed: list[Fed] = field(default_factory=list)
    taken: list[tuple[Subscription, Occurrence]] = field(default_factory=list)
    before: list[tuple[Subscription, dict[str, Any]]] = field(default_factory=list)
    choices: list[tuple[Subscription, Taken]] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    intents: set[str] = field(default_factory=set)
    events: int = 0
    next_level: list[Triggered] = field(default_factory=list)
    next_cycle: list[Triggered] = field(default_factory=list)
    undated: dict[int, Occurrence] = field(default_factory=dict)


class Trails:
    """The trails of the live transactions that need one.

    Attributes
    ----------
    latch : threading.Lock
        Guards what children of one transaction add to its trail; nothing is taken under it.
    """

    def __init__(self, cycles_max: int):
        self.latch = threading.Lock()
        self._cycles_max = cycles_max
        self._trails: dict[int, Trail] = {}

    def of(self, t: Transaction) -> Trail:
        """The trail of a live transaction, begun if there is none."""
        trail = self._trails.get(t.id)
        if trail is None:
            with self.latch:
                trail = self._trails.setdefault(t.id, Trail(DeferredCycles(self._cycles_max)))
        return trail

    def get(self, t: Transaction) -> Trail | None:
        """The trail of a transaction, if it has one."""
        return self._trails.get(t.id)

    def end(self, t: Transaction) -> Trail | None:
        """Take the trail of a transaction that has ended, if it has one."""
        return self._trails.pop(t.id, None)

    def defer(self, t: Transaction, items: list[Triggered]) -> None:
        """Let rules that were triggered in `t` wait for a commit point.

        For its own, or if it is itself that of a deferred rule, for the parent's next cycle.
        """
        trail = self.of(t)
        with self.latch:
            if t.deferred and t.parent is not None:
                trail.next_cycle += items
            else:
                for item in items:
                    trail.cycles.defer(item)

    def undated_in(self, t: Transaction) -> Container[int]:
        """The occurrences, by identity, of `t` and its superiors that are `undated`; O(depth)."""
        found: list[dict[int, Occurrence]] = []
        node: Transaction | None = t
        while node is not None:
            trail = self._trails.get(node.id)
            if trail is not None and trail.undated:
                found.append(trail.undated)
            node = node.parent
        return ChainMap(*found)

    def take_level(self, t: Transaction) -> list[Triggered]:
        """The rules of the next level below `t`, which do not wait any more."""
        trail = self.of(t)
        with self.latch:
            found, trail.next_level = trail.next_level, []
        return found

    def pass_on(self, trail: Trail, above: Transaction) -> None:
        """Add what is left of a trail, whose transaction has committed, to the parent's."""
        mine = self.of(above)
        with self.latch:
            mine.fed += trail.fed
            mine.before += trail.before
            mine.choices += trail.choices
            mine.letters += trail.letters
            mine.firings += trail.firings
            mine.intents |= trail.intents
            mine.next_level += trail.next_level
            mine.undated |= trail.undated
            if above.deferred and above.parent is not None:
                mine.next_cycle += trail.next_cycle
            else:
                for item in trail.next_cycle:
                    mine.cycles.defer(item)
