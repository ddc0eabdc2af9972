"""Partition of s-transactions into sets that share no written state."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling._tables import Range, Ref, SharedTable
from activedb.scheduling.partitioned._ranges import SortedKeys

__all__ = ["components"]


class _Accesses:
    """Accesses to a table, by the numbers of s-transactions.

    Attributes
    ----------
    of : dict
        Numbers of the s-transactions that access each key.
    written : set
        Keys that are written.
    whole : list
        s-transactions that may read any key of the table, or all keys of a range.
    any_writers : list
        s-transactions that may write any key.
    """

    __slots__ = ("any_writers", "of", "whole", "written")

    def __init__(self) -> None:
        self.of: dict[Hashable, list[int]] = {}
        self.written: set[Hashable] = set()
        self.whole: list[tuple[int, Ref]] = []
        self.any_writers: list[int] = []


class _Joined:
    """Disjoint sets of numbers (union-find)."""

    def __init__(self, count: int):
        self._parents = list(range(count))

    def root(self, number: int) -> int:
        parents = self._parents
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    def join(self, numbers: Iterable[int]) -> None:
        first: int | None = None
        for number in numbers:
            root = self.root(number)
            if first is None:
                first = root
            elif root < first:  # the smallest number is the root of its set
                self._parents[first] = first = root
            else:
                self._parents[root] = first


def components(transactions: Sequence[STransaction]) -> list[list[STransaction]]:
    """Return sets of s-transactions of which none accesses a key that another set may write.

    This uses only the information available before they run: a computed key may be any key of its
    table. Keys that are never written connect no s-transactions.

    Parameters
    ----------
    transactions : sequence of STransaction
        In the serial order.

    Returns
    -------
    list of list of STransaction
        Each in the serial order; sorted by their first members.

    Notes
    -----
    O(references), plus O(log n) and the written keys in it for each range.
    """
    tables: dict[SharedTable, _Accesses] = {}
    for number, transaction in enumerate(transactions):
        for ref in transaction.writes():
            _enter(tables, number, ref, writes=True)
        for ref in transaction.reads():
            _enter(tables, number, ref, writes=False)
    joined = _Joined(len(transactions))
    for table, accesses in tables.items():
        _join(joined, table, accesses)
    found: dict[int, list[STransaction]] = {}
    for number, transaction in enumerate(transactions):
        found.setdefault(joined.root(number), []).append(transaction)
    return list(found.values())


def _enter(tables: dict[SharedTable, _Accesses], number: int, ref: Ref, *, writes: bool) -> None:
    accesses = tables.get(ref.table)
    if accesses is None:
        accesses = tables[ref.table] = _Accesses()
    if ref.is_whole:
        if writes:
            accesses.any_writers.append(number)
        else:
            accesses.whole.append((number, ref))
        return
    try:
        numbers = accesses.of.setdefault(ref.key, [])
    except Exception:
        return  # an invalid key; the operation fails when it runs
    if not numbers or numbers[-1] != number:
        numbers.append(number)
    if writes:
        accesses.written.add(ref.key)


def _join(joined: _Joined, table: SharedTable, accesses: _Accesses) -> None:
    if accesses.any_writers:
        joined.join(accesses.any_writers)
        joined.join([accesses.any_writers[0], *(number for number, _ in accesses.whole)])
        for numbers in accesses.of.values():
            joined.join([accesses.any_writers[0], *numbers])
        return
    for key in accesses.written:
        joined.join(accesses.of[key])
    if not accesses.whole or not accesses.written:
        return
    written = SortedKeys(table, accesses.written)
    everything = [accesses.of[key][0] for key in accesses.written]
    joins_all: list[int] = []
    for number, ref in accesses.whole:
        if isinstance(ref.key, Range):
            joined.join([number, *(accesses.of[key][0] for key in written.within(ref.key))])
        else:
            joins_all.append(number)
    if joins_all:
        joined.join([*joins_all, *everything])
