"""The whole lock table as values: taken under the latch, looked at and drawn outside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lockmgr._graph import arcs_of_place, edges_of
from lockmgr._modes import Mode
from lockmgr._replies import Edge, EdgeKind, Resource, resource_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from lockmgr._structures import Entry, Transaction

__all__ = ["LockView", "RequestView", "Snapshot", "TransactionView", "take"]


class TransactionView(NamedTuple):
    """A live transaction.

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
    """A lock that a transaction holds, or else retains."""

    resource: Resource
    tid: int
    mode: Mode
    is_held: bool


class RequestView(NamedTuple):
    """A waiting request; `mode` is what the transaction will hold when it is granted."""

    resource: Resource
    tid: int
    mode: Mode
    upgrade: bool


class Snapshot(NamedTuple):
    """The lock table at one moment.

    Attributes
    ----------
    transactions : tuple of TransactionView
        In order of their begin, so that parents come before their children.
    locks : tuple of LockView
        By resource.
    queue : tuple of RequestView
        By resource, and for each resource in the order in which they will be granted.
    edges : tuple of Edge
        The wait-for graph, by waiter in order of their begin; several lock edges from the same
        one to the same other are told as one, the hardest.
    """

    transactions: tuple[TransactionView, ...]
    locks: tuple[LockView, ...]
    queue: tuple[RequestView, ...]
    edges: tuple[Edge, ...]

    def text(self) -> str:
        """Draw the forest with its waits, then each resource with holders, retainers and queue.

        Transactions are sorted by number and resources by name, so equal states read the same::

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


def take(transactions: Iterable[Transaction], entries: Iterable[Entry]) -> Snapshot:
    """Copy the table out. O(transactions + locks + edges)."""
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
