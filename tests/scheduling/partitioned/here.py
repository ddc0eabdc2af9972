"""Tasks that run in this process, each pickled and read again as for another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from activedb.scheduling.partitioned import Costs, run_task

__all__ = ["TasksHere"]

cloudpickle = pytest.importorskip("pyspark.cloudpickle", reason="no Spark")


class TasksHere:
    """Runner of tasks one after the other, in any order, some of them twice, as in Spark.

    Attributes
    ----------
    slots : int
    costs : Costs
        By default none: every batch that has two parts is run in tasks.
    tasks : int
        Number of tasks it was given.
    """

    def __init__(self, slots: int = 3, costs: Costs | None = None):
        self.slots = slots
        self.costs = Costs(0, 0) if costs is None else costs
        self.tasks = 0

    def dumps(self, value: Any) -> bytes:
        dumped: bytes = cloudpickle.dumps(value)
        return dumped

    def run(self, payloads: Sequence[bytes]) -> list[bytes]:
        self.tasks += len(payloads)
        run_task(payloads[0], self.dumps)
        answers = [run_task(payload, self.dumps) for payload in reversed(payloads)]
        return answers[::-1]
