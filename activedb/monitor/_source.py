"""What pages and terminals look at: a monitor in this process, or one far away."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["Source"]


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
