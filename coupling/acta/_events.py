"""What a history is made of: significant events, operations on objects, and their outcomes."""

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
    """In which coupling mode a transaction is spawned; the values are the events' names."""

    IMMEDIATE = "spawn_imm"
    DEFERRED = "spawn_def"
    DETACHED = "spawn_detach"
    CAUSAL = "spawn_caus"
    SEQUENTIAL = "spawn_seq"
    EXCLUSIVE = "spawn_exc"

    @property
    def is_child(self) -> bool:
        """Whether the spawned transaction is a child of the spawning one (else top-level)."""
        return self is SpawnMode.IMMEDIATE or self is SpawnMode.DEFERRED


class OperationKind(StrEnum):
    """What an operation does to its object."""

    READ = "read"
    WRITE = "write"
    INSERT = "insert"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Begin:
    """A top-level transaction starts.

    Attributes
    ----------
    by : int
        The transaction.
    parent : int or None
        Its parent, as the recorder knows it; None unless something is wrong (axiom 16).
    """

    by: int
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Spawn:
    """A transaction spawns another one.

    Attributes
    ----------
    by, child : int
        The spawning and the spawned transaction.
    mode : SpawnMode
    parent : int or None
        The parent of `child`, as the recorder knows it: `by` for immediate and deferred mode,
        else None.
    priority : int or None
        Of `child`; None is the lowest.
    cycle : int or None
        Deferred mode: in which cycle of the commit point of `by` the child runs, if the recorder
        knows; all children without one count as of one cycle.
    group : int or None
        Immediate mode: together with which other children of `by` it was spawned, as the rules of
        one event are; priorities order those of one group. All children without one are a group.
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
    """A transaction commits; a top-level one with every operation it is responsible for."""

    by: int


@dataclass(frozen=True, slots=True)
class Abort:
    """A transaction aborts, and with it every operation it is responsible for."""

    by: int


@dataclass(frozen=True, slots=True)
class Delegate:
    """A transaction hands the responsibility for operations to another one.

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
    """The outcome of one operation, by its number, for recorders that tell each of them."""

    by: int
    operation: int


@dataclass(frozen=True, slots=True)
class AbortOperation:
    """As `CommitOperation`, for an operation that is undone."""

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
        For a read: number of the operation that wrote the version read, 0 for one older than the
        history, None if the recorder does not know.
    """

    by: int
    number: int
    kind: OperationKind
    object: tuple[str, ...]
    saw: int | None = None

    @property
    def is_read(self) -> bool:
        """Whether the object is as it was afterwards."""
        return self.kind is OperationKind.READ

    def conflicts_with(self, other: Operation) -> bool:
        """Whether the order of the two matters: overlapping objects, and not both reads."""
        if self.is_read and other.is_read:
            return False
        length = min(len(self.object), len(other.object))
        return self.object[:length] == other.object[:length]


Event = Begin | Spawn | Commit | Abort | Delegate | CommitOperation | AbortOperation | Operation
"""Any entry of a history; its field `by` is the transaction that invokes it."""
