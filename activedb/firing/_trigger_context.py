"""State that triggering keeps for live transactions."""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from activedb.events import Occurrence
from activedb.firing._letters import Letter
from activedb.firing._triggered import Fed, RecordedFiring, Triggered
from activedb.rules import Subscription, Taken
from activedb.transactions import TransactionNode
from coupling import DeferredCycles

__all__ = ["TriggerContext", "TriggerContexts"]


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
        Number of events that have triggered rules in it; used in the names of lines of firings.
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
