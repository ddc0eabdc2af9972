"""Events in columns: as fed by the caller, as accepted, and with their outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from activedb.columns._arrival import PARAM_PREFIX, EventTable
from activedb.compiler import jit
from activedb.errors import BadEvent
from activedb.scheduling import At, Outcome

__all__ = [
    "EXACT_MAX",
    "RAISED",
    "Column",
    "EventBatch",
    "Ints",
    "Rows",
    "column_of",
    "is_exact",
    "split",
]


Ints = npt.NDArray[np.int64]
Column = npt.NDArray[Any]


@dataclass(frozen=True, eq=False, slots=True)
class EventBatch:
    """Events in columns, one row each, in the order of their arrival.

    Attributes
    ----------
    types : tuple of str
        Names of the event types.
    codes : array of int64, of shape (rows,)
        Per event the index of its type in `types`.
    us : array of int64, of shape (rows,)
        Microseconds since the epoch.
    params : mapping of str to array
        Parameters by name: arrays of `rows` integers (int64), floats (float64), booleans, or
        objects, in which None stands for NULL.
    ids : array of str, or None
        Empty string: the event has no id. None: no event has one.
    """

    types: tuple[str, ...]
    codes: Ints
    us: Ints
    params: Mapping[str, Column] = field(default_factory=dict)
    ids: Column | None = None

    @classmethod
    def of_arrays(
        cls,
        types: Sequence[str],
        codes: npt.ArrayLike,
        us: npt.ArrayLike,
        params: Mapping[str, Any] | None = None,
        ids: Any = None,
    ) -> EventBatch:
        """Build from NumPy arrays or convertible objects; int64 and float64 arrays are not copied.

        Parameters
        ----------
        types : sequence of str
        codes : arrays of integers, or sequence of str
            Indices into `types`, or names.
        us : array of integers
            Times in microseconds.
        params : mapping of str to array, optional
        ids : sequence of str or None, optional

        Raises
        ------
        BadEvent
            If lengths differ, a code is not the index of a type, or times are not integers.
        """
        names = tuple(types)
        given: Any = codes
        if len(given) and isinstance(given[0], str):
            places = {name: place for place, name in enumerate(names)}
            given = [places.get(name, -1) for name in given]
        us_array, code_array = np.asarray(us), np.asarray(given)
        for name, array in (("us", us_array), ("codes", code_array)):
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                raise BadEvent(f"{name} must be one array of integers, not {array!r}")
        if code_array.size and not 0 <= code_array.min() <= code_array.max() < len(names):
            raise BadEvent(f"codes must be from 0 to {len(names) - 1}: there are so many types")
        made = {name: column_of(column) for name, column in (params or {}).items()}
        id_array = None if ids is None else np.array([id_ or "" for id_ in ids], str)
        checked = {"codes": code_array, **made}
        if id_array is not None:
            checked["ids"] = id_array
        for name, column in checked.items():
            if len(column) != len(us_array):
                raise BadEvent(
                    f"the column {name!r} has {len(column)} rows, the times have {len(us_array)}"
                )
        return cls(
            names,
            code_array.astype(np.int64, copy=False),
            us_array.astype(np.int64, copy=False),
            made,
            id_array,
        )

    @classmethod
    def of_table(cls, table: EventTable) -> EventBatch:
        """Build from the table of an atomic batch (`activedb.streams.AtomicBatch.table`).

        Rows without a type or a time are not events and are left out.

        Raises
        ------
        BadEvent
            If the table has no columns ``event_type`` and ``event_time_us``, or the times are not
            integers.
        """
        names = table.column_names
        missing = {"event_type", "event_time_us"} - set(names)
        if missing:
            raise BadEvent(f"a table of events needs the columns {', '.join(sorted(missing))}")
        types = np.array(table.column("event_type").to_pylist(), object)
        us = column_of(table.column("event_time_us"))
        kept = np.array([type_ is not None for type_ in types], bool)
        if us.dtype == object:
            kept &= np.array([value is not None for value in us], bool)
            us = np.array([0 if value is None else value for value in us])
        known, codes = np.unique(types[kept].astype(str), return_inverse=True)
        whole = bool(kept.all())
        params = {
            name.removeprefix(PARAM_PREFIX): column_of(table.column(name))
            for name in names
            if name.startswith(PARAM_PREFIX)
        }
        ids = table.column("event_id").to_pylist() if "event_id" in names else None
        return cls.of_arrays(
            known.tolist(),
            codes.astype(np.int64),
            us if whole else us[kept],
            params if whole else {name: column[kept] for name, column in params.items()},
            None
            if ids is None or not any(ids)
            else [id_ for id_, keep in zip(ids, kept, strict=True) if keep],
        )

    def __len__(self) -> int:
        return len(self.us)


def _numpy(values: Any) -> Column:
    """Convert an Arrow column without NULLs; a single chunk needs permission to be copied."""
    array: Column = np.asarray(
        values.to_numpy(**({} if hasattr(values, "chunks") else {"zero_copy_only": False}))
    )
    return array


def column_of(values: Any) -> Column:
    """Convert any column to an array of int64, float64, bool or objects."""
    if hasattr(values, "to_pylist"):  # an Arrow column, possibly chunked
        has_nulls = getattr(values, "null_count", 1)
        values = values.to_pylist() if has_nulls else _numpy(values)
    if not isinstance(values, np.ndarray):
        objects = np.empty(len(values), object)
        objects[:] = values
        kinds = {type(value) for value in values}
        if kinds == {int} or kinds == {float} or kinds == {bool}:
            with_kind = np.array(values)
            return column_of(with_kind) if with_kind.dtype.kind in "ifb" else objects
        return objects
    if values.ndim != 1:
        raise BadEvent(f"a column is an array of one dimension, not {values.ndim}")
    kind = values.dtype.kind
    if kind == "i" or (kind == "u" and values.dtype.itemsize < 8):
        return np.ascontiguousarray(values, np.int64)
    if kind == "f" and values.dtype.itemsize <= 8:
        return np.ascontiguousarray(values, np.float64)
    if kind in "bO":
        return np.ascontiguousarray(values)
    return column_of(values.tolist())


# -- accepted events in columns, and their outcomes ------------------------------------------------


EXACT_MAX: Final = 2.0**53
"""Bound up to which every integer is exact as a float."""

RAISED: Final = 0xFFFF
"""Outcome of a row whose s-transaction aborted with an exception."""


@dataclass(eq=False, slots=True)
class Rows:
    """Events of one run, with known types and valid keys.

    Attributes
    ----------
    codes, us, arrivals : array of int64, of shape (rows,)
        Per event the index of its type in ``program.types``, its time, and its number among those
        accepted.
    ids : array of str, or None
    params : mapping of str to array
        All columns that were fed.
    columns : list of array
        Columns that the templates take, in the layout's order.
    slots : array of int64, of shape (rows,)
        Start of each row's results.
    outcomes : array of uint16, of shape (rows,)
        0: committed; n: operation n - 1 returned None; `RAISED`: see `special`.
    results : array of float64
        Results of operations, in row order; meaningless for aborted rows.
    special : dict of int to Outcome
        Complete outcomes of the rows that Python ran; errors have no traceback.
    """

    codes: Ints
    us: Ints
    arrivals: Ints
    ids: Column | None
    params: Mapping[str, Column]
    columns: list[Column]
    slots: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    outcomes: Column = field(default_factory=lambda: np.empty(0, np.uint16))
    results: Column = field(default_factory=lambda: np.empty(0, np.float64))
    special: dict[int, Outcome] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.us)

    def at(self, row: int) -> At:
        """Return the place of a row in the serial order."""
        id_ = "" if self.ids is None else str(self.ids[row])
        return At(self.us.item(row), id_, self.arrivals.item(row))

    def params_of(self, row: int) -> dict[str, Any]:
        """Return the parameters of a row as Python objects."""
        return {
            name: column[row] if column.dtype == object else column.item(row)
            for name, column in self.params.items()
        }

    def aborted(self, row: int, outcome: Outcome) -> None:
        """Record the outcome of a row that raised; drop its traceback, which refers to all rows."""
        if outcome.error is not None:
            outcome.error.__traceback__ = None
        self.outcomes[row] = RAISED
        self.special[row] = outcome

    def take(self, chosen: Column) -> Rows:
        """Return the rows selected by index or mask; REQUIRES: not run yet."""
        params = {name: column[chosen] for name, column in self.params.items()}
        return replace(
            self,
            codes=self.codes[chosen],
            us=self.us[chosen],
            arrivals=self.arrivals[chosen],
            ids=None if self.ids is None else self.ids[chosen],
            params=params,
            columns=[column[chosen] for column in self.columns],
        )

    def order(self) -> Ints | None:
        """Return the serial order; None if already in order. O(n log n), or O(n) if in order."""
        us = self.us
        steps = us[1:] - us[:-1]
        if self.ids is None:
            return None if not len(steps) or steps.min() >= 0 else np.argsort(us, kind="stable")
        if not len(steps) or steps.min() > 0:
            return None
        return np.lexsort((self.ids, us))

    @classmethod
    def joined(cls, parts: list[Rows]) -> Rows:
        """Return the rows of several parts, concatenated."""
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for part in parts for name in part.params)
        ids = None
        if any(part.ids is not None for part in parts):
            ids = np.concatenate(
                [np.full(len(p), "", "U1") if p.ids is None else p.ids for p in parts]
            )
        return cls(
            np.concatenate([part.codes for part in parts]),
            np.concatenate([part.us for part in parts]),
            np.concatenate([part.arrivals for part in parts]),
            ids,
            {name: _joined([_of(part, name) for part in parts]) for name in names},
            [_joined(list(columns)) for columns in zip(*(p.columns for p in parts), strict=True)],
        )


def split(parts: list[Rows], punctuation_us: int) -> tuple[list[Rows], list[Rows]]:
    """Split rows into those that a punctuation has passed and those that wait."""
    passed, waiting = [], []
    for rows in parts:
        if rows.us.max() < punctuation_us:
            passed.append(rows)
            continue
        before = rows.us < punctuation_us
        if before.any():
            passed.append(rows.take(before))
            rows = rows.take(~before)
        waiting.append(rows)
    return passed, waiting


def is_exact(column: Column, whole_max: float) -> bool:
    """Return whether all numbers of a column are exact: within `EXACT_MAX`, or `whole_max`."""
    most = whole_max if column.dtype == np.int64 else EXACT_MAX
    return column.dtype == np.bool_ or within(column, most)


@jit
def within(column: Column, most: float) -> bool:
    """Return whether all numbers are within a bound; NaN is not."""
    for value in column:  # noqa: SIM110 - compiled, a loop is faster
        if not -most <= value <= most:
            return False
    return True


def _of(rows: Rows, name: str) -> Column:
    column = rows.params.get(name)
    return np.full(len(rows), None, object) if column is None else column


def _joined(columns: list[Column]) -> Column:
    """Concatenate columns; mixed types become objects, as NumPy would turn integers into floats."""
    if len({column.dtype for column in columns}) > 1:
        columns = [column.astype(object) for column in columns]
    return np.concatenate(columns)
