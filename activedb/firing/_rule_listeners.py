"""Who hears of events and rules as they happen: figures, monitors, what tests assert on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from activedb.events import Occurrence
from activedb.firing._triggered import Triggered
from activedb.transactions import Transaction

__all__ = ["Ran", "RuleListener"]

Ran: TypeAlias = Literal["acted", "condition false", "action later", "failed"]
"""What came of one run of a rule: its action has run; its condition was false; its action is to run
in a transaction of its own, or at the commit point; something was raised."""


class RuleListener:
    """Hears of events and rules; made to be derived from, each method does nothing.

    Called on the thread on which it happens, with no latch held. What a method raises fails the
    work that it is called in. A retried transaction tells everything again.
    """

    def raised(self, t: Transaction, o: Occurrence) -> None:
        """`o` was raised in `t`, and is now shown to the detectors of rules.

        Of writes of rows only those that some rule listens to, unless `hears_all`.
        """

    hears_all = False
    """Whether writes of rows that no rule listens to are told, too; each costs an occurrence."""

    def triggered(self, t: Transaction, items: Sequence[Triggered]) -> None:
        """Rules were triggered in `t`, by one event; each runs in its coupling mode."""

    def starts(self, s: Transaction, item: Triggered) -> None:
        """A rule, or its action alone, is about to run in `s`."""

    def ran(
        self,
        s: Transaction,
        item: Triggered,
        outcome: Ran,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        """A rule, or its action alone, has run in `s`, which has not ended yet.

        Parameters
        ----------
        seconds : float
            From the start of its condition to the end of its action.
        error : BaseException or None
            If it has failed.
        """
