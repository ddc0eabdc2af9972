"""Interface of listeners to events and rules, and the statistics per rule."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from activedb.events import Occurrence
from activedb.firing._triggered import Triggered, is_systemic
from activedb.metrics import Histogram
from activedb.transactions import TransactionNode

__all__ = ["Ran", "RuleFigure", "RuleFigures", "RuleListener", "RuleListeners"]


Ran: TypeAlias = Literal["acted", "condition false", "action later", "failed"]
"""Outcome of one run of a rule: the action has run; the condition was false; the action will run
in a separate transaction, or at the commit point; the rule has raised."""


class RuleListener:
    """Base class of listeners to events and rules; each method does nothing.

    Methods are called on the thread on which the event or run happens, with no latch held. An
    error of a method fails the work around the call. A retried transaction repeats all calls.
    """

    def raised(self, t: TransactionNode, o: Occurrence) -> None:
        """Handle `o`, raised in `t` and about to be shown to the detectors of rules.

        Row writes are reported only if some rule listens to them, unless `hears_all` is set.
        """

    hears_all = False
    """True to report row writes that no rule listens to, too; each costs an occurrence."""

    def triggered(self, t: TransactionNode, items: Sequence[Triggered]) -> None:
        """Handle rules triggered in `t` by one event; each runs in its coupling mode."""

    def starts(self, s: TransactionNode, item: Triggered) -> None:
        """Handle a rule, or its action alone, that is about to run in `s`."""

    def ran(
        self,
        s: TransactionNode,
        item: Triggered,
        outcome: Ran,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Handle a rule, or its action alone, that has run in `s`, which has not ended yet.

        Parameters
        ----------
        seconds : float
            Time from the start of its condition to the end of its action.
        error : BaseException or None
            The error of a failed run.
        """


class RuleListeners:
    """Listeners to the events and rules of a database.

    Attributes
    ----------
    each : tuple of RuleListener
        Present listeners; another tuple after each change.
    raised, triggered, starts, ran : tuple of callable
        Their methods of these names, except those that do nothing.
    hears_all : bool
        True if one of them hears row writes that no rule listens to.
    """

    def __init__(self, *listeners: RuleListener):
        self._set(listeners)

    def add(self, listener: RuleListener) -> None:
        """Add a listener to events and rules from now on."""
        self._set((*self.each, listener))

    def remove(self, listener: RuleListener) -> None:
        """Remove a listener."""
        self._set(tuple(each for each in self.each if each is not listener))

    def _set(self, listeners: tuple[RuleListener, ...]) -> None:
        self.each = listeners
        self.raised = _defined(listeners, "raised")
        self.triggered = _defined(listeners, "triggered")
        self.starts = _defined(listeners, "starts")
        self.ran = _defined(listeners, "ran")
        self.hears_all = any(listener.hears_all for listener in listeners)


def _defined(listeners: Sequence[RuleListener], name: str) -> tuple[Callable[..., None], ...]:
    """Return the method of this name of each listener that defines it itself."""
    nothing: Any = getattr(RuleListener, name)
    return tuple(
        getattr(listener, name)
        for listener in listeners
        if getattr(type(listener), name) is not nothing
    )


class RuleFigure:
    """Statistics of one rule in this process, over all its versions, since the database was opened.

    Attributes
    ----------
    matched : int
        Number of times the rule was triggered.
    fired, conditions_false, actions_later, failed, aborted : int
        Numbers of runs by outcome: the action has run; the condition was false; the action runs
        later, as a separate run; the rule has raised; the run was aborted through no fault of the
        rule, by a deadlock or the end of a superior, for example.
    quarantined : int
        Number of runs that quarantine has prevented.
    undecided : int
        Number of choices that its event has left open.
    latencies : Histogram
        Times from the start of a run to the end of its action.
    last_fired_s : float
        Time of the last firing, in seconds since 1970; 0 if it never fired.

    Each retry of a run's transaction counts as another run. The fields are guarded by the latch of
    the owning `RuleFigures`; reading a field needs no latch.
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
        """Return the numbers of runs by outcome."""
        return {
            "fired": self.fired,
            "condition_false": self.conditions_false,
            "action_later": self.actions_later,
            "failed": self.failed,
            "aborted": self.aborted,
            "quarantined": self.quarantined,
        }


class RuleFigures(RuleListener):
    """Statistics of all rules of one database object; each update costs O(1).

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._figures: defaultdict[str, RuleFigure] = defaultdict(RuleFigure)

    def of_rules(self) -> dict[str, RuleFigure]:
        """Return the figures by rule name, in the order of first use; including deleted rules."""
        with self._latch:
            return dict(self._figures)

    def latencies(self) -> Histogram:
        """Return the present latencies of all rules together; O(rules)."""
        return Histogram.merged(figure.latencies for figure in self.of_rules().values())

    def triggered(self, t: TransactionNode, items: Sequence[Triggered]) -> None:
        """Count the triggered rules."""
        with self._latch:
            for item in items:
                self._figures[item.rule.name].matched += 1

    def ran(
        self,
        s: TransactionNode,
        item: Triggered,
        outcome: Ran,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """Count the run by its outcome."""
        if outcome == "acted":
            with self._latch:
                figure = self._figures[item.rule.name]
                figure.fired += 1
                figure.last_fired_s = time.time()
            figure.latencies.record(seconds)
            return
        is_undone = error is not None and is_systemic(error, s)
        with self._latch:
            figure = self._figures[item.rule.name]
            if outcome == "condition false":
                figure.conditions_false += 1
            elif outcome == "action later":
                figure.actions_later += 1
            elif is_undone:
                figure.aborted += 1
            else:
                figure.failed += 1

    def refused(self, rule: str) -> None:
        """Count a run that quarantine has prevented."""
        with self._latch:
            self._figures[rule].quarantined += 1

    def undecided(self, rule: str, count: int) -> None:
        """Add the number of choices that the event of a rule has left open."""
        with self._latch:
            self._figures[rule].undecided += count
