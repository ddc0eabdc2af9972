"""Tables as they were before rows ran, to be put back if these are interrupted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from activedb.scheduling._operations import Write
from activedb.scheduling._tables import Parameter
from activedb.scheduling.compiled._batch import Column, Ints
from activedb.scheduling.compiled._layout import Layout
from activedb.scheduling.compiled._rows import Rows
from activedb.scheduling.compiled._state import ColumnState

__all__ = ["Undo"]


@dataclass(frozen=True, slots=True)
class _Saved:
    """Keys of a table, or all of it, and what they had."""

    place: int
    keys: Ints | slice
    values: Column
    written: Column
    heads: Ints


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
            self._save(place, keys)
            for place, table in enumerate(layout.tables)
            for keys in _written(layout, place, rows, of_code, table.size or 0)
        ]

    def __call__(self) -> None:
        """Put all of it back; REQUIRES: the rows run no more, and nothing was trimmed since."""
        state = self._state
        for saved in self._saved:
            state.values[saved.place][saved.keys] = saved.values
            state.written[saved.place][saved.keys] = saved.written
            if len(saved.heads):
                state.heads[saved.place][saved.keys] = saved.heads
        log, used, last_arrival = self._log
        log.used, state.last_arrival = used, last_arrival

    def _save(self, place: int, keys: Ints | slice) -> _Saved:
        heads = self._state.heads[place]
        return _Saved(
            place,
            keys,
            _copy(self._state.values[place], keys),
            _copy(self._state.written[place], keys),
            _copy(heads, keys) if len(heads) else heads,
        )


def _copy(column: Column, keys: Ints | slice) -> Column:
    return column.copy() if isinstance(keys, slice) else column.take(keys)


def _written(
    layout: Layout, place: int, rows: Rows, of_code: list[Ints], size: int
) -> list[Ints | slice]:
    """Keys of a table that rows may write; the whole table if they are computed, or many."""
    table = layout.tables[place]
    found: list[Ints | slice] = []
    count = 0
    for code, operations in enumerate(layout.templates):
        keys = [
            ref.key
            for operation in operations
            if isinstance(operation, Write)
            for ref in operation.targets
            if ref.table is table
        ]
        if not keys:
            continue
        for key in keys:
            if isinstance(key, Parameter):
                column = rows.columns[layout.columns.index((key.name, True))]
                found.append(column.take(of_code[code]))
                count += len(of_code[code])
            elif isinstance(key, int | np.integer):
                found.append(np.array([key], np.int64))
            else:
                return [slice(None)]
    return [slice(None)] if count > size // 4 else found
