"""Events in columns as a caller gives them: types, times, ids and parameters of many events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from activedb.clock import moment_of
from activedb.columns._arrival import PARAM_PREFIX, EventTable
from activedb.columns.events._events import Column, Ints, arrow, numpy_of, objects
from activedb.errors import BadEvent
from activedb.events import Occurrence

__all__ = ["NO_VALUE", "EventColumns", "column_of"]


class _NoValue:
    """Marker of a parameter that an event does not have, as opposed to NULL."""

    def __repr__(self) -> str:
        return "absent"


NO_VALUE: Final = _NoValue()


@dataclass(frozen=True, eq=False, slots=True)
class EventColumns:
    """Events in columns, one row each, in the order of their arrival.

    Attributes
    ----------
    keys : tuple of (str, str)
        Event keys that occur: ``("event", name)``. Equal keys are made one, and `codes` follow.
    codes : array of int64, of shape (rows,)
        Index into `keys` of each event.
    us : array of int64, of shape (rows,)
        Exact times in microseconds since the epoch.
    ids : pyarrow array of strings or None
        NULL: the event has no id. None: no event has one.
    params : mapping of str to array
        Parameters by name, each a NumPy or pyarrow array of `rows` values. In an array of objects,
        `NO_VALUE` marks a parameter that the event does not have.
    occurrences : sequence of Occurrence or None
        The events themselves, if the columns were built from occurrences.
    places : array of int64, of shape (rows, 2), or None
        Two numbers per event by which the caller identifies it; see `Matches.places`.
    """

    keys: tuple[tuple[str, str], ...]
    codes: Ints
    us: Ints
    ids: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    occurrences: Sequence[Occurrence] | None = None
    places: Ints | None = None

    def __post_init__(self) -> None:
        # Arrow's dictionaries may repeat a value; readers look a key up and find its one code.
        places = {key: place for place, key in enumerate(dict.fromkeys(self.keys))}
        if len(places) < len(self.keys):
            codes = np.array([places[key] for key in self.keys], np.int64)
            object.__setattr__(self, "codes", codes[self.codes])
            object.__setattr__(self, "keys", tuple(places))

    @property
    def types(self) -> tuple[str, ...]:
        """Names of the event types, in the order of `codes`."""
        return tuple([name for _, name in self.keys])

    @classmethod
    def of_arrays(
        cls,
        types: Sequence[str],
        codes: npt.ArrayLike,
        us: npt.ArrayLike,
        params: Mapping[str, Any] | None = None,
        ids: Any = None,
    ) -> EventColumns:
        """Build from arrays or other sequences; arrays are not copied.

        Parameters
        ----------
        types : sequence of str
            Names of the event types.
        codes : array of integers, or sequence of str
            Type of each event: its index in `types`, or its name.
        us : array of integers
            Times in microseconds since the epoch.
        params : mapping of str to array, optional
        ids : sequence of str or None, optional

        Raises
        ------
        BadEvent
            If lengths differ, a code is not the index of a type, times are not integers, ids are
            not texts, or a column is a single value.
        """
        given: Any = codes
        if _count("codes", given) and isinstance(given[0], str):
            numbers = {name: number for number, name in enumerate(types)}
            given = [numbers.get(name, -1) for name in given]
        us_array, code_array = np.asarray(us), np.asarray(given)
        for name, array in (("us", us_array), ("codes", code_array)):
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                raise BadEvent(f"{name} must be one array of integers, not {array!r}")
        rest = {} if ids is None else {"ids": ids}
        for name, column in {"codes": code_array, **(params or {}), **rest}.items():
            if _count(name, column) != len(us_array):
                raise BadEvent(
                    f"the column {name!r} has {len(column)} rows, the times have {len(us_array)}"
                )
        if code_array.size and not 0 <= code_array.min() <= code_array.max() < len(types):
            raise BadEvent(f"codes must be from 0 to {len(types) - 1}: there are so many types")
        return cls(
            tuple(("event", name) for name in types),
            code_array.astype(np.int64, copy=False),
            us_array.astype(np.int64, copy=False),
            None if ids is None else _ids(ids),
            {name: _given(column) for name, column in (params or {}).items()},
        )

    @classmethod
    def of_table(cls, table: EventTable) -> EventColumns:
        """Build from the table of an atomic batch (`activedb.streams.AtomicBatch.table`).

        Rows without a type or a time are not events and are left out.

        Raises
        ------
        BadEvent
            If the table has no columns ``event_type`` and ``event_time_us``, or the times are not
            integers.
        """
        pa = arrow()
        rows: Any = table
        if not isinstance(rows, pa.Table):
            names = table.column_names
            rows = pa.table({name: _arrow(table.column(name).to_pylist()) for name in names})
        missing = {"event_type", "event_time_us"} - set(rows.column_names)
        if missing:
            raise BadEvent(f"a table of events needs the columns {', '.join(sorted(missing))}")
        heads = (rows.column("event_type"), rows.column("event_time_us"))
        if not pa.types.is_integer(heads[1].type):
            raise BadEvent(f"event_time_us must hold integers, microseconds, not {heads[1].type}")
        if any(head.null_count for head in heads):
            rows = rows.filter(pa.compute.and_(*map(pa.compute.is_valid, heads)))
        types = _whole(rows.column("event_type"))
        if not pa.types.is_dictionary(types.type):
            types = types.dictionary_encode()
        names = rows.column_names
        ids = _whole(rows.column("event_id")) if "event_id" in names else None
        return cls(
            tuple(("event", name) for name in types.dictionary.to_pylist()),
            types.indices.to_numpy(zero_copy_only=False).astype(np.int64),
            _whole(rows.column("event_time_us").cast(pa.int64())).to_numpy(),
            None if ids is None or ids.null_count == len(ids) else ids,
            {
                name.removeprefix(PARAM_PREFIX): _whole(rows.column(name))
                for name in names
                if name.startswith(PARAM_PREFIX)
            },
        )

    @classmethod
    def of_occurrences(cls, occurrences: Iterable[Occurrence]) -> EventColumns:
        """Build from event occurrences; O(events · parameters), in Python.

        Raises
        ------
        BadEvent
            If the time of an event is an interval.
        """
        events = tuple(occurrences)
        codes: dict[tuple[str, str], int] = {}
        for o in events:
            if o.low_us != o.high_us:
                raise BadEvent(
                    f"{o!r} has no exact time, which columns are made of: feed a Detector"
                )
            codes.setdefault(o.key, len(codes))
        names = dict.fromkeys(name for o in events for name in o.params)
        ids = [o.id for o in events]
        return cls(
            tuple(codes),
            np.array([codes[o.key] for o in events], np.int64),
            np.array([o.us for o in events], np.int64),
            arrow().array(ids, arrow().string()) if any(i is not None for i in ids) else None,
            {name: objects([o.params.get(name, NO_VALUE) for o in events]) for name in names},
            events,
        )

    def __len__(self) -> int:
        return len(self.us)

    def order(self) -> Ints | None:
        """Return the row order by time, id and row; None if already in order; O(n log n)."""
        us = self.us
        if len(us) < 2:
            return None
        steps = np.diff(us)
        rising = bool((steps >= 0).all())
        if rising and (self.ids is None or bool((steps > 0).all())):
            return None
        if self.ids is None:
            return np.argsort(us, kind="stable")
        pa = arrow()
        ids = pa.compute.fill_null(self.ids, "")
        keys = [("us", "ascending"), ("id", "ascending")]
        order = pa.compute.sort_indices(pa.table({"us": us, "id": ids}), sort_keys=keys)
        found: Ints = order.to_numpy().astype(np.int64)
        return found

    def take(self, rows: Ints) -> EventColumns:
        """Return the events of the given rows."""
        return EventColumns(
            self.keys,
            self.codes[rows],
            self.us[rows],
            None if self.ids is None else _taken(self.ids, rows),
            {name: _taken(column, rows) for name, column in self.params.items()},
            None if self.occurrences is None else [self.occurrences[row] for row in rows],
            None if self.places is None else self.places[rows],
        )

    def to_occurrences(self) -> list[Occurrence]:
        """Return the events as occurrences; O(rows · parameters), in Python.

        Each event has the parameters of all columns except absent ones; NULL becomes None.
        """
        if self.occurrences is not None:
            return list(self.occurrences)
        ids = [None] * len(self) if self.ids is None else self.ids.to_pylist()
        columns = {
            name: column.tolist() if isinstance(column, np.ndarray) else column.to_pylist()
            for name, column in self.params.items()
        }
        made = []
        for place, (code, us) in enumerate(zip(self.codes.tolist(), self.us.tolist(), strict=True)):
            params = {
                name: value
                for name, values in columns.items()
                if (value := values[place]) is not NO_VALUE
            }
            when = moment_of(us)
            made.append(Occurrence(self.keys[code][1], when, params, id=ids[place]))
        return made


def _count(name: str, column: Any) -> int:
    """Return how many values a column has."""
    try:
        return len(column)
    except TypeError:  # a number, or an array of no dimension
        raise BadEvent(
            f"the column {name!r} must hold one value for each event, not be {column!r}"
        ) from None


def _ids(ids: Any) -> Any:
    pa = arrow()
    try:
        return pa.array(_whole(ids), pa.string())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        raise BadEvent(f"ids must be texts or None, not {ids!r}") from None


def _given(column: Any) -> Any:
    """Return a column of one dimension as one array."""
    if isinstance(column, np.ndarray):
        if column.ndim != 1:
            raise BadEvent(f"a column is an array of one dimension, not {column.ndim}")
        return column
    return _whole(column) if hasattr(column, "to_pylist") else column_of(column)


def _taken(column: Any, rows: Ints) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else column.take(arrow().array(rows))


def _whole(column: Any) -> Any:
    """Return a chunked array as one contiguous array."""
    if hasattr(column, "combine_chunks"):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def _arrow(values: list[Any]) -> Any:
    pa = arrow()
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise BadEvent("a column of a table of events has values of several types") from None


# -- columns of one type ---------------------------------------------------------------------------


def column_of(values: Any) -> Column:
    """Convert any column to an array of int64, float64, bool or objects.

    Among objects, None stands for NULL, and `NO_VALUE` for a parameter that an event does not have.
    """
    if hasattr(values, "to_pylist"):  # an Arrow column, possibly chunked
        has_nulls = getattr(values, "null_count", 1)
        values = values.to_pylist() if has_nulls else numpy_of(values)
    if not isinstance(values, np.ndarray):
        found = objects(values)
        kinds = {type(value) for value in values}
        if kinds == {int} or kinds == {float} or kinds == {bool}:
            with_kind = np.array(values)
            return column_of(with_kind) if with_kind.dtype.kind in "ifb" else found
        return found
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
