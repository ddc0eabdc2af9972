"""Planning: operations into sorted lists as they arrive, then TDs and PDs from these lists."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

from activedb.scheduling._operations import At, Operation, Read, STransaction, Write
from activedb.scheduling._tables import Computed, Range, Ref, SharedTable
from activedb.scheduling.tpg._vertex import GraphTransaction, Vertex
from activedb.values import same_values

__all__ = [
    "READ",
    "SOURCE",
    "WRITE",
    "Accesses",
    "Planner",
    "SortedLists",
    "TaskGraph",
    "pinned",
    "refine",
]


class _CachedKey:
    """Key function that repeats the key of its last call while its inputs are the same.

    So an operation that is redone accesses the same key as before, even if the function is random,
    unless the inputs of the key have changed (Mao et al., section 6.5.2).
    """

    __slots__ = ("__qualname__", "_function", "_inputs", "_key")

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._inputs: tuple[Any, ...] | None = None
        self._key: Hashable = None
        self.__qualname__ = getattr(function, "__qualname__", repr(function))

    def __call__(self, *inputs: Any) -> Any:
        if self._inputs is None or not same_values(inputs, self._inputs):
            self._key = self._function(*inputs)
            self._inputs = inputs
        return self._key


def pinned(operation: Operation) -> Operation:
    """Return the operation with its computed keys recorded when they are resolved."""
    refs: dict[int, Ref] = {}
    if type(operation) is Write:
        return Write(
            _pinned(operation.targets[0], refs),
            tuple(_pinned(ref, refs) for ref in operation.direct),
            operation.function,
            operation.args,
        )
    if type(operation) is Read:
        direct = tuple(_pinned(ref, refs) for ref in operation.direct)
        return Read(direct, operation.function, operation.args)
    return operation  # other operations compute their keys themselves


def _pinned(ref: Ref, done: dict[int, Ref]) -> Ref:
    """Return `ref` with a recorded key; the same object for the same `ref`."""
    key = ref.key
    if type(key) is not Computed:
        return ref
    if id(ref) not in done:
        reads = tuple(_pinned(source, done) for source in key.reads)
        done[id(ref)] = Ref(
            ref.table, Computed(_CachedKey(key.function), reads, key.args), ref.window_us
        )
    return done[id(ref)]


# -- stream phase: operations are put into sorted lists as their s-transactions arrive -------------


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

    Operations of one s-transaction are in one `GraphTransaction`; this represents their LD. Lists
    are sorted after the punctuation, and only if an s-transaction came out of order.

    Attributes
    ----------
    nodes : list of GraphTransaction
    tables : dict
        The `SortedLists` of each table.
    lds : int
        Number of logical dependencies: between consecutive operations of an s-transaction.
    """

    def __init__(self) -> None:
        self.nodes: list[GraphTransaction] = []
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
        node = GraphTransaction(transaction)
        self.nodes.append(node)
        operations = transaction.operations
        for operation in operations:
            planned = pinned(operation) if operation.computes_keys else operation
            vertex = Vertex(node, planned)
            node.vertices.append(vertex)
            targets = operation.targets
            for ref in targets:
                self._insert(ref, at, vertex, WRITE)
            kind = SOURCE if targets else READ
            for ref in operation.sources:
                # A writer of the key is already in the key's list.
                for target in targets:
                    if ref is target or (
                        ref.table is target.table and _is_same(ref.key, target.key)
                    ):
                        break
                else:
                    self._insert(ref, at, vertex, kind)
        if len(operations) > 1:
            self.lds += len(operations) - 1
            if _may_clash(operations):
                node.writers = {}

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

    def leave_out(self, count: int) -> list[GraphTransaction]:
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


def _at_of_node(node: GraphTransaction) -> At:
    return node.transaction.at


# -- transaction phase: derivation of TDs and PDs from the sorted lists, which completes the TPG ---


KEYS_PER_RANGE_MAX = 64
"""Maximum number of written keys in a range; above it, the range is planned as the whole table."""

_COMPARABLE = (int, str, bytes)
"""Key types with a total order: a range of these is planned by its keys."""


class TaskGraph:
    """Task precedence graph: the operations of a batch, and their dependencies.

    Attributes
    ----------
    nodes : list of GraphTransaction
        The s-transactions, by timestamp.
    vertices : list of Vertex
        The operations, including virtual ones of whole tables, in the serial order.
    operations : int
        Number of operations that are not virtual.
    lds, tds, pds : int
        Number of dependencies kept.
    """

    __slots__ = ("lds", "nodes", "operations", "pds", "tds", "vertices")

    def __init__(self, nodes: list[GraphTransaction], lds: int):
        self.nodes = nodes
        self.lds = lds
        self.tds = 0
        self.pds = 0
        self.operations = 0
        self.vertices: list[Vertex] = []

    def depend(self, vertex: Vertex, on: Vertex, kind: int) -> None:
        """Make a vertex depend on an earlier one."""
        children = on.children
        if isinstance(children, list):
            children.append(vertex)
        else:
            on.children = [vertex]
        vertex.waits += 1
        if kind == SOURCE:
            self.pds += 1
        else:
            self.tds += 1

    def number(self) -> None:
        """Number all vertices in the serial order."""
        vertices = self.vertices
        for node in self.nodes:
            vertices += node.virtual
            vertices += node.vertices
            self.operations += len(node.vertices)
        for number, vertex in enumerate(vertices):
            vertex.number = number

    def dissolve(self) -> None:
        """Break all reference cycles, so that none is left for the garbage collector."""
        for vertex in self.vertices:
            vertex.children = ()
            vertex.unit = None
        for node in self.nodes:
            node.vertices = []
            node.virtual = ()
            node.writers = None
        self.vertices.clear()
        self.nodes.clear()


