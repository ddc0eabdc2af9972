"""S-transactions that share no state, run as tasks in other processes. See README.md."""

from activedb.scheduling.partitioned._scheduler import Costs, Partitioned, TaskRunner
from activedb.scheduling.partitioned._task import run_task

__all__ = ["Costs", "Partitioned", "TaskRunner", "run_task"]
