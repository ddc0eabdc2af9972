"""ACTA: recorded histories of transactions, and an auditor of the 30 axioms of rule execution.

Standard library only. See ``README.md`` in this folder.
"""

from coupling.acta._auditor import audit
from coupling.acta._axioms import AXIOMS, Violation
from coupling.acta._history import (
    Abort,
    AbortOperation,
    BadLine,
    Begin,
    Commit,
    CommitOperation,
    Delegate,
    Event,
    History,
    Operation,
    OperationKind,
    Spawn,
    SpawnMode,
)

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
