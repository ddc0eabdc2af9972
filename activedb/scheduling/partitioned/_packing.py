"""Components put together to tasks of about the same size."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from activedb.scheduling._s_transactions import STransaction

__all__ = ["packed", "size_of"]


def size_of(transactions: Sequence[STransaction]) -> int:
    """How much some s-transactions are to do: their operations."""
    return sum(len(transaction.operations) for transaction in transactions)


def packed(found: Sequence[list[STransaction]], tasks_max: int) -> list[list[STransaction]]:
    """So many lists at most, none empty, each in the serial order; the largest first.

    The largest component first, each to the list that has least: none is longer than 4/3 of the
    best there is (Graham 1969). O(n log n).
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
