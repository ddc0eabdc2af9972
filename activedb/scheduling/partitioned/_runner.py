"""What runs tasks in other processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from activedb.scheduling.partitioned._costs import Costs

__all__ = ["TaskRunner"]


class TaskRunner(Protocol):
    """Runs tasks elsewhere, several at once; it may run one of them more than once."""

    @property
    def slots(self) -> int:
        """How many tasks run at once; with fewer than 2, there are none."""
        ...

    @property
    def costs(self) -> Costs:
        """What tasks cost; if 0, all batches that have two parts are run in them."""
        ...

    def dumps(self, value: Any) -> bytes:
        """Pickle anything that can be sent, functions that no module has among it."""
        ...

    def run(self, payloads: Sequence[bytes]) -> list[bytes]:
        """What ``run_task(payload, dumps)`` gives for each payload, in their order.

        Raises
        ------
        ActiveDBError
            If one could not be run.
        """
        ...
