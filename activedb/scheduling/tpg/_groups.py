"""Scheduling units: groups of operations, and the strata of units."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from activedb.scheduling.tpg._planning import TaskGraph
from activedb.scheduling.tpg._vertex import Vertex

__all__ = ["OperationGroup", "group", "rank_operations", "ungroup"]


class OperationGroup:
    """Operations that one worker runs in sequence: those of one key, or of a cycle of keys.

    Attributes
    ----------
    vertices : list of Vertex
        In the serial order.
    blocked : int
        Number of edges that lead to it from unsettled vertices of other groups.
    ready : list of int
        Heap of the numbers of its RDY operations, possibly with outdated entries.
    open : int
        Number of its operations still to be run.
    queued, running : bool
        Whether it is in a ready queue; whether a worker holds it.
    rank, number : int
        Its stratum; the number of its first vertex.
    """

    __slots__ = (
        "blocked",
        "number",
        "open",
        "queued",
        "rank",
        "ready",
        "running",
        "vertices",
    )

    def __init__(self) -> None:
        self.vertices: list[Vertex] = []
        self.blocked = 0
        self.ready: list[int] = []
        self.queued = False
        self.running = False
        self.rank = 0
        self.number = 0
        self.open = 0

    @property
    def is_open(self) -> bool:
        """True if an operation is still to be run."""
        return self.open > 0


def rank_operations(graph: TaskGraph) -> None:
    """Partition single operations into strata, by the longest path to each; O(V + E)."""
    for vertex in graph.vertices:
        rank = vertex.rank + 1
        for child in vertex.children:
            if child.rank < rank:
                child.rank = rank


def group(graph: TaskGraph) -> tuple[list[OperationGroup], bool]:
    """Put operations into groups, by the key they write, and the groups into strata.

    Groups that depend on each other in a cycle are merged into one: the strongly connected
    components of the graph of groups. O(V + E).

    Returns
    -------
    groups : list of OperationGroup
        In the order of strata, then of their first operations.
    cyclic : bool
        Whether any groups were merged.
    """
    by_key: dict[Hashable, OperationGroup] = {}
    for vertex in graph.vertices:
        key = _chain_of(vertex)
        found = by_key.get(key)
        if found is None:
            found = by_key[key] = OperationGroup()
            found.number = vertex.number
        found.vertices.append(vertex)
        vertex.unit = found
    groups = list(by_key.values())
    edges = _edges(groups)
    cyclic = _in_strata(groups, edges)
    if cyclic:
        groups = _merged(groups, edges)
        edges = _edges(groups)
        still = _in_strata(groups, edges)
        assert not still, "merged groups have no cycles"
    for one in groups:
        one.open = sum(1 for vertex in one.vertices if vertex.operation is not None)
        for vertex in one.vertices:
            for child in vertex.children:
                if child.unit is not one:
                    assert child.unit is not None
                    child.unit.blocked += 1
    groups.sort(key=lambda one: (one.rank, one.number))
    return groups, cyclic


def ungroup(graph: TaskGraph) -> None:
    """Remove all operations from their groups."""
    for vertex in graph.vertices:
        vertex.unit = None


def _chain_of(vertex: Vertex) -> Hashable:
    """Return a key that is equal for the operations of one group."""
    operation = vertex.operation
    if operation is None:
        return vertex  # virtual
    for ref in operation.targets or operation.sources:
        if ref.is_whole:
            return vertex
        try:
            hash(ref.key)
        except Exception:
            return vertex  # an invalid key; the operation will fail
        return ref.table.name, ref.key
    return vertex


def _edges(groups: Iterable[OperationGroup]) -> dict[OperationGroup, set[OperationGroup]]:
    """Return the groups that depend on each group."""
    edges: dict[OperationGroup, set[OperationGroup]] = {}
    for one in groups:
        children: set[OperationGroup] = set()
        for vertex in one.vertices:
            for child in vertex.children:
                if child.unit is not one:
                    assert child.unit is not None
                    children.add(child.unit)
        edges[one] = children
    return edges


def _in_strata(
    groups: list[OperationGroup], edges: dict[OperationGroup, set[OperationGroup]]
) -> bool:
    """Set the ranks of all groups not behind a cycle; return whether there is a cycle."""
    waits = dict.fromkeys(groups, 0)
    for children in edges.values():
        for child in children:
            waits[child] += 1
    free = [one for one in groups if not waits[one]]
    placed = 0
    for one in free:  # the list grows during the iteration
        placed += 1
        for child in edges[one]:
            child.rank = max(child.rank, one.rank + 1)
            waits[child] -= 1
            if not waits[child]:
                free.append(child)
    return placed < len(groups)


def _merged(
    groups: list[OperationGroup], edges: dict[OperationGroup, set[OperationGroup]]
) -> list[OperationGroup]:
    import networkx as nx  # the import takes a tenth of a second and is rarely needed

    graph = nx.DiGraph()
    graph.add_nodes_from(groups)
    graph.add_edges_from((one, child) for one, children in edges.items() for child in children)
    merged = []
    for component in nx.strongly_connected_components(graph):
        one = OperationGroup()
        one.vertices = sorted((v for g in component for v in g.vertices), key=lambda v: v.number)
        one.number = one.vertices[0].number
        for vertex in one.vertices:
            vertex.unit = one
        merged.append(one)
    merged.sort(key=lambda one: one.number)
    return merged
