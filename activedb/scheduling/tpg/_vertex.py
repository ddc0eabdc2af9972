"""Vertices of the TPG, their s-transactions, and the states they move through."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from activedb.scheduling._operations import Effect, Operation, STransaction
from activedb.scheduling._tables import Ref

if TYPE_CHECKING:
    from activedb.scheduling.tpg._groups import OperationGroup

__all__ = [
    "ABT",
    "BLK",
    "EXE",
    "MOVES",
    "RDY",
    "GraphTransaction",
    "Guess",
    "OperationState",
    "Vertex",
]


class OperationState(IntEnum):
    """State of an operation (Mao et al., table 3)."""

    BLK = 0
    """A dependency is not resolved yet."""
    RDY = 1
    """All dependencies are resolved."""
    EXE = 2
    """Run; its versions are in the state."""
    ABT = 3
    """The s-transaction aborts; the versions of the operation are not in the state."""


BLK, RDY, EXE, ABT = OperationState

MOVES = (
    # BLK   RDY   EXE   ABT
    ("-", "T1", "T3", "T4"),  # BLK
    ("T6", "-", "T2", "T4"),  # RDY
    ("T6", "T5", "-", "T4"),  # EXE
    ("T6", "T5", "-", "-"),  # ABT: an abort that is undone, see README.md
)
"""Names of the moves of figure 8, by old and new state; a dash marks a forbidden move."""


class GraphTransaction:
    """s-transaction in the TPG: operations that depend on each other logically (LD).

    Attributes
    ----------
    transaction : STransaction
    vertices : list of Vertex
        Its operations, in statement order; the first is the *head*.
    virtual : list of Vertex, or empty
        Virtual operations of whole tables that come right before it.
    failures : int
        Number of its operations that have failed on valid reads.
    aborted : bool
        Whether its operations are ABT.
    writers : dict or None
        Writer of each table and key; only if two of its operations may write the same key.
    clash : bool
        Whether two of them did.
    coordinator : int or None
        Worker that took its head, and performs its abort under non-structured exploration.
    """

    __slots__ = (
        "aborted",
        "clash",
        "coordinator",
        "failures",
        "transaction",
        "vertices",
        "virtual",
        "writers",
    )

    def __init__(self, transaction: STransaction):
        self.transaction = transaction
        self.vertices: list[Vertex] = []
        self.virtual: list[Vertex] | tuple[()] = ()
        self.failures = 0
        self.aborted = False
        self.clash = False
        self.writers: dict[tuple[str, object], Vertex] | None = None
        self.coordinator: int | None = None

    def clashes(self, vertex: Vertex, effect: Effect) -> bool:
        """Return whether an effect writes a key that its s-transaction has written already.

        It does not if it writes one key at most, and `writers` is None.
        """
        keys = [(table.name, key) for table, key, _ in effect.writes]
        writers = self.writers or {}
        if len(set(keys)) < len(keys) or any(key in writers for key in keys):
            self.clash = True
            return True
        if self.writers is not None:
            self.writers.update(dict.fromkeys(keys, vertex))
        return False

    @property
    def has_ended(self) -> bool:
        """True if it has committed or aborted, provided that all earlier ones have."""
        if self.failures:
            return self.aborted
        return all(vertex.state == EXE for vertex in self.vertices)


class Guess:
    """Result of a speculative run of an operation, and the values that it has read.

    If one of its reads has failed, the result never counts.
    """

    __slots__ = ("effect", "error", "has_failed_read", "read")

    def __init__(self) -> None:
        self.read: list[tuple[Ref, object]] = []
        self.has_failed_read = False
        self.effect: Effect | None = None
        self.error: Exception | None = None


class Vertex:
    """Operation in the TPG, or a virtual one that stands for all keys of a table.

    Attributes
    ----------
    node : GraphTransaction
        Its s-transaction.
    operation : Operation or None
        None if it is virtual; there is nothing to run.
    number : int
        Its place in the serial order; its dependencies have smaller numbers.
    children : list of Vertex, or empty
        Operations that depend on it, by TD or PD; one may be listed twice.
    waits : int
        Number of its unresolved dependencies: edges from vertices that are not `settled`.
    state : OperationState
    settled : bool
        Whether dependent operations need not wait for it: it is EXE, or it has failed and the
        failure is logged for later, or it is ABT or virtual and waits for nothing.
    passed : bool
        Whether it was run without failing on its present inputs.
    failure : Exception or None
        Exception that it raised.
    effect : Effect or None
        Effect of an EXE operation.
    running, stale, guessing : bool
        Whether a worker runs it now; whether its inputs have changed since then; whether it was not
        RDY when it started.
    guess : Guess or None
        Result of a speculative run that is still to be confirmed.
    rank : int
        Its stratum: the length of the longest path to it.
    unit : OperationGroup or None
        Group that it is scheduled with; None if scheduled alone.
    """

    __slots__ = (
        "children",
        "effect",
        "failure",
        "guess",
        "guessing",
        "node",
        "number",
        "operation",
        "passed",
        "rank",
        "running",
        "settled",
        "stale",
        "state",
        "unit",
        "waits",
    )

    def __init__(self, node: GraphTransaction, operation: Operation | None):
        self.node = node
        self.operation = operation
        self.number = 0
        self.children: list[Vertex] | tuple[()] = ()
        self.waits = 0
        self.state = BLK
        self.settled = False
        self.passed = False
        self.failure: Exception | None = None
        self.effect: Effect | None = None
        self.running = False
        self.stale = False
        self.guessing = False
        self.guess: Guess | None = None
        self.rank = 0
        self.unit: OperationGroup | None = None

    @property
    def is_open(self) -> bool:
        """True if it is still to be run."""
        return self.state < EXE and self.failure is None

    def __repr__(self) -> str:
        what = "virtual" if self.operation is None else type(self.operation).__name__
        return f"<Vertex {self.number} {what} {self.state.name}>"
