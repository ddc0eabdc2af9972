"""Properties of a TPG: what the decision model looks at (Mao et al., table 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from activedb.scheduling.tpg._planning import Planner
from activedb.scheduling.tpg._refinement import TaskGraph

__all__ = ["Properties", "properties_of"]


@dataclass(frozen=True, slots=True)
class Properties:
    """What is known of a batch before it is run.

    Attributes
    ----------
    transactions, operations : int
        How many there are.
    lds, tds, pds : int
        Dependencies by kind.
    skew : float
        How often the most accessed key is accessed, over the mean of all keys; 1: all alike.
    cyclic : bool or None
        Whether groups depend on each other in cycles; None: nobody has looked, as the decision does
        not depend on it.
    compute_us : float
        What an operation takes, in microseconds, as measured on the first of the batch.
    parallel_share : float
        Which share of that another thread can use, from 0 to 1.
    abort_ratio : float
        Which share of s-transactions aborted in former batches.
    """

    transactions: int = 0
    operations: int = 0
    lds: int = 0
    tds: int = 0
    pds: int = 0
    skew: float = 1.0
    cyclic: bool | None = None
    compute_us: float = 0.0
    parallel_share: float = 0.0
    abort_ratio: float = 0.0


def properties_of(
    planner: Planner, graph: TaskGraph, measured: Properties | None = None
) -> Properties:
    """The properties of a TPG, and of those `measured` what a TPG does not tell; O(keys)."""
    degrees = [len(found) for lists in planner.tables.values() for found in lists.of.values()]
    return replace(
        measured or Properties(),
        transactions=len(graph.nodes),
        operations=graph.operations,
        lds=graph.lds,
        tds=graph.tds,
        pds=graph.pds,
        skew=max(degrees) * len(degrees) / sum(degrees) if degrees else 1.0,
    )
