"""ACTA: recorded histories of transactions, and an auditor of the 30 axioms of rule execution.

Standard library only. See ``README.md`` in this folder.
"""

from coupling.acta._auditor import audit
from coupling.acta._axioms import AXIOMS, AxiomViolation
from coupling.acta._history import (
    AbortEvent,
    AbortOperation,
    BadLine,
    BeginEvent,
    CommitEvent,
    CommitOperation,
    DelegateEvent,
    Event,
    History,
    ObjectOperation,
    OperationKind,
    SpawnEvent,
    SpawnMode,
)

__all__ = [
    "AXIOMS",
    "AbortEvent",
    "AbortOperation",
    "AxiomViolation",
    "BadLine",
    "BeginEvent",
    "CommitEvent",
    "CommitOperation",
    "DelegateEvent",
    "Event",
    "History",
    "ObjectOperation",
    "OperationKind",
    "SpawnEvent",
    "SpawnMode",
    "audit",
]
