"""Values of the whole lock table: copied under the latch, read and formatted outside it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from lockmgr._graph import arcs_of_place, edges_of
from lockmgr._modes import Mode
from lockmgr._replies import Edge, EdgeKind, Resource, resource_text
from lockmgr._structures import Entry, Request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from lockmgr._structures import LockOwner

__all__ = [
    "Census",
    "Counters",
    "LockView",
    "PartialSnapshot",
    "RequestView",
    "Snapshot",
    "TransactionView",
    "census",
    "glance",
    "take",
]


@dataclass
class Counters:
    """Number of events since the table was created; requests are counted per resource of a path.

    Attributes
    ----------
    requests, grants : int
        Requests made, and requests granted, at once or after a wait.
    waits : int
        Calls for which a thread went to sleep.
    wait_s_total : float
        Seconds slept, over all threads.
    timeouts : int
        Waits that timed out or whose thread was interrupted, and requests without `wait` that would
        have had to wait.
    deadlocks : int
        Cycles found in the wait-for graph, whether broken by passing or by a victim.
    victims : int
        Waits that were ended to break a cycle.
    escalations : int
        Escalations of locks inside a resource to one lock on the resource.
    """

    requests: int = 0
    grants: int = 0
    waits: int = 0
    wait_s_total: float = 0.0
    timeouts: int = 0
    deadlocks: int = 0
    victims: int = 0
    escalations: int = 0


class TransactionView(NamedTuple):
    """Live transaction.

    Attributes
    ----------
    tid : int
    parent : int or None
        None for a top-level transaction.
    causes : tuple of int
        The transactions on which it causally depends.
    inline : bool
        Whether it runs on its parent's thread.
    """

    tid: int
    parent: int | None
    causes: tuple[int, ...]
    inline: bool


class LockView(NamedTuple):
    """Lock that a transaction holds (`is_held`) or retains."""

    resource: Resource
    tid: int
    mode: Mode
    is_held: bool


class RequestView(NamedTuple):
    """Waiting request; `mode` is the mode that the transaction will hold once granted."""

    resource: Resource
    tid: int
    mode: Mode
    upgrade: bool


class Snapshot(NamedTuple):
    """State of the lock table at one moment.

    Attributes
    ----------
    transactions : tuple of TransactionView
        In order of their begin, so that parents precede their children.
    locks : tuple of LockView
        By resource.
    queue : tuple of RequestView
        By resource, and for each resource in the order in which they will be granted.
    edges : tuple of Edge
        The wait-for graph, by waiter in order of begin; of several lock edges between the same two
        transactions, only the hardest is listed.
    """

    transactions: tuple[TransactionView, ...]
    locks: tuple[LockView, ...]
    queue: tuple[RequestView, ...]
    edges: tuple[Edge, ...]

    def text(self) -> str:
        """Format the forest with its waits, then each resource with holders, retainers and queue.

        Transactions are sorted by number and resources by name, so equal states give equal text::

            1
              2 waits for 3 (held)
              3
            accounts/7: held 3 X; retained 1 S; queue 2 X
        """
        children: dict[int | None, list[TransactionView]] = {}
        for transaction in sorted(self.transactions):
            children.setdefault(transaction.parent, []).append(transaction)
        waits: dict[int, list[str]] = {}
        for edge in sorted(self.edges, key=_by_number):
            if edge.kind is not EdgeKind.COMMIT:
                waits.setdefault(edge.waiter, []).append(f"{edge.waited_for} ({edge.kind})")
        lines: list[str] = []
        stack = [(root, 0) for root in reversed(children.get(None, []))]
        while stack:
            transaction, depth = stack.pop()
            lines.append("  " * depth + _transaction_text(transaction, waits))
            stack += [(child, depth + 1) for child in reversed(children.get(transaction.tid, []))]
        lines += sorted(self._resource_texts())
        return "\n".join(lines) if lines else "empty"

    def _resource_texts(self) -> Iterator[str]:
        parts: dict[Resource, dict[str, list[str]]] = {}
        for lock in sorted(self.locks, key=_tid):
            verb = "held" if lock.is_held else "retained"
            of_resource = parts.setdefault(lock.resource, {})
            of_resource.setdefault(verb, []).append(f"{lock.tid} {lock.mode.name}")
        for request in self.queue:
            text = f"{request.tid} {request.mode.name}" + " upgrade" * request.upgrade
            parts.setdefault(request.resource, {}).setdefault("queue", []).append(text)
        for resource, by_verb in parts.items():
            found = [
                f"{verb} {', '.join(by_verb[verb])}"
                for verb in ("held", "retained", "queue")
                if verb in by_verb
            ]
            yield f"{resource_text(resource)}: {'; '.join(found)}"


class PartialSnapshot(NamedTuple):
    """Part of the lock table at one moment, for frequent polling under a short latch.

    Attributes
    ----------
    locks_total, waits_total : int
        Number of all locks, held or retained, and of all waiting transactions.
    locks : tuple of LockView
        Locks on resources that are waited for come first.
    queue : tuple of RequestView
        As in `Snapshot`.
    edges : tuple of Edge
        Edges of the waits in the order in which these began, each with the commit and inline edges
        of the waiter and of its superiors that lead to it.
    """

    locks_total: int
    waits_total: int
    locks: tuple[LockView, ...]
    queue: tuple[RequestView, ...]
    edges: tuple[Edge, ...]


class Census(NamedTuple):
    """Number of transactions at one moment.

    Attributes
    ----------
    live, top_level : int
        Transactions that have not ended, and those of them without a parent.
    waiting : int
        Transactions that wait for a lock.
    """

    live: int
    top_level: int
    waiting: int


def census(transactions: Collection[LockOwner]) -> Census:
    """Count transactions. O(their number)."""
    return Census(
        len(transactions),
        sum(transaction.parent is None for transaction in transactions),
        sum(isinstance(transaction.waiting, Request) for transaction in transactions),
    )


def take(transactions: Iterable[LockOwner], entries: Iterable[Entry]) -> Snapshot:
    """Copy the table into a snapshot. O(transactions + locks + edges)."""
    views: list[TransactionView] = []
    edges: list[Edge] = []
    for transaction in transactions:
        parent = transaction.parent
        views.append(
            TransactionView(
                transaction.tid,
                None if parent is None else parent.tid,
                tuple(transaction.causes or ()),
                transaction.inline,
            )
        )
        edges += edges_of(transaction)
        edges += [arc.edge() for arc in arcs_of_place(transaction)]
    locks: list[LockView] = []
    queue: list[RequestView] = []
    for entry in entries:
        for lock in entry.owners():
            locks.append(LockView(entry.resource, lock.owner.tid, lock.mode, lock.is_held))
        for request in entry.queue:
            tid = request.transaction.tid
            queue.append(RequestView(entry.resource, tid, request.mode, request.upgrade))
    return Snapshot(tuple(views), tuple(locks), tuple(queue), tuple(edges))


def glance(
    waiters: Sequence[LockOwner],
    transactions: Iterable[LockOwner],
    entries: Iterable[Entry],
    limit: int,
) -> PartialSnapshot:
    """Copy at most `limit` locks, requests and edges each, those of `waiters` first."""
    edges: list[Edge] = []
    contested: dict[Entry, None] = {}
    told: set[LockOwner] = set()
    for waiter in waiters:
        wait = waiter.waiting
        if isinstance(wait, Request):
            contested[wait.entry] = None
        if len(edges) < limit:
            edges += edges_of(waiter)
            edges += [a.edge() for a in arcs_of_place(waiter) if a.kind is EdgeKind.INLINE]
        child, parent = waiter, waiter.parent
        while parent is not None and child not in told and len(edges) < limit:
            told.add(child)
            edges.append(Edge(parent.tid, child.tid, EdgeKind.COMMIT))
            child, parent = parent, parent.parent
    locks: list[LockView] = []
    queue: list[RequestView] = []
    for entry in chain(contested, (entry for entry in entries if entry not in contested)):
        if len(locks) >= limit and len(queue) >= limit:
            break
        for lock in entry.owners()[: limit - len(locks)]:
            locks.append(LockView(entry.resource, lock.owner.tid, lock.mode, lock.is_held))
        for request in entry.queue[: limit - len(queue)]:
            tid = request.transaction.tid
            queue.append(RequestView(entry.resource, tid, request.mode, request.upgrade))
        if len(locks) >= limit and entry not in contested:
            break
    return PartialSnapshot(
        sum(len(t.held) + len(t.retained) for t in transactions),
        len(waiters),
        tuple(locks),
        tuple(queue),
        tuple(edges[:limit]),
    )


def _transaction_text(transaction: TransactionView, waits: dict[int, list[str]]) -> str:
    text = str(transaction.tid)
    if transaction.inline:
        text += " inline"
    if transaction.causes:
        text += " caused by " + ", ".join(map(str, transaction.causes))
    if transaction.tid in waits:
        text += " waits for " + ", ".join(waits[transaction.tid])
    return text


def _by_number(edge: Edge) -> tuple[int, int]:
    return edge.waiter, edge.waited_for


def _tid(lock: LockView) -> int:
    return lock.tid
