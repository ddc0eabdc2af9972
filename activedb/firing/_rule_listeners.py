"""Interface of listeners to events and rules: figures, monitors, test assertions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from activedb.events import Occurrence
from activedb.firing._triggered import Triggered
from activedb.transactions import Node

__all__ = ["Ran", "RuleListener", "RuleListeners"]

Ran: TypeAlias = Literal["acted", "condition false", "action later", "failed"]
"""Outcome of one run of a rule: the action has run; the condition was false; the action will run
in a separate transaction, or at the commit point; the rule has raised."""


class RuleListener:
    """Base class of listeners to events and rules; each method does nothing.

    Methods are called on the thread on which the event or run happens, with no latch held. An
    error of a method fails the work around the call. A retried transaction repeats all calls.
    """

    def raised(self, t: Node, o: Occurrence) -> None:
        """Handle `o`, raised in `t` and about to be shown to the detectors of rules.

        Row writes are reported only if some rule listens to them, unless `hears_all` is set.
        """

    hears_all = False
    """True to report row writes that no rule listens to, too; each costs an occurrence."""

    def triggered(self, t: Node, items: Sequence[Triggered]) -> None:
        """Handle rules triggered in `t` by one event; each runs in its coupling mode."""

    def starts(self, s: Node, item: Triggered) -> None:
        """Handle a rule, or its action alone, that is about to run in `s`."""

    def ran(
        self,
        s: Node,
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
