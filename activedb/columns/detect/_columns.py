"""Events in columns: types, times, ids and parameters of many events at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute

from activedb.clock import moment_of
from activedb.columns._arrival import PARAM_PREFIX, EventTable
from activedb.errors import BadEvent
from activedb.events import Occurrence

__all__ = ["ABSENT", "EventColumns", "Ints", "pa", "pc"]


pa: Any = pyarrow
pc: Any = pyarrow.compute


# -- events in columns: types, times, ids and parameters of many events at once --------------------


Ints = npt.NDArray[np.int64]


class _Absent:
    """Marker of a parameter that an event does not have, as opposed to NULL."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()


@dataclass(frozen=True, eq=False, slots=True)
class EventColumns:
    """Events in columns, one row each, in the order of their arrival.

    Attributes
    ----------
    keys : tuple of (str, str)
        Event keys that occur: ``("event", name)``.
    codes : array of int64, of shape (rows,)
        Index into `keys` of each event.
    us : array of int64, of shape (rows,)
        Exact times in microseconds since the epoch.
    ids : pyarrow array of strings or None
        NULL: the event has no id. None: no event has one.
    params : mapping of str to array
        Parameters by name, each a NumPy or pyarrow array of `rows` values. In an array of objects,
        `ABSENT` marks a parameter that the event does not have.
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

    @classmethod
    def of_arrays(
        cls,
        types: Sequence[str],
        codes: npt.ArrayLike,
        us: npt.ArrayLike,
        params: Mapping[str, Any] | None = None,
        ids: Any = None,
    ) -> EventColumns:
        """Build from NumPy arrays.

        Parameters
        ----------
        types : sequence of str
            Names of the event types.
        codes, us : arrays of integers, of one length
            Per event: the index of its type in `types`, and its time in microseconds.
        params : mapping of str to array, optional
        ids : array of str, optional

        Raises
        ------
        BadEvent
            If lengths differ, a code is not the index of a type, or times are not integers.
        """
        us_array, code_array = np.asarray(us), np.asarray(codes)
        for name, array in (("us", us_array), ("codes", code_array)):
            if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
                raise BadEvent(f"{name} must be one array of integers, not {array!r}")
        made = dict(params or {})
        for name, column in {"codes": code_array, **made}.items():
            if len(column) != len(us_array):
                raise BadEvent(
                    f"the column {name!r} has {len(column)} rows, the times have {len(us_array)}"
                )
        if code_array.size and not 0 <= code_array.min() <= code_array.max() < len(types):
            raise BadEvent(f"codes must be from 0 to {len(types) - 1}: there are so many types")
        return cls(
            tuple(("event", name) for name in types),
            code_array.astype(np.int64, copy=False),
            us_array.astype(np.int64, copy=False),
            None if ids is None else pa.array(ids, pa.string()),
            made,
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
            rows = rows.filter(pc.and_(pc.is_valid(heads[0]), pc.is_valid(heads[1])))
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
            pa.array(ids, pa.string()) if any(id_ is not None for id_ in ids) else None,
            {name: _objects([o.params.get(name, ABSENT) for o in events]) for name in names},
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
        ids = pc.fill_null(self.ids, "")
        keys = [("us", "ascending"), ("id", "ascending")]
        order = pc.sort_indices(pa.table({"us": us, "id": ids}), sort_keys=keys)
        found: Ints = order.to_numpy().astype(np.int64)
        return found

    def take(self, rows: Ints) -> EventColumns:
        """Return the events of the given rows."""
        return EventColumns(
            self.keys,
            self.codes[rows],
            self.us[rows],
            None if self.ids is None else self.ids.take(pa.array(rows)),
            {
                name: column[rows]
                if isinstance(column, np.ndarray)
                else column.take(pa.array(rows))
                for name, column in self.params.items()
            },
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
                if (value := values[place]) is not ABSENT
            }
            when = moment_of(us)
            made.append(Occurrence(self.keys[code][1], when, params, id=ids[place]))
        return made


def _whole(column: Any) -> Any:
    """Return a chunked array as one contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return column


def _arrow(values: list[Any]) -> Any:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise BadEvent("a column of a table of events has values of several types") from None


def _objects(values: list[Any]) -> npt.NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array
