"""Interfaces of a monitor: to its readers, and to the database object that it watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from activedb.config import Settings
from activedb.errors import ConfigurationError
from activedb.internals import Internals

__all__ = ["ReadOnly", "Source", "Subject"]


class Subject(Protocol):
    """A `Database`; not imported, since it imports this package."""

    settings: Settings
    rules: Any
    decisions: Any
    dead_letters: Any
    workflows: Any

    @property
    def admin(self) -> Administration:
        """Counters, pending firings and internals of the database."""
        ...


class Administration(Protocol):
    """``db.admin``, as far as a monitor uses it."""

    internals: Internals

    def counters(self) -> dict[str, int]:
        """Return counts since opening."""
        ...

    def pending_firings(self) -> Sequence[Any]:
        """Return the recorded firings that are not done."""
        ...


class ReadOnly(ConfigurationError):
    """Error of a change through a monitor that is read-only."""


class Source(Protocol):
    """Activity of a process, as values that can be written as JSON.

    ``docs/monitoring.md`` describes the fields. Times are seconds since 1970; ids of transactions
    are local to that process.
    """

    def state(self, since: int = 0) -> dict[str, Any]:
        """Return the present state, and the events since an earlier poll.

        Parameters
        ----------
        since : int
            ``last_seq`` of that poll; 0: as much as is kept.
        """
        ...

    def transaction(self, id: int) -> dict[str, Any] | None:
        """Return the story of a transaction; None if it is not kept any more."""
        ...

    def deadlock(self, n: int) -> dict[str, Any] | None:
        """Return the `n`-th deadlock step by step; None if it is not kept any more."""
        ...

    def batches(self, workflow: str | None = None, id: str | None = None) -> dict[str, Any]:
        """Return the recorded batches of a workflow, by default of the only one.

        Parameters
        ----------
        id : str, optional
            A batch, whose lineage is reported and drawn, too.

        Raises
        ------
        ConfigurationError
            If there is no record of such a workflow or batch.
        """
        ...

    def letters(self) -> dict[str, Any]:
        """Return the dead letters: the number of each kind, and the last ones."""
        ...

    def decisions(self) -> dict[str, Any]:
        """Return the open decisions: their number, and the first ones."""
        ...

    def resolve(self, id: str, chosen: Sequence[int]) -> None:
        """Decide: make the candidates of these numbers, and no other; if empty, make none.

        Raises
        ------
        ConfigurationError
            If decisions cannot be made from outside, or there is no such candidate; through HTTP
            also for the two errors below.
        DefinitionError
            If there is no such decision.
        DecisionClosed
            If it was decided before, or can no longer be decided.
        RuleFailed, BadEvent
            If the rule raises, or the candidates cannot be chosen so. The decision stays open.
        """
        ...

    def pending(self) -> dict[str, Any]:
        """Return the firings that are recorded and not done."""
        ...

    def switch(self, rule: str, enabled: bool) -> None:
        """Enable or disable a rule.

        Raises
        ------
        ConfigurationError
            If rules cannot be switched from outside.
        DefinitionError
            If there is no such rule.
        """
        ...
