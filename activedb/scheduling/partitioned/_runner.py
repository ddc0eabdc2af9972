"""Interface of runners of tasks in other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from activedb.scheduling.partitioned._costs import Costs

__all__ = ["TaskRunner"]


class TaskRunner(Protocol):
    """Runner of tasks in other processes, several at once; it may run a task more than once."""

    @property
    def slots(self) -> int:
        """Number of tasks that run at once; with fewer than 2, tasks are not used."""
        ...

    @property
    def costs(self) -> Costs:
        """Costs of tasks; if 0, all batches with at least two parts are run in tasks."""
        ...

    def dumps(self, value: Any) -> bytes:
        """Pickle any value that can be sent, including functions outside modules."""
        ...

    def run(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Return the results of ``run_task(payload, dumps)`` for each payload, in their order.

        Raises
        ------
        ActiveDBError
            If a task could not be run.
        """
        ...