def refine(planner: Planner) -> TaskGraph:
    """Return the TPG of all s-transactions in the planner.

    O(accesses); O(a log a) for tables with accesses to the whole table, where a is their number of
    accesses. README.md, "Dependencies", describes which dependencies are kept, and why they
    suffice.
    """
    planner.in_order()
    graph = TaskGraph(planner.nodes, planner.lds)
    for table, lists in planner.tables.items():
        if lists.whole:
            _WholeTable(graph, table, lists).refine()
        else:
            for accesses in lists.of.values():
                if len(accesses) > 1:
                    _refine_key(graph, accesses)
    graph.number()
    return graph


def _refine_key(graph: TaskGraph, accesses: Accesses) -> None:
    """Make each access depend on the nearest writer of an earlier s-transaction."""
    nearest: Vertex | None = None
    latest: Vertex | None = None
    node: GraphTransaction | None = None
    for _, vertex, kind in accesses:
        if vertex.node is not node:
            node = vertex.node
            nearest = latest
        if nearest is not None:
            graph.depend(vertex, nearest, kind)
        if kind == WRITE:
            latest = vertex


class _WholeTable:
    """Table with computed keys or ranges: one sweep over all its accesses, by timestamp.

    Each access to the whole table depends on one virtual operation, which depends on the nearest
    writers of all keys and on the previous virtual operation. An access to a key after a writer of
    any key (`_writers_of_any`) depends on that writer, if the key has not been written since.
    """

    def __init__(self, graph: TaskGraph, table: SharedTable, lists: SortedLists):
        self._graph = graph
        self._table = table
        self._lists = lists
        self._last: dict[Hashable, Vertex] = {}  # nearest writers, after the writers of any key
        self._writers_of_any: tuple[Vertex, ...] = ()
        self._front: tuple[Vertex, ...] = ()  # previous virtual operation, or writers of any key
        self._fresh: dict[Hashable, Vertex] = {}  # nearest writers, after the front
        self._written: list[Any] | None = None  # the written keys, sorted

    def refine(self) -> None:
        """Add the dependencies to the graph."""
        accesses: list[tuple[Any, Vertex, int, Ref | None, Hashable]] = [
            (at, vertex, kind, None, key)
            for key, found in self._lists.of.items()
            for at, vertex, kind in found
        ]
        accesses += [(at, vertex, kind, ref, None) for at, vertex, kind, ref in self._lists.whole]
        accesses.sort(key=itemgetter(0))
        for _, group in groupby(accesses, key=itemgetter(0)):
            of_node = list(group)
            for _, vertex, kind, ref, key in of_node:
                for on in self._nearest(vertex.node, kind, ref, key):
                    self._graph.depend(vertex, on, kind)
            any_key = [vertex for _, vertex, kind, ref, _ in of_node if kind == WRITE and ref]
            if any_key:
                self._writers_of_any = self._front = tuple(any_key)
                self._last.clear()
                self._fresh.clear()
            for _, vertex, kind, ref, key in of_node:
                if kind == WRITE and ref is None:
                    self._last[key] = self._fresh[key] = vertex

    def _nearest(
        self, node: GraphTransaction, kind: int, ref: Ref | None, key: Hashable
    ) -> Iterable[Vertex]:
        """Return the vertices that an access of `node` depends on."""
        if ref is None:
            found = self._last.get(key)
            return self._writers_of_any if found is None else (found,)
        if type(ref.key) is Range and kind != WRITE:
            keys = self._keys_in(ref.key)
            if keys is not None:
                nearest = [self._last[key] for key in keys if key in self._last]
                return (*self._writers_of_any, *nearest)
        return self._virtual(node)

    def _virtual(self, node: GraphTransaction) -> tuple[Vertex, ...]:
        """Return the virtual operation that waits for all writers before `node`."""
        waits_for = (*self._front, *self._fresh.values())
        self._fresh.clear()
        if len(waits_for) > 1:
            virtual = Vertex(node, None)
            node.virtual = [*node.virtual, virtual]
            for vertex in waits_for:
                self._graph.depend(virtual, vertex, SOURCE)
            waits_for = (virtual,)
        self._front = waits_for
        return waits_for

    def _keys_in(self, key_range: Range) -> list[Any] | None:
        """Return the written keys of a range; None if there are too many, or no total order."""
        kind = self._table.key
        if kind not in _COMPARABLE:
            return None
        if any(b is not None and type(b) is not kind for b in (key_range.low, key_range.high)):
            return None
        if self._written is None:
            written = [
                key
                for key, accesses in self._lists.of.items()
                if any(access[2] == WRITE for access in accesses)
            ]
            if any(type(key) is not kind for key in written):
                return None
            self._written = sorted(written)
        keys = self._written
        first = 0 if key_range.low is None else bisect_left(keys, key_range.low)
        last = len(keys) if key_range.high is None else bisect_left(keys, key_range.high)
        return keys[first:last] if last - first <= KEYS_PER_RANGE_MAX else None
