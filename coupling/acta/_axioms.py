"""The 30 axioms in words, and their violations."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AXIOMS", "Violation"]

AXIOMS: dict[int, str] = {
    1: "A top-level transaction has only Begin, spawns, Commit and Abort.",
    2: "A top-level transaction is initiated by its Begin, or by the spawn in a detached mode.",
    3: "A top-level transaction ends once, by Commit or Abort, and does nothing afterwards.",
    4: "A subtransaction has only spawns, Commit and Abort; it has no Begin.",
    5: "A subtransaction is initiated by the event that spawns it.",
    6: "A subtransaction ends once, by Commit or Abort, and does nothing afterwards.",
    7: "The fundamental axioms: initiated once, operations only between start and end, and "
    "outcomes only of operations one is responsible for.",
    8: "A transaction sees the current state of objects.",
    9: "A top-level transaction invokes no operation that conflicts with one in progress.",
    10: "Objects are atomic: what is undone leaves no trace in what is not.",
    11: "A transaction that commits is in no cycle of conflicts.",
    12: "Operations are committed by top-level transactions that commit.",
    13: "A top-level transaction that commits, commits every operation it is responsible for.",
    14: "Operations are aborted by transactions that abort.",
    15: "A transaction that aborts, aborts every operation it is responsible for.",
    16: "A transaction that begins has no parent.",
    17: "A subtransaction invokes no operation that conflicts with one in progress outside its "
    "line.",
    18: "Who spawns in immediate or deferred mode is the parent.",
    19: "A child aborts when its parent aborts before it has committed, and a parent commits after "
    "its children have ended.",
    20: "What is spawned in a detached mode has no parent.",
    21: "What is spawned in causally dependent mode aborts if the spawning transaction aborts.",
    22: "What is spawned in sequential mode starts after the commit of the spawning transaction.",
    23: "What is spawned in exclusive mode commits only after the abort of the spawning "
    "transaction.",
    24: "A subtransaction commits if and only if it delegates its access set to its parent.",
    25: "A transaction touches again what an inferior has touched only once it is responsible for "
    "that.",
    26: "The ancestors of a child are its parent and the ancestors of that one.",
    27: "A deferred child starts to work when its parent has finished its own operations.",
    28: "A child deferred to the next cycle works after all of the cycle before.",
    29: "Deferred children of one cycle work in the order of their priorities.",
    30: "An immediate child waits with its operations for siblings of higher priority that have "
    "been spawned.",
}
"""Statement of each axiom of the formal rule execution model, by its number there.

(Saygin, Ulusoy, Chakravarthy, section 3.3.2; for 7 to 17 section 3.3.1.) The reading of each for a
finite history is in ``README.md`` of this folder.
"""


@dataclass(frozen=True, slots=True)
class Violation:
    """An axiom that a history breaks.

    Attributes
    ----------
    axiom : int
        1 to 30.
    transaction : int
        Transaction that breaks it.
    message : str
        A sentence that names the transactions and objects.
    positions : tuple of int
        Positions of the offending events in the history, ascending.
    """

    axiom: int
    transaction: int
    message: str
    positions: tuple[int, ...]

    def __str__(self) -> str:
        return f"axiom {self.axiom}: {self.message}"
