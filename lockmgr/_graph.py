"""The wait-for graph, derived from the table whenever it is asked for, and so never stale.

Nodes are the live transactions; the four kinds of edges are those of `EdgeKind`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lockmgr._modes import COMPATIBLE
from lockmgr._replies import Edge, EdgeKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockmgr._structures import Request, Transaction

__all__ = ["Arc", "cycle_through", "lock_edges"]


class Arc(NamedTuple):
    """An edge between the table's own nodes; `edge` copies it out as a value."""

    waiter: Transaction
    waited_for: Transaction
    kind: EdgeKind

    def edge(self) -> Edge:
        """Return this arc as numbers and modes that stay true when the table has moved on."""
        request = self.waiter.waiting
        if request is None or self.kind is EdgeKind.COMMIT:
            return Edge(self.waiter.tid, self.waited_for.tid, self.kind, None, None)
        return Edge(
            self.waiter.tid, self.waited_for.tid, self.kind, request.entry.resource, request.mode
        )


def lock_edges(request: Request) -> tuple[Edge, ...]:
    """Return the lock edges of a waiting request: one per transaction waited for, the hardest."""
    arcs: dict[Transaction, Arc] = {}
    for arc in _lock_arcs(request):
        arcs.setdefault(arc.waited_for, arc)
    return tuple(arc.edge() for arc in arcs.values())


def cycle_through(start: Transaction) -> list[Arc] | None:
    """Return a shortest cycle through `start`, in order from `start`, or None.

    Breadth-first over what `start` reaches; O(nodes + edges) of that part of the graph.
    """
    reached_by: dict[Transaction, Arc] = {}
    frontier = [start]
    for node in frontier:  # grows while it is walked
        for arc in _arcs(node):
            target = arc.waited_for
            if target is start:
                return _unwind(arc, reached_by)
            if target not in reached_by:
                reached_by[target] = arc
                frontier.append(target)
    return None


def _unwind(last: Arc, reached_by: dict[Transaction, Arc]) -> list[Arc]:
    start = last.waited_for
    cycle = [last]
    while cycle[-1].waiter is not start:
        cycle.append(reached_by[cycle[-1].waiter])
    cycle.reverse()
    return cycle


def _arcs(transaction: Transaction) -> Iterator[Arc]:
    if transaction.waiting is not None:
        yield from _lock_arcs(transaction.waiting)
    for child in transaction.children.values():
        yield Arc(transaction, child, EdgeKind.COMMIT)


def _lock_arcs(request: Request) -> Iterator[Arc]:
    """Yield whom a request waits for: holders, retainers, the queue ahead; maybe one twice."""
    transaction = request.transaction
    entry = request.entry
    compatible = COMPATIBLE[request.mode]
    for holder, mode in entry.holders.items():
        if not compatible[mode] and holder is not transaction:
            yield Arc(transaction, holder, EdgeKind.HELD)
    for retainer, mode in entry.retainers.items():
        if not compatible[mode] and not transaction.is_in_sphere_of(retainer):
            yield Arc(transaction, retainer, EdgeKind.RETAINED)
    for other in entry.queue:
        if other is request:
            break
        if not compatible[other.mode]:
            yield Arc(transaction, other.transaction, EdgeKind.SOFT)
