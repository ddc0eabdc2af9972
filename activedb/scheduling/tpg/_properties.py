"""Properties of a TPG: the input of the decision model (Mao et al., table 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from activedb.scheduling.tpg._planning import Planner
from activedb.scheduling.tpg._refinement import TaskGraph

__all__ = ["Properties", "properties_of"]


@dataclass(frozen=True, slots=True)
class Properties:
    """Properties of a batch that are known before it is run.

    Attributes
    ----------
    transactions, operations : int
        Their numbers.
    lds, tds, pds : int
        Number of dependencies by kind.
    skew : float
        Accesses of the most accessed key over the mean of all keys; 1 if all are equal.
    cyclic : bool or None
        Whether groups depend on each other in cycles; None if the decision did not need to check.
    compute_us : float
        Duration of an operation in microseconds, as measured on the first of the batch.
    parallel_share : float
        Share of it that another thread can use, from 0 to 1.
    abort_ratio : float
        Share of s-transactions that aborted in earlier batches.
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
    """Return the properties of a TPG; those that a TPG lacks come from `measured`. O(keys)."""
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
