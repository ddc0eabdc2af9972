"""What triggering remembers of live transactions."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from activedb.engine._letters import Letter
from activedb.engine._triggered import Fed, Firing, Triggered
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
    letters : list of Letter
        Rules below it that failed alone; written with the top-level commit.
    firings : list of Firing
        Sequential rules below it; recorded by the top-level commit, started after it.
    events : int
        How many events have triggered rules in it; names firings.
    """

    cycles: DeferredCycles[Triggered]
    fed: list[Fed] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    firings: list[Firing] = field(default_factory=list)
    events: int = 0


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

    def pass_on(self, trail: Trail, above: Transaction) -> None:
        """Add what is left of a trail, whose transaction has committed, to the parent's."""
        mine = self.of(above)
        with self.latch:
            mine.fed += trail.fed
            mine.letters += trail.letters
            mine.firings += trail.firings
