"""Reordering of queues so that no cycle is left: the last resort before a victim.

Soft edges run from a request to an earlier one in its queue. Take an order of the transactions in
which each comes after all transactions that it waits for by hard edges; such an order exists if the
hard edges form no cycle. If every queue follows that order, soft edges too run from later to
earlier, and so there is no cycle at all.
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
    """Reorder the queues of all transactions that `pivot` reaches; return the queues that changed.

    Return None, and change nothing, if an inline child is among the transactions concerned: it
    waits for its superior's wait, which has no place of its own in such an order. REQUIRES: no
    cycle of hard edges. Every queue concerned may change, not only the queues on a cycle.
    O(transactions concerned x edges of each).
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
    """Return all transactions reachable from `pivot`, counting members of a queue as connected."""
    found: dict[Transaction, None] = {pivot: None}
    frontier = [pivot]
    for transaction in frontier:  # the list grows during the iteration
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
    """Number all transactions reachable by hard edges, each after the targets of its hard edges.

    Ties are resolved by the order of `transactions`.
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
