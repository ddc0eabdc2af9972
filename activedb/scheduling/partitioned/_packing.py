"""Packing of components into tasks of similar size."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from activedb.scheduling._s_transactions import STransaction

__all__ = ["packed", "size_of"]


def size_of(transactions: Sequence[STransaction]) -> int:
    """Return the amount of work in some s-transactions: their number of operations."""
    return sum(len(transaction.operations) for transaction in transactions)


def packed(found: Sequence[list[STransaction]], tasks_max: int) -> list[list[STransaction]]:
    """Distribute components over at most `tasks_max` non-empty lists; return the largest first.

    Each list is in the serial order. The largest component is assigned first, each to the smallest
    list: no list is longer than 4/3 of the optimum (Graham 1969). O(n log n).
    """
    by_size = sorted(found, key=size_of, reverse=True)
    lists: list[list[STransaction]] = [[] for _ in range(min(tasks_max, len(by_size)))]
    heap = [(0, number) for number in range(len(lists))]
    for component in by_size:
        size, number = heap[0]
        lists[number] += component
        heapq.heapreplace(heap, (size + max(size_of(component), 1), number))
    for transactions in lists:
        transactions.sort(key=lambda transaction: transaction.at)
    return sorted(lists, key=size_of, reverse=True)
