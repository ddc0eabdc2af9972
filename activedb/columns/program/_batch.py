"""Events in columns as fed by the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from activedb.columns._event_table import PARAM_PREFIX, EventTable
from activedb.errors import BadEvent

__all__ = ["Column", "EventBatch", "Ints", "column_of"]

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
