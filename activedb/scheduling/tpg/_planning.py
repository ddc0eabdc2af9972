"""Stream phase: operations are put into sorted lists as their s-transactions arrive."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any, TypeAlias

from activedb.scheduling._operations import Operation
from activedb.scheduling._s_transactions import At, STransaction
from activedb.scheduling._tables import Computed, Range, Ref, SharedTable
from activedb.scheduling.tpg._pinning import pinned
from activedb.scheduling.tpg._vertex import Node, Vertex

__all__ = ["READ", "SOURCE", "WRITE", "Accesses", "Planner", "SortedLists"]

WRITE = 0
"""The operation writes the key (and may read it): a source of TDs."""
SOURCE = 1
"""Virtual operation: an operation reads the key for a write elsewhere: a source of PDs."""
READ = 2
"""An operation that writes nothing reads the key: a source of TDs."""

Accesses: TypeAlias = list[tuple[At, Vertex, int]]
_at: Callable[[tuple[Any, ...]], At] = itemgetter(0)


class SortedLists:
    """Sorted lists of one table: the operations that access each key, by timestamp.

    Attributes
    ----------
    of : dict
        Accesses of each key: timestamp, operation, and `WRITE`, `SOURCE` or `READ`.
    whole : list
        Virtual operations of the whole table, with the reference: accesses whose key is computed
        when they run, and ranges. Each stands for one virtual operation in the list of every key.
    """

    __slots__ = ("of", "whole")

    def __init__(self) -> None:
        self.of: dict[Hashable, Accesses] = {}
        self.whole: list[tuple[At, Vertex, int, Ref]] = []

    def sort(self) -> None:
        """Sort all lists by timestamp; fast for lists that are sorted already."""
        for accesses in self.of.values():
            if len(accesses) > 1:
                accesses.sort(key=_at)
        self.whole.sort(key=_at)

    def forget(self, mark: At) -> None:
        """Discard accesses up to a place. REQUIRES: `sort`."""
        for accesses in self.of.values():
            if accesses[0][0] <= mark:
                del accesses[: bisect_right(accesses, mark, key=_at)]
        del self.whole[: bisect_right(self.whole, mark, key=_at)]
        self.of = {key: accesses for key, accesses in self.of.items() if accesses}


class Planner:
    """Collector of s-transactions in any order of arrival, for the transaction phase.

    Operations of one s-transaction are in one `Node`; this represents their LD. Lists are sorted
    after the punctuation, and only if an s-transaction came out of order.

    Attributes
    ----------
    nodes : list of Node
    tables : dict
        The `SortedLists` of each table.
    lds : int
        Number of logical dependencies: between consecutive operations of an s-transaction.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.tables: dict[SharedTable, SortedLists] = {}
        self.lds = 0
        self._latest: At | None = None
        self._in_order = True

    def add(self, transaction: STransaction) -> None:
        """Add an s-transaction; O(references)."""
        at = transaction.at
        if self._latest is None or self._latest < at:
            self._latest = at
        else:
            self._in_order = False
        node = Node(transaction)
        self.nodes.append(node)
        operations = transaction.operations
        for operation in operations:
            vertex = Vertex(node, pinned(operation))
            node.vertices.append(vertex)
            self._enter(at, vertex, operation)
        if len(operations) > 1:
            self.lds += len(operations) - 1
            if _may_clash(operations):
                node.writers = {}

    def _enter(self, at: At, vertex: Vertex, operation: Operation) -> None:
        targets = operation.targets
        for ref in targets:
            self._insert(ref, at, vertex, WRITE)
        kind = SOURCE if targets else READ
        for ref in operation.sources:
            # A writer of the key is already in the key's list.
            for target in targets:
                if ref is target or (ref.table is target.table and _is_same(ref.key, target.key)):
                    break
            else:
                self._insert(ref, at, vertex, kind)

    def _insert(self, ref: Ref, at: At, vertex: Vertex, kind: int) -> None:
        lists = self.tables.get(ref.table)
        if lists is None:
            lists = self.tables[ref.table] = SortedLists()
        key = ref.key
        if type(key) is Computed or type(key) is Range:
            lists.whole.append((at, vertex, kind, ref))
            return
        try:
            accesses = lists.of.get(key)
        except Exception:
            return  # an invalid key; the operation fails when it runs
        if accesses is None:
            lists.of[key] = [(at, vertex, kind)]
        else:
            accesses.append((at, vertex, kind))

    def leave_out(self, count: int) -> list[Node]:
        """Remove and return the earliest s-transactions, which are run in another way."""
        self.in_order()
        left_out, self.nodes = self.nodes[:count], self.nodes[count:]
        if left_out:
            mark = left_out[-1].transaction.at
            self.lds -= sum(max(len(node.vertices) - 1, 0) for node in left_out)
            for lists in self.tables.values():
                lists.forget(mark)
        return left_out

    def absorb(self, other: Planner) -> None:
        """Merge all s-transactions of another planner into this one."""
        self.nodes += other.nodes
        self.lds += other.lds
        self._in_order = False
        for table, lists in other.tables.items():
            own = self.tables.setdefault(table, SortedLists())
            own.whole += lists.whole
            for key, accesses in lists.of.items():
                own.of.setdefault(key, []).extend(accesses)

    def in_order(self) -> None:
        """Sort s-transactions and lists by timestamp."""
        if not self._in_order:
            self.nodes.sort(key=_at_of_node)
            for lists in self.tables.values():
                lists.sort()
            self._in_order = True


def _is_same(key: object, other: object) -> bool:
    try:
        return bool(key == other)
    except Exception:
        return False  # an invalid key, or one with an unusual ``==``


def _may_clash(operations: tuple[Operation, ...]) -> bool:
    """Return whether two of an s-transaction's operations may write the same key."""
    seen: set[tuple[str, Hashable]] = set()
    unknown: set[str] = set()
    for operation in operations:
        for ref in operation.targets:
            name = ref.table.name
            if ref.is_whole:
                unknown.add(name)
                continue
            try:
                is_again = (name, ref.key) in seen
                seen.add((name, ref.key))
            except Exception:
                is_again = False  # an invalid key
            if is_again:
                return True
    several = len([o for o in operations if o.targets]) > 1
    return bool(unknown) and several


def _at_of_node(node: Node) -> At:
    return node.transaction.at
