"""What each rule has come to: how often it was triggered, how it ended, how long it took."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from activedb.firing._rule_listeners import Ran, RuleListener
from activedb.firing._triggered import Triggered, is_systemic
from activedb.metrics import Histogram
from activedb.transactions import Transaction

__all__ = ["RuleFigure", "RuleFigures"]


class RuleFigure:
    """What one rule has come to in this process, over all its versions, since it was opened.

    Attributes
    ----------
    matched : int
        How often it was triggered.
    fired, conditions_false, actions_later, failed, aborted : int
        How its runs ended: the action was run; the condition was false; the action is to run
        later, as a run of its own; the rule has raised; what went wrong was not the rule's fault,
        such as a deadlock or the end of a superior.
    quarantined : int
        How often it was to run and did not, as it was in quarantine.
    undecided : int
        How often its event has left a choice open.
    latencies : Histogram
        From the start of a run to the end of its action.
    last_fired_s : float
        When it fired last, in seconds since 1970; 0: never.

    A run whose transaction is tried again is one more run. The fields are guarded by the latch of
    who made it; reading one needs none.
    """

    __slots__ = (
        "aborted",
        "actions_later",
        "conditions_false",
        "failed",
        "fired",
        "last_fired_s",
        "latencies",
        "matched",
        "quarantined",
        "undecided",
    )

    def __init__(self) -> None:
        self.matched = self.fired = self.conditions_false = self.actions_later = 0
        self.failed = self.aborted = self.quarantined = self.undecided = 0
        self.latencies = Histogram()
        self.last_fired_s = 0.0

    def outcomes(self) -> dict[str, int]:
        """How often it was to run, by what came of that."""
        return {
            "fired": self.fired,
            "condition_false": self.conditions_false,
            "action_later": self.actions_later,
            "failed": self.failed,
            "aborted": self.aborted,
            "quarantined": self.quarantined,
        }


class RuleFigures(RuleListener):
    """The figures of all rules of one database object; each event costs O(1).

    Latch: ``_latch``; nothing is taken under it.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._figures: dict[str, RuleFigure] = {}

    def of_rules(self) -> dict[str, RuleFigure]:
        """By name, in the order in which the rules were triggered first; deleted ones, too."""
        with self._latch:
            return dict(self._figures)

    def latencies(self) -> Histogram:
        """The latencies of all rules together, as they are now; O(rules)."""
        return Histogram.merged(figure.latencies for figure in self.of_rules().values())

    def triggered(self, t: Transaction, items: Sequence[Triggered]) -> None:
        """Count them."""
        with self._latch:
            for item in items:
                self._of(item.rule.name).matched += 1

    def ran(
        self,
        s: Transaction,
        item: Triggered,
        outcome: Ran,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Count it."""
        if outcome == "acted":
            with self._latch:
                figure = self._of(item.rule.name)
                figure.fired += 1
                figure.last_fired_s = time.time()
            figure.latencies.record(seconds)
            return
        is_undone = error is not None and is_systemic(error, s)
        with self._latch:
            figure = self._of(item.rule.name)
            if outcome == "condition false":
                figure.conditions_false += 1
            elif outcome == "action later":
                figure.actions_later += 1
            elif is_undone:
                figure.aborted += 1
            else:
                figure.failed += 1

    def refused(self, rule: str) -> None:
        """A rule was to run and did not, as it is in quarantine."""
        with self._latch:
            self._of(rule).quarantined += 1

    def undecided(self, rule: str, count: int) -> None:
        """The event of a rule has left so many choices open."""
        with self._latch:
            self._of(rule).undecided += count

    def _of(self, rule: str) -> RuleFigure:
        """REQUIRES: ``_latch``."""
        figure = self._figures.get(rule)
        if figure is None:
            figure = self._figures[rule] = RuleFigure()
        return figure
