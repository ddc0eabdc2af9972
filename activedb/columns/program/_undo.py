"""Snapshots of tables before rows run, restored if the rows are interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from activedb.columns.program._batch import Ints
from activedb.columns.program._layout import Layout
from activedb.columns.program._rows import Rows
from activedb.columns.program._state import ColumnState
from activedb.compiler import jit
from activedb.scheduling import Parameter, Write

__all__ = ["Undo"]

_WHOLE_BYTES: Final = 32  # copying this many bytes costs as much as gathering one key

_Array = npt.NDArray[Any]
_Chosen = tuple[Ints, Ints]  # rows, and the column with their keys


@dataclass(frozen=True, slots=True)
class _Saved:
    """Saved contents of an array at some keys; None: of the whole array."""

    array: _Array
    chosen: _Chosen | None
    old: _Array

    def put_back(self) -> None:
        if self.chosen is None:
            self.array[:] = self.old
        else:
            rows, column = self.chosen
            self.array[column.take(rows)] = self.old


class Undo:
    """Snapshot of the values that rows may write: O(rows), or O(size) of a table if smaller.

    One instance serves a whole run and reuses its memory, as allocating for each batch would cost
    as much as filling it.

    Parameters
    ----------
    layout : Layout
    """

    def __init__(self, layout: Layout):
        self._layout = layout
        self._rooms: dict[int, _Array] = {}
        self._saved: list[_Saved] = []

    def save(self, state: ColumnState, rows: Rows) -> None:
        """Save the values that the rows about to run may write."""
        self._log = (state.log, state.log.used, state.last_arrival)
        self._saved = []
        layout = self._layout
        of_code = [np.flatnonzero(rows.codes == code) for code in range(len(layout.templates))]
        for place in range(len(layout.tables)):
            written = _written(layout, place, rows, of_code)
            for array in (state.values[place], state.written[place], state.heads[place]):
                self._save(array, written)

    def put_back(self, state: ColumnState) -> None:
        """Restore all saved values; REQUIRES: no row runs any more, no trimming since."""
        for saved in self._saved:
            saved.put_back()
        state.log, state.log.used, state.last_arrival = self._log

    def _save(self, array: _Array, written: list[_Chosen] | None) -> None:
        if written is None or sum(len(rows) for rows, _ in written) * _WHOLE_BYTES > array.nbytes:
            room = self._room(array.dtype, len(array))
            np.copyto(room, array)
            self._saved.append(_Saved(array, None, room))
            return
        for rows, column in written:
            room = self._room(array.dtype, len(rows))
            gather(array, rows, column, room)
            self._saved.append(_Saved(array, (rows, column), room))

    def _room(self, dtype: np.dtype[Any], count: int) -> _Array:
        """Return memory for the next array, reused from the previous batch if large enough."""
        number = len(self._saved)
        room = self._rooms.get(number)
        if room is None or room.dtype != dtype or len(room) < count:
            self._rooms[number] = room = np.empty(count + count // 4, dtype)
        return room[:count]


@jit
def gather(array: _Array, rows: Ints, column: Ints, into: _Array) -> None:
    """Copy the array's values at the keys of some rows."""
    for number, row in enumerate(rows):
        into[number] = array[column[row]]


def _written(layout: Layout, place: int, rows: Rows, of_code: list[Ints]) -> list[_Chosen] | None:
    """Return the keys of a table that rows may write; None (any key) if keys are computed."""
    found: list[_Chosen] = []
    for code, operations in enumerate(layout.templates):
        for operation in operations:
            for ref in operation.targets if isinstance(operation, Write) else ():
                if ref.table is not layout.tables[place]:
                    continue
                if isinstance(ref.key, Parameter):
                    column = rows.columns[layout.columns.index((ref.key.name, True))]
                    found.append((of_code[code], column))
                elif isinstance(ref.key, int | np.integer):
                    found.append((np.zeros(1, np.int64), np.array([ref.key], np.int64)))
                else:
                    return None
    return found
