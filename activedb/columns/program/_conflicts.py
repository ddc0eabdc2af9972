"""Which s-transactions of a batch wait for which: the precedence graph of whole s-transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from activedb.columns.program._batch import Column, Ints
from activedb.columns.program._layout import Layout, Template
from activedb.columns.program._rows import Rows
from activedb.compiler import jit
from activedb.scheduling import Parameter, Ref, SharedTable, Write

__all__ = ["COUNT", "SHIFT", "Plan", "Planner", "completed"]

SHIFT: Final = 32
COUNT: Final = (1 << SHIFT) - 1
"""Of a word of `waits`: how many are waited for; above it, when that was last changed."""

NOBODY: Final = -1
_WHOLE: Final = -1  # in place of a column: the key is in `constants`
_NUMBER_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What waits for what.

    Attributes
    ----------
    first_edge : array of int32, of shape (rows,)
        The first edge of each row to one that waits for it, -1: none does.
    edge_to, edge_next : array of int32
        The row that waits; the next edge of the same row, -1: there is none.
    waits : array of int64, of shape (rows,)
        How many each waits for; see `COUNT`.
    ready : array of int64, of shape (rows,)
        Rows that wait for none, first of all those that most depends on: a stack, top last.
    ready_count : int
    count : int
        How many rows there are to run.
    weight : int
        Operations of all rows.
    height : int
        Operations of the longest chain of rows that wait for each other.
    """

    first_edge: Column
    edge_to: Column
    edge_next: Column
    waits: Ints
    ready: Ints
    ready_count: int
    count: int
    weight: int
    height: int

    @property
    def parallelism(self) -> float:
        """How many threads could be busy, on average."""
        return self.weight / max(1, self.height)


class Planner:
    """Plans batches of one program.

    Two rows conflict if both access a key and one writes it. The later one waits; edges are only
    put between a row and the last that wrote, or all that have read since then: O(accesses).
    An access by a computed key may be to any key of its table: it counts as one that writes a key
    of its own kind, which all accesses to the table read.

    Parameters
    ----------
    layout : Layout
    """

    def __init__(self, layout: Layout):
        self._layout = layout
        bases, total = [], 0
        for table in layout.tables:
            bases.append(total)
            total += table.size or 0
        self._bases = bases
        self._whole = total  # the keys that stand for whole tables are behind all others
        self._key_columns = list(dict.fromkeys(use.name for use in layout.key_uses))
        computed = {
            ref.table
            for templates in layout.templates
            for template in templates
            for ref in template.refs()
            if ref.is_whole
        }
        firsts, accesses = [0], []
        for templates in layout.templates:
            accesses += sorted(self._accesses(templates, computed), key=lambda a: a[3])
            firsts.append(len(accesses))
        all_accesses = np.array(accesses, np.int64).reshape(len(accesses), 4)
        self._columns, self._constants, self._offsets, self._writes = (
            np.ascontiguousarray(all_accesses[:, place]) for place in range(4)
        )
        self._firsts = np.array(firsts, np.int64)
        self._weights = np.array([len(templates) for templates in layout.templates], np.int64)
        # Of each key the last writer and the newest of its readers, as numbers that only rise.
        self._known = np.full((total + len(layout.tables), 2), NOBODY, np.int32)
        self._rows = 0
        self._nodes = 0

    def plan(self, rows: Rows, first: int = 0) -> Plan:
        """The plan of rows in the serial order, from one on; O(accesses)."""
        count = len(rows)
        keys = np.empty((len(self._key_columns), count), np.int64)
        for place, name in enumerate(self._key_columns):
            keys[place] = rows.columns[self._layout.columns.index((name, True))]
        per_row = np.diff(self._firsts)
        accesses = int(per_row[rows.codes].sum())
        first_edge = np.full(count, -1, np.int32)
        edge_to, edge_next = np.empty(2 * accesses, np.int32), np.empty(2 * accesses, np.int32)
        waits = np.zeros(count, np.int64)
        if max(self._rows + count, self._nodes + accesses) > _NUMBER_MAX:
            self._known.fill(NOBODY)
            self._rows = self._nodes = 0
        nodes = connect(
            first, rows.codes, keys, self._firsts, self._columns, self._constants, self._offsets,
            self._writes, self._known, self._rows, self._nodes,
            np.empty(accesses, np.int32), np.empty(accesses, np.int32),
            first_edge, edge_to, edge_next, waits,
        )  # fmt: skip
        self._rows += count
        self._nodes += nodes
        heights = np.zeros(count, np.int32)
        height = measure(first, rows.codes, self._weights, first_edge, edge_to, edge_next, heights)
        free = np.flatnonzero(waits[first:] == 0) + first
        ready = np.empty(count, np.int64)
        ready[: len(free)] = free[np.argsort(heights[free], kind="stable")]
        weight = int(self._weights[rows.codes[first:]].sum())
        edges = (first_edge, edge_to, edge_next)
        return Plan(*edges, waits, ready, len(free), count - first, weight, int(height))

    def _accesses(
        self, templates: tuple[Template, ...], computed: set[SharedTable]
    ) -> list[tuple[int, int, int, int]]:
        """Column or `_WHOLE`, constant, first key of the table, whether it writes."""
        found: dict[tuple[int, int, int], int] = {}
        for template in templates:
            targets = template.targets if isinstance(template, Write) else ()
            for ref in template.refs():
                is_write = any(ref is target for target in targets)
                for access, writes in self._of(ref, is_write, computed):
                    found[access] = max(found.get(access, 0), writes)
        return [(*access, writes) for access, writes in found.items()]

    def _of(self, ref: Ref, is_write: bool, computed: set[SharedTable]) -> list[Any]:
        number = self._layout.number(ref.table)
        whole = (_WHOLE, number, self._whole)
        if ref.is_whole:
            return [(whole, 1)]
        if isinstance(ref.key, Parameter):
            own = (self._key_columns.index(ref.key.name), 0, self._bases[number])
        else:
            own = (_WHOLE, int(ref.key), self._bases[number])
        return [(own, int(is_write))] + ([(whole, 0)] if ref.table in computed else [])


