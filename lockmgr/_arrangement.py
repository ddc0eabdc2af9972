"""Putting queues into an order in which nobody waits in a circle: the last resort before a victim.

Soft edges run from behind to ahead. Take an order of the transactions in which everybody comes
after all for whom they wait by hard edges; there is one if the hard edges form no cycle. If every
queue stands in that order, soft edges run from later to earlier in it too, and so there is no
cycle at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockmgr._graph import arcs_of
from lockmgr._replies import EdgeKind
from lockmgr._structures import Request

if TYPE_CHECKING:
    from lockmgr._structures import Entry, Transaction

__all__ = ["arrange"]


def arrange(pivot: Transaction) -> list[Entry] | None:
    """Reorder the queues of all whom `pivot` reaches; return those that changed.

    None, and nothing changed, if an inline child is among those concerned: it waits for its
    superior's wait, which has no place of its own in such an order. REQUIRES: no cycle of hard
    edges. Every queue concerned may change, not only those on a cycle. O(transactions concerned x
    what each waits for).
    """
    concerned = _concerned(pivot)
    if any(transaction.inline for transaction in concerned):
        return None
    waits = [transaction.waiting for transaction in concerned]
    contested = {wait.entry: None for wait in waits if isinstance(wait, Request)}
    ranks = _ranks([request.transaction for entry in contested for request in entry.queue])
    changed: list[Entry] = []
    for entry in contested:
        ordered = sorted(entry.queue, key=lambda request: ranks[request.transaction])
        if ordered != entry.queue:
            entry.queue[:] = ordered
            changed.append(entry)
    return changed


def _concerned(pivot: Transaction) -> list[Transaction]:
    """Return all whom `pivot` reaches, with those in the same queues, and whom these reach."""
    found: dict[Transaction, None] = {pivot: None}
    frontier = [pivot]
    for transaction in frontier:  # grows while it is walked
        targets = [arc.waited_for for arc in arcs_of(transaction)]
        request = transaction.waiting
        if isinstance(request, Request):
            targets += [other.transaction for other in request.entry.queue]
        for target in targets:
            if target not in found:
                found[target] = None
                frontier.append(target)
    return frontier


def _ranks(transactions: list[Transaction]) -> dict[Transaction, int]:
    """Number the transactions and whom they wait for, each after all it has hard edges to.

    Where that leaves a choice, it is in the order in which they are given.
    """
    ranks: dict[Transaction, int] = {}
    seen: set[Transaction] = set()
    for first in transactions:
        stack = [(first, False)]
        while stack:
            transaction, expanded = stack.pop()
            if expanded:
                ranks[transaction] = len(ranks)
            elif transaction not in seen:
                seen.add(transaction)
                stack.append((transaction, True))
                hard = [
                    arc.waited_for for arc in arcs_of(transaction) if arc.kind is not EdgeKind.SOFT
                ]
                stack.extend((other, False) for other in reversed(hard) if other not in seen)
    return ranks
