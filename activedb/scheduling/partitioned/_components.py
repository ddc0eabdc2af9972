"""Which s-transactions have nothing to do with each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from activedb.scheduling._s_transactions import STransaction
from activedb.scheduling._tables import Range, Ref, SharedTable
from activedb.scheduling.partitioned._ranges import SortedKeys

__all__ = ["components"]


class _Accesses:
    """Who accesses a table, by the numbers of s-transactions.

    Attributes
    ----------
    of : dict
        Per key who accesses it.
    written : set
        The keys that somebody writes.
    whole : list
        Who may read any key of the table, or those of a range.
    any_writers : list
        Who may write any key.
    """

    __slots__ = ("any_writers", "of", "whole", "written")

    def __init__(self) -> None:
        self.of: dict[Hashable, list[int]] = {}
        self.written: set[Hashable] = set()
        self.whole: list[tuple[int, Ref]] = []
        self.any_writers: list[int] = []


class _Joined:
    """Numbers, each in one set with those that it was joined with (union-find)."""

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
            elif root < first:  # the first of a set stands for it
                self._parents[first] = first = root
            else:
                self._parents[root] = first


def components(transactions: Sequence[STransaction]) -> list[list[STransaction]]:
    """Sets of s-transactions such that none reads or writes what one of another set may write.

    As far as is known before they run: a computed key may be any key of its table. What nobody
    writes joins nobody.

    Parameters
    ----------
    transactions : sequence of STransaction
        In the serial order.

    Returns
    -------
    list of list of STransaction
        Each in the serial order; by their first ones.

    Notes
    -----
    O(references), and for each range besides O(log n) and the written keys in it.
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
        return  # it cannot be a key, so the operation will fail when it runs
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
