"""Transaction phase: derivation of TDs and PDs from the sorted lists, which completes the TPG."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

from activedb.scheduling._tables import Range, Ref, SharedTable
from activedb.scheduling.tpg._planning import SOURCE, WRITE, Accesses, Planner, SortedLists
from activedb.scheduling.tpg._vertex import Node, Vertex

__all__ = ["TaskGraph", "refine"]

KEYS_PER_RANGE_MAX = 64
"""Maximum number of written keys in a range; above it, the range is planned as the whole table."""

_COMPARABLE = (int, str, bytes)
"""Key types with a total order: a range of these is planned by its keys."""


class TaskGraph:
    """Task precedence graph: the operations of a batch, and their dependencies.

    Attributes
    ----------
    nodes : list of Node
        The s-transactions, by timestamp.
    vertices : list of Vertex
        The operations, including virtual ones of whole tables, in the serial order.
    operations : int
        Number of operations that are not virtual.
    lds, tds, pds : int
        Number of dependencies kept.
    """

    __slots__ = ("lds", "nodes", "operations", "pds", "tds", "vertices")

    def __init__(self, nodes: list[Node], lds: int):
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
    node: Node | None = None
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

    def _nearest(self, node: Node, kind: int, ref: Ref | None, key: Hashable) -> Iterable[Vertex]:
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

    def _virtual(self, node: Node) -> tuple[Vertex, ...]:
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
