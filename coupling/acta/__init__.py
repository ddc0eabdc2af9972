"""ACTA: recorded histories of transactions, and an auditor of the 30 axioms of rule execution.

Standard library only. See ``README.md`` in this folder.
"""

from coupling.acta._auditor import audit
from coupling.acta._axioms import AXIOMS, Violation
from coupling.acta._events import (
    Abort,
    AbortOperation,
    Begin,
    Commit,
    CommitOperation,
    Delegate,
    Event,
    Operation,
    OperationKind,
    Spawn,
    SpawnMode,
)
from coupling.acta._history import BadLine, History

__all__ = [
    "AXIOMS",
    "Abort",
    "AbortOperation",
    "BadLine",
    "Begin",
    "Commit",
    "CommitOperation",
    "Delegate",
    "Event",
    "History",
    "Operation",
    "OperationKind",
    "Spawn",
    "SpawnMode",
    "Violation",
    "audit",
]