@jit
def connect(
    first: int, codes: Ints, keys: Ints, firsts: Ints, columns: Ints, constants: Ints,
    offsets: Ints, writes: Ints, known: Column, rows_before: int, nodes_before: int,
    node_row: Column, node_next: Column, first_edge: Column, edge_to: Column, edge_next: Column,
    waits: Ints,
) -> int:  # fmt: skip
    """Write the edges; how many nodes there are in the lists of readers.

    Per key the last writer is `known`, and the first node of a list of those that have read since.
    Numbers of rows and nodes go on from batch to batch: smaller ones are of former batches, and
    nobody waits for them.
    """
    nodes = 0
    edges = 0
    for row in range(first, len(codes)):
        code = codes[row]
        for access in range(firsts[code], firsts[code + 1]):
            column = columns[access]
            key = offsets[access] + (constants[access] if column < 0 else keys[column, row])
            writer = known[key, 0] - rows_before
            alone = True
            if writes[access]:
                node = known[key, 1] - nodes_before
                while node >= 0:
                    reader = node_row[node]
                    if reader != row:
                        alone = False
                        edge_to[edges] = row
                        edge_next[edges] = first_edge[reader]
                        first_edge[reader] = edges
                        edges += 1
                        waits[row] += 1
                    node = node_next[node]
                known[key, 0] = rows_before + row
                known[key, 1] = NOBODY
            else:
                next_node = known[key, 1] - nodes_before
                node_row[nodes] = row
                node_next[nodes] = next_node if next_node >= 0 else -1
                known[key, 1] = nodes_before + nodes
                nodes += 1
            if alone and writer >= 0 and writer != row:
                edge_to[edges] = row
                edge_next[edges] = first_edge[writer]
                first_edge[writer] = edges
                edges += 1
                waits[row] += 1
    return nodes


@jit
def measure(
    first: int, codes: Ints, weights: Ints, first_edge: Column, edge_to: Column, edge_next: Column,
    heights: Column,
) -> int:  # fmt: skip
    """Write per row the operations of the longest chain that begins with it; the longest."""
    longest = 0
    for row in range(len(codes) - 1, first - 1, -1):
        most = 0
        edge = first_edge[row]
        while edge >= 0:
            most = max(most, heights[edge_to[edge]])
            edge = edge_next[edge]
        heights[row] = most + weights[codes[row]]
        longest = max(longest, heights[row])
    return longest


@jit
def completed(
    done: Ints, made: int, first_edge: Column, edge_to: Column, edge_next: Column, waits: Ints,
    now: int, ready: Ints, count: int,
) -> int:  # fmt: skip
    """Those that waited for rows that are done wait for one less; how many are ready then."""
    for number in range(made):
        edge = first_edge[done[number]]
        while edge >= 0:
            follower = edge_to[edge]
            left = waits[follower] & COUNT
            if left > 0:  # else it is done already
                waits[follower] = (now << SHIFT) | (left - 1)
                if left == 1:
                    ready[count] = follower
                    count += 1
            edge = edge_next[edge]
    return count
