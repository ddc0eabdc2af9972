"""Elements of a history: significant events, operations on objects, and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = [
    "Abort",
    "AbortOperation",
    "Begin",
    "Commit",
    "CommitOperation",
    "Delegate",
    "Event",
    "Operation",
    "OperationKind",
    "Spawn",
    "SpawnMode",
]


class SpawnMode(StrEnum):
    """Coupling mode in which a transaction is spawned; the values are the events' names."""

    IMMEDIATE = "spawn_imm"
    DEFERRED = "spawn_def"
    DETACHED = "spawn_detach"
    CAUSAL = "spawn_caus"
    SEQUENTIAL = "spawn_seq"
    EXCLUSIVE = "spawn_exc"

    @property
    def is_child(self) -> bool:
        """True if the spawned transaction is a child of the spawning one (else top-level)."""
        return self is SpawnMode.IMMEDIATE or self is SpawnMode.DEFERRED


class OperationKind(StrEnum):
    """Effect of an operation on its object."""

    READ = "read"
    WRITE = "write"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Begin:
    """Start of a top-level transaction.

    Attributes
    ----------
    by : int
        The transaction.
    parent : int or None
        Parent, as recorded; a value breaks axiom 16.
    """

    by: int
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start of a transaction by another one.

    Attributes
    ----------
    by, child : int
        The spawning and the spawned transaction.
    mode : SpawnMode
    parent : int or None
        Parent of `child`, as recorded: `by` for immediate and deferred mode, else None.
    priority : int or None
        Priority of `child`; None is the lowest.
    cycle : int or None
        Deferred mode: cycle of the commit point of `by` in which the child runs, if the recorder
        knows it. All children without a cycle count as one cycle.
    group : int or None
        Immediate mode: identifier shared with other children of `by` spawned at once, such as the
        rules of one event. Priorities order the children of a group. All children without one are
        a group.
    """

    by: int
    child: int
    mode: SpawnMode
    parent: int | None
    priority: int | None = None
    cycle: int | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit of a transaction; if it is top-level, of every operation it is responsible for."""

    by: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Abort of a transaction, and of every operation it is responsible for."""

    by: int


@dataclass(frozen=True, slots=True)
class Delegate:
    """Transfer of the responsibility for operations to another transaction.

    Attributes
    ----------
    by, to : int
    operations : tuple of int or None
        Numbers of the operations; None: its whole access set.
    """

    by: int
    to: int
    operations: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class CommitOperation:
    """Commit of one operation, by number, for recorders that report single outcomes."""

    by: int
    operation: int


@dataclass(frozen=True, slots=True)
class AbortOperation:
    """Outcome of one operation that is undone; as `CommitOperation`."""

    by: int
    operation: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a transaction on an object.

    Attributes
    ----------
    by : int
    number : int
        At least 1 and unique in the history.
    kind : OperationKind
    object : tuple of str
        Path of the object, such as ``("accounts",)`` for a table, ``("accounts", "7")`` for a row
        in it. Two objects overlap if one path begins the other.
    saw : int or None
        For a read: number of the operation that wrote the version read, 0 for a version older than
        the history, None if the recorder does not know.
    """

    by: int
    number: int
    kind: OperationKind
    object: tuple[str, ...]
    saw: int | None = None

    @property
    def is_read(self) -> bool:
        """True if the operation leaves the object unchanged."""
        return self.kind is OperationKind.READ

    def conflicts_with(self, other: Operation) -> bool:
        """Return whether the order of the two operations matters.

        It does if their objects overlap, unless both are reads.
        """
        if self.is_read and other.is_read:
            return False
        length = min(len(self.object), len(other.object))
        return self.object[:length] == other.object[:length]


Event = Begin | Spawn | Commit | Abort | Delegate | CommitOperation | AbortOperation | Operation
"""Any entry of a history; its field `by` is the transaction that invokes it."""
