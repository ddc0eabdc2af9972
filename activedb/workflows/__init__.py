"""Durable workflows of atomic batches: defined by functions, run, resumed and compensated.

See ``README.md`` in this folder. The logic is that of `activedb.batches`.
"""

from activedb.workflows._definition import Execution, WorkflowDefinition, WorkflowProgram
from activedb.workflows._history import BatchHistory, RecordedBatch, RecordedLineage
from activedb.workflows._run import BatchRun

__all__ = [
    "BatchHistory",
    "BatchRun",
    "Execution",
    "RecordedBatch",
    "RecordedLineage",
    "WorkflowDefinition",
    "WorkflowProgram",
]
