"""Tables as they were before rows ran, to be put back if these are interrupted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from activedb.compiler import jit
from activedb.scheduling._operations import Write
from activedb.scheduling._tables import Parameter
from activedb.scheduling.compiled._batch import Column, Ints
from activedb.scheduling.compiled._layout import Layout
from activedb.scheduling.compiled._rows import Rows
from activedb.scheduling.compiled._state import ColumnState

__all__ = ["Undo"]


_Chosen = tuple[Ints, Ints]  # rows, and the column that has their keys


@dataclass(frozen=True, slots=True)
class _Saved:
    """Contents of some keys of a table, or of the whole table."""

    place: int
    chosen: _Chosen | None
    values: Column
    written: Column
    heads: Ints

    @property
    def keys(self) -> Ints | slice:
        """Keys to restore; computed on demand, because few batches are undone."""
        if self.chosen is None:
            return slice(None)
        rows, column = self.chosen
        return column.take(rows)


class Undo:
    """Copy of the keys that rows may write: O(rows), or O(size) of a table if that is less.

    Parameters
    ----------
    state : ColumnState
    layout : Layout
    rows : Rows
        Those that are about to run.
    """

    def __init__(self, state: ColumnState, layout: Layout, rows: Rows):
        self._state = state
        self._log = (state.log, state.log.used, state.last_arrival)
        of_code = [np.flatnonzero(rows.codes == code) for code in range(len(layout.templates))]
        self._saved = [
            _saved(state, place, chosen)
            for place, table in enumerate(layout.tables)
            for chosen in _written(layout, place, rows, of_code, table.size or 0)
        ]

    def __call__(self) -> None:
        """Put all of it back; REQUIRES: the rows run no more, and nothing was trimmed since."""
        state = self._state
        for saved in self._saved:
            keys = saved.keys
            state.values[saved.place][keys] = saved.values
            state.written[saved.place][keys] = saved.written
            if len(saved.heads):
                state.heads[saved.place][keys] = saved.heads
        log, used, last_arrival = self._log
        log.used, state.last_arrival = used, last_arrival


def _saved(state: ColumnState, place: int, chosen: _Chosen | None) -> _Saved:
    values, written, heads = state.values[place], state.written[place], state.heads[place]
    if chosen is None:
        return _Saved(place, None, values.copy(), written.copy(), heads.copy())
    rows, column = chosen
    old, flags = gathered(rows, column, values, written)
    return _Saved(place, chosen, old, flags, heads.take(column.take(rows)) if len(heads) else heads)


@jit
def gathered(rows: Ints, column: Ints, values: Column, written: Column) -> tuple[Column, Column]:
    """Values and flags of the keys that a column holds in some rows, gathered in one pass."""
    old = np.empty(len(rows), values.dtype)
    flags = np.empty(len(rows), written.dtype)
    for number, row in enumerate(rows):
        key = column[row]
        old[number], flags[number] = values[key], written[key]
    return old, flags


def _written(
    layout: Layout, place: int, rows: Rows, of_code: list[Ints], size: int
) -> Sequence[_Chosen | None]:
    """Keys of a table that rows may write; None, all of it, if they are computed, or many."""
    table = layout.tables[place]
    found: list[_Chosen] = []
    count = 0
    for code, operations in enumerate(layout.templates):
        for operation in operations:
            for ref in operation.targets if isinstance(operation, Write) else ():
                if ref.table is not table:
                    continue
                if isinstance(ref.key, Parameter):
                    column = rows.columns[layout.columns.index((ref.key.name, True))]
                    found.append((of_code[code], column))
                    count += len(of_code[code])
                elif isinstance(ref.key, int | np.integer):
                    found.append((np.zeros(1, np.int64), np.array([ref.key], np.int64)))
                else:
                    return [None]
    return [None] if count > size // 4 else found
