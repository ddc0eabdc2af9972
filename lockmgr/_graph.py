"""Wait-for graph, derived from the lock table on each use, and so never stale.

Nodes are the live transactions and, in addition, the waits of transactions with inline children:
such a child waits until its parent's wait is over, not for its parent's end. The kinds of edges are
the members of `EdgeKind`.
"""

from __future__ import annotations

from typing import TypeAlias

from lockmgr._modes import COMPATIBLE, CONFLICTS, Mode
from lockmgr._replies import Edge, EdgeKind, Effects, Ended
from lockmgr._structures import EndWait, Entry, Lock, LockOwner, Request

__all__ = [
    "Arc",
    "Node",
    "arcs_of",
    "arcs_of_place",
    "await_end",
    "cycle_through",
    "depend",
    "edges_of",
    "stop_waiting",
    "succeed",
]


def depend(dependent: LockOwner, causes: dict[int, LockOwner]) -> None:
    """Make a new transaction causally dependent on `causes`."""
    dependent.causes = causes
    for cause in causes.values():
        _add_dependent(cause, dependent)


def await_end(transaction: LockOwner, awaited: LockOwner, serial: int) -> None:
    """Make `transaction` wait until `awaited` has ended; `serial` orders the begin of the wait."""
    transaction.waiting = EndWait(transaction, awaited, serial)
    if awaited.awaited_by is None:
        awaited.awaited_by = {}
    awaited.awaited_by[transaction.tid] = transaction


def stop_waiting(transaction: LockOwner) -> None:
    """Withdraw the wait of a transaction, whether for a lock or for the end of another."""
    wait = transaction.waiting
    if isinstance(wait, Request):
        wait.entry.withdraw(wait)
    elif wait is not None:
        if wait.awaited.awaited_by is not None:
            del wait.awaited.awaited_by[transaction.tid]
        transaction.waiting = None


def succeed(ended: LockOwner, successor: LockOwner | None) -> Effects:
    """Move the waiters and dependents of `ended` to `successor`, or release them if it is None.

    The successor of a committed subtransaction is its parent, whose fate it shares from then on. A
    waiter continues if there is no successor, or if it shares that fate too, as the parent and its
    inferiors do; the effects list these waiters.
    """
    _forget_causes(ended)
    for dependent in (ended.dependents or {}).values():
        causes = dependent.causes or {}
        del causes[ended.tid]
        if successor is not None:
            causes[successor.tid] = successor
            _add_dependent(successor, dependent)
    effects: list[Ended] = []
    for waiter in (ended.awaited_by or {}).values():
        wait = waiter.waiting
        if successor is None or waiter is successor or waiter.is_inferior_of(successor):
            waiter.waiting = None
            effects.append(Ended(waiter.tid, ended.tid))
        else:
            await_end(waiter, successor, 0 if wait is None else wait.serial)
    ended.causes = ended.dependents = ended.awaited_by = None
    return tuple(effects)


def _forget_causes(dependent: LockOwner) -> None:
    for cause in (dependent.causes or {}).values():
        if cause.dependents is not None:
            del cause.dependents[dependent.tid]


def _add_dependent(cause: LockOwner, dependent: LockOwner) -> None:
    if cause.dependents is None:
        cause.dependents = {}
    cause.dependents[dependent.tid] = dependent


Node: TypeAlias = LockOwner | Request | EndWait


class Arc:
    """Edge between the table's own nodes; `edge` copies it out as a value."""

    __slots__ = ("against", "kind", "waited_for", "waiter")

    def __init__(
        self,
        waiter: LockOwner,
        waited_for: LockOwner,
        kind: EdgeKind,
        against: Mode | None = None,
    ):
        self.waiter = waiter
        self.waited_for = waited_for
        self.kind = kind
        self.against = against

    def edge(self) -> Edge:
        """Return this arc as numbers and modes, which stay valid when the table changes."""
        request = self.waiter.waiting
        if self.against is None or not isinstance(request, Request):
            return Edge(self.waiter.tid, self.waited_for.tid, self.kind)
        return Edge(
            self.waiter.tid,
            self.waited_for.tid,
            self.kind,
            request.entry.resource,
            request.mode,
            self.against,
        )


def edges_of(transaction: LockOwner) -> tuple[Edge, ...]:
    """Return the edges of a wait, one per transaction waited for: the hardest."""
    if transaction.waiting is None:
        return ()
    arcs: dict[LockOwner, Arc] = {}
    for arc in _ArcSearch().waits(transaction.waiting):
        arcs.setdefault(arc.waited_for, arc)
    return tuple(arc.edge() for arc in arcs.values())


def arcs_of(transaction: LockOwner) -> list[Arc]:
    """Return all arcs that leave a transaction; two of them may end at the same transaction."""
    return _ArcSearch().arcs(transaction)


