"""What pages and terminals look at: a monitor in this process, or one far away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from activedb.errors import ConfigurationError

__all__ = ["ReadOnly", "Source"]


class ReadOnly(ConfigurationError):
    """Nothing can be changed from outside."""


class Source(Protocol):
    """Tells what a process does, as values that can be written as JSON.

    ``docs/monitoring.md`` has the fields. Times are seconds since 1970; ids of transactions are
    numbers of that process.
    """

    def state(self, since: int = 0) -> dict[str, Any]:
        """What there is now, and what has happened since an earlier look.

        Parameters
        ----------
        since : int
            ``last_seq`` of that look; 0: as much as is kept.
        """
        ...

    def transaction(self, id: int) -> dict[str, Any] | None:
        """The story of a transaction; None if it is not kept any more."""
        ...

    def deadlock(self, n: int) -> dict[str, Any] | None:
        """The `n`-th deadlock step by step; None if it is not kept any more."""
        ...

    def batches(self, workflow: str | None = None, id: str | None = None) -> dict[str, Any]:
        """The recorded batches of a workflow, by default of the only one.

        Parameters
        ----------
        id : str, optional
            A batch, whose lineage is told and drawn, too.

        Raises
        ------
        ConfigurationError
            If nothing is recorded of such a workflow or batch.
        """
        ...

    def letters(self) -> dict[str, Any]:
        """The dead letters: how many of each kind, and the last ones."""
        ...

    def decisions(self) -> dict[str, Any]:
        """The decisions that are open: how many, and the first ones."""
        ...

    def resolve(self, id: str, chosen: Sequence[int]) -> None:
        """Decide: make the candidates of these numbers, and no other; none: make nothing.

        Raises
        ------
        ConfigurationError
            If decisions cannot be made from outside, or it has no such candidate; through HTTP
            also for the two below.
        DefinitionError
            If there is no such decision.
        DecisionClosed
            If it was decided before, or can no longer be made.
        RuleFailed, BadEvent
            If the rule raises, or two of the chosen exclude each other. It is open as before.
        """
        ...

    def pending(self) -> dict[str, Any]:
        """The firings that are recorded and not done."""
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
