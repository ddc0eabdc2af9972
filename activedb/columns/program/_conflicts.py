"""Precedence graph of the s-transactions of a batch: which rows wait for which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from activedb.columns.events import Column, Ints
from activedb.columns.program._layout import ProgramLayout, Template
from activedb.columns.program._rows import Rows
from activedb.compiler import jit
from activedb.scheduling import Parameter, Ref, SharedTable, Write

__all__ = ["COUNT", "SHIFT", "PrecedenceGraph", "PrecedencePlanner", "completed"]

SHIFT: Final = 32
COUNT: Final = (1 << SHIFT) - 1
"""Mask of a word of `waits`: number of rows waited for; the upper bits: time of its last change."""

NO_ROW: Final = -1
_WHOLE: Final = -1  # in place of a column: the key is in `constants`
_NUMBER_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PrecedenceGraph:
    """Precedence graph of a batch.

    Attributes
    ----------
    first_edge : array of int32, of shape (rows,)
        First edge of each row to a row that waits for it; -1: none.
    edge_to, edge_next : array of int32
        The waiting row; the next edge of the same source row, -1: none.
    waits : array of int64, of shape (rows,)
        Number of rows that each row waits for; see `COUNT`.
    ready : array of int64, of shape (rows,)
        Rows that wait for none, as a stack: those with the longest chains behind them on top
        (last).
    ready_count : int
    count : int
        Number of rows to run.
    weight : int
        Number of operations of all rows.
    height : int
        Number of operations on the longest chain of rows that wait for each other.
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
        """Average number of threads that could be busy."""
        return self.weight / max(1, self.height)


class PrecedencePlanner:
    """Planner for the batches of one program.

    Two rows conflict if both access a key and one writes it. The later row waits. Edges lead to a
    row only from the last writer, or from all readers since then: O(accesses).

    An access by a computed key may touch any key of its table. It counts as a write of an extra key
    of that table, which every other access to the table reads.

    Parameters
    ----------
    layout : ProgramLayout
    """

    def __init__(self, layout: ProgramLayout):
        self._layout = layout
        bases, total = [], 0
        for table in layout.tables:
            bases.append(total)
            total += table.size or 0
        self._bases = bases
        self._whole = total  # keys that stand for whole tables follow all others
        self._key_columns = list(dict.fromkeys(use.name for use in layout.key_uses))
        computed = {
            ref.table
            for templates in layout.templates
            for template in templates
            for ref in template.refs
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
        # Per key the last writer and the newest reader node, as numbers that only grow.
        self._known = np.full((total + len(layout.tables), 2), NO_ROW, np.int32)
        self._rows = 0
        self._nodes = 0

    def plan(self, rows: Rows, first: int = 0) -> PrecedenceGraph:
        """Return the plan of rows in the serial order, starting at row `first`; O(accesses)."""
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
            self._known.fill(NO_ROW)
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
        return PrecedenceGraph(*edges, waits, ready, len(free), count - first, weight, int(height))

    def _accesses(
        self, templates: tuple[Template, ...], computed: set[SharedTable]
    ) -> list[tuple[int, int, int, int]]:
        """Return accesses: column or `_WHOLE`, constant, first key of the table, and write flag."""
        found: dict[tuple[int, int, int], int] = {}
        for template in templates:
            targets = template.targets if isinstance(template, Write) else ()
            for ref in template.refs:
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
    """Write the edges; return the number of nodes in the lists of readers.

    `known` has per key the last writer, and the first node of a list of the readers since. Numbers
    of rows and nodes continue from batch to batch. Smaller numbers belong to earlier batches, and
    no row waits for those.
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
                known[key, 1] = NO_ROW
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
    """Write per row the operations of the longest chain starting there; return the maximum."""
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
    """Decrement the wait counts of rows that waited for completed ones; return the ready count."""
    for number in range(made):
        edge = first_edge[done[number]]
        while edge >= 0:
            follower = edge_to[edge]
            left = waits[follower] & COUNT
            if left > 0:  # otherwise it is done already
                waits[follower] = (now << SHIFT) | (left - 1)
                if left == 1:
                    ready[count] = follower
                    count += 1
            edge = edge_next[edge]
    return count