def arcs_of_place(transaction: LockOwner) -> list[Arc]:
    """Return the arcs that follow from a transaction's place in the forest: commit and inline."""
    arcs: list[Arc] = []
    if transaction.children:
        for child in transaction.children.values():
            arcs.append(Arc(transaction, child, EdgeKind.COMMIT))
    outer = transaction
    while outer.inline and outer.parent is not None:
        outer = outer.parent
        if outer.waiting is not None:
            arcs.append(Arc(transaction, outer, EdgeKind.INLINE))
            break
    return arcs


def cycle_through(start: Node, *, only_hard: bool = False) -> list[Arc] | None:
    """Return a shortest cycle through `start`, in order from `start`, or None.

    With `only_hard`, ignore soft edges. The search is breadth-first and visits only what `start`
    reaches. O(nodes + locks and requests on the resources waited for), though n requests waiting
    for one resource alone have n²/2 edges.
    """
    search = _ArcSearch(only_hard)
    came_by: dict[Node, tuple[Node, Arc]] = {}
    frontier: list[Node] = [start]
    for node in frontier:  # the list grows during the iteration
        for arc in search.arcs(node):
            target: Node = arc.waited_for
            if arc.kind is EdgeKind.INLINE and arc.waited_for.waiting is not None:
                target = arc.waited_for.waiting
            if target is start:
                cycle = [arc]
                while node is not start:
                    node, arc = came_by[node]
                    cycle.append(arc)
                cycle.reverse()
                return cycle
            if target not in came_by:
                came_by[target] = (node, arc)
                frontier.append(target)
    return None


class _ArcSearch:
    """Arcs of the graph without those that only lead to nodes already visited.

    Requests for a resource in the same mode wait for nearly the same transactions. So its locks are
    scanned once per mode; for each further waiter, only the skipped locks of the earlier waiters'
    own lines are scanned again. Likewise a request scans the queue ahead of it only from the place
    up to which a request of the same mode has scanned already.
    """

    __slots__ = ("_looked_to", "_only_hard", "_passed_over", "_places")

    def __init__(self, only_hard: bool = False) -> None:
        self._only_hard = only_hard
        self._passed_over: dict[tuple[Entry, Mode], list[Lock]] = {}
        self._looked_to: dict[tuple[Entry, Mode], int] = {}
        self._places: dict[Entry, dict[Request, int]] = {}

    def arcs(self, node: Node) -> list[Arc]:
        """Return the arcs that leave a node; two of them may end at the same transaction."""
        if not isinstance(node, LockOwner):
            return self.waits(node)
        arcs = arcs_of_place(node)
        return arcs if node.waiting is None else self.waits(node.waiting) + arcs

    def waits(self, wait: Request | EndWait) -> list[Arc]:
        """Return the arcs of a transaction's own wait."""
        if isinstance(wait, Request):
            return self._lock_arcs(wait)
        return [Arc(wait.transaction, wait.awaited, EdgeKind.DEPENDENCY)]

    def _lock_arcs(self, request: Request) -> list[Arc]:
        """Return the arcs of a request: to holders, then to retainers, then to the queue ahead."""
        transaction, entry = request.transaction, request.entry
        compatible = COMPATIBLE[request.mode]
        key = (entry, request.mode)
        arcs: list[Arc] = []
        line: set[LockOwner] | None = None
        passed_over: list[Lock] = []
        locks = self._passed_over.get(key)
        for lock in entry.owners() if locks is None else locks:
            if compatible[lock.mode]:
                continue
            owner = lock.owner
            if lock.is_held:
                kind, is_own = EdgeKind.HELD, owner is transaction
            else:
                if line is None:
                    line = set(transaction.line())
                kind, is_own = EdgeKind.RETAINED, owner in line
            if is_own:
                passed_over.append(lock)
            else:
                arcs.append(Arc(transaction, owner, kind, lock.mode))
        queue = entry.queue
        if len(queue) == 1:
            return arcs  # no other request of the search scans this entry
        self._passed_over[key] = passed_over
        if self._only_hard or not entry.waiting_tally & CONFLICTS[request.mode]:
            return arcs
        place, looked_to = self._place(request), self._looked_to.get(key, 0)
        if looked_to < place:
            for ahead in queue[looked_to:place]:
                if not compatible[ahead.mode]:
                    arcs.append(Arc(transaction, ahead.transaction, EdgeKind.SOFT, ahead.mode))
            self._looked_to[key] = place
        return arcs

    def _place(self, request: Request) -> int:
        places = self._places.get(request.entry)
        if places is None:
            places = {request: place for place, request in enumerate(request.entry.queue)}
            self._places[request.entry] = places
        return places[request]
