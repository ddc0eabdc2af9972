"""Events of a stream in columns, with their arrival positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from activedb.clock import moment_of
from activedb.columns._arrival import Arrival, EventTable
from activedb.errors import BadEvent
from activedb.events import Occurrence, decode_timestamp, encode_timestamp

__all__ = [
    "ABSENT",
    "NULL",
    "THERE",
    "Column",
    "ColumnEvents",
    "Ints",
    "Mask",
    "Values",
    "arrow",
    "codes_of",
    "numpy_of",
    "texts_of",
    "values_of",
]


Column: TypeAlias = npt.NDArray[Any]
Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

THERE: Final = 0
NULL: Final = 1
ABSENT: Final = 2
"""State of a parameter in an event: it has a value, is NULL, or is absent."""

_KINDS = {int: np.int64, float: np.float64, bool: np.bool_}


@dataclass(frozen=True, eq=False, slots=True)
class Values:
    """Values of one parameter over many events.

    Attributes
    ----------
    array : array of int64, float64, bool or objects, of shape (events,)
        Arbitrary at rows without a value.
    missing : array of uint8 of shape (events,), or None
        `THERE`, `NULL` or `ABSENT` per event; None: every event has a value.
    """

    array: Column
    missing: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self.array)

    @classmethod
    def of(cls, values: Sequence[Any], missing: npt.NDArray[np.uint8] | None = None) -> Values:
        """Build from Python objects; None becomes NULL unless `missing` says `ABSENT`."""
        nulls = np.fromiter((value is None for value in values), np.bool_, len(values))
        if nulls.any():
            missing = np.zeros(len(values), np.uint8) if missing is None else missing
            missing = np.where(missing == THERE, np.where(nulls, NULL, THERE), missing)
            missing = missing.astype(np.uint8)
        kinds = set(map(type, values)) - {type(None)}
        if len(kinds) == 1 and (kind := _KINDS.get(next(iter(kinds)))) is not None:
            filled = [0 if value is None else value for value in values] if nulls.any() else values
            try:
                return cls(np.array(filled, kind), missing)
            except OverflowError:  # an integer beyond 64 bits
                pass
        return cls(objects(values), missing)

    @classmethod
    def absent(cls, count: int) -> Values:
        """Build for events that lack the parameter."""
        return cls(np.zeros(count, np.int64), np.full(count, ABSENT, np.uint8))

    def take(self, chosen: Column | slice) -> Values:
        """Return the values of the events selected by index or mask."""
        missing = None if self.missing is None else self.missing[chosen]
        return Values(self.array[chosen], missing)

    def objects(self) -> list[Any]:
        """Return the values as Python objects, None where there is no value."""
        values: list[Any] = self.array.tolist()
        if self.missing is not None:
            for row in np.flatnonzero(self.missing).tolist():
                values[row] = None
        return values

    @classmethod
    def joined(cls, parts: Sequence[Values]) -> Values:
        """Return the values of several parts, concatenated."""
        if len(parts) == 1:
            return parts[0]
        there = [part for part in parts if part.missing is None or not part.missing.all()]
        kinds = {part.array.dtype for part in there}
        if len(kinds) > 1:
            arrays = [objects(part.objects()) for part in parts]
        else:
            kind = kinds.pop() if kinds else np.dtype(np.int64)
            arrays = [
                part.array if part.array.dtype == kind else np.zeros(len(part), kind)
                for part in parts
            ]
        missing = None
        if any(part.missing is not None for part in parts):
            missing = np.concatenate(
                [
                    np.zeros(len(part), np.uint8) if part.missing is None else part.missing
                    for part in parts
                ]
            )
        return cls(np.concatenate(arrays), missing)


def objects(values: Iterable[Any]) -> Column:
    """Return an array of objects, without inspecting them."""
    listed = list(values)
    made = np.empty(len(listed), object)
    made[:] = listed
    return made


@dataclass(frozen=True, eq=False, slots=True)
class ColumnEvents:
    """Events with exact timestamps, one row each.

    Attributes
    ----------
    types : tuple of str
    codes : array of int64, of shape (events,)
        Per event the index of its type in `types`.
    us : array of int64
        Microseconds since the epoch.
    batch_ids, positions : arrays of int64
        Arrival position of each event; see `Arrival`.
    params : mapping of str to Values
    ids : array of objects (str or None), or None
        None: no event has an id.
    stamps : array of objects, or None
        Encoded timestamps of events whose timestamp was not given as a datetime in UTC.
    """

    types: tuple[str, ...]
    codes: Ints
    us: Ints
    batch_ids: Ints
    positions: Ints
    params: Mapping[str, Values]
    ids: Column | None = None
    stamps: Column | None = None

    def __len__(self) -> int:
        return len(self.us)

    @classmethod
    def none(cls) -> ColumnEvents:
        """Return columns without events."""
        nothing = np.empty(0, np.int64)
        return cls((), nothing, nothing, nothing, nothing, {})

    @classmethod
    def of_arrivals(cls, arrivals: Sequence[Arrival]) -> tuple[ColumnEvents, list[Arrival]]:
        """Build from arrivals; also return the rest, whose times are intervals."""
        rest = [arrival for arrival in arrivals if not _is_exact(arrival.occurrence)]
        taken = [a for a in arrivals if _is_exact(a.occurrence)] if rest else list(arrivals)
        if not taken:
            return cls.none(), rest
        found = [arrival.occurrence for arrival in taken]
        types = tuple(dict.fromkeys(o.name for o in found))
        places = {name: place for place, name in enumerate(types)}
        names = dict.fromkeys(name for o in found for name in o.params)
        stamps = [
            None
            if isinstance(o.timestamp, datetime) and o.timestamp.tzinfo is UTC
            else encode_timestamp(o.timestamp)
            for o in found
        ]
        made = cls(
            types,
            np.array([places[o.name] for o in found], np.int64),
            np.array([o.us for o in found], np.int64),
            np.array([a.batch_id for a in taken], np.int64),
            np.array([a.position for a in taken], np.int64),
            {name: _values(name, found) for name in names},
            objects(o.id for o in found) if any(o.id is not None for o in found) else None,
            objects(stamps) if any(stamp is not None for stamp in stamps) else None,
        )
        return made, rest

    @classmethod
    def of_exact(cls, stream: str, arrivals: Sequence[Arrival]) -> ColumnEvents:
        """Build from arrivals of a stream whose program runs in columns.

        Raises
        ------
        BadEvent
            If the times of some are intervals.
        """
        events, rest = cls.of_arrivals(arrivals)
        if rest:
            raise BadEvent(
                f"stream {stream}: the timestamp of event {rest[0].occurrence!r} is an interval, "
                "and its program runs in columns, which takes exact ones: use another "
                'scheduler="…", or give it an exact timestamp'
            )
        return events

    def take(self, chosen: Column | slice) -> ColumnEvents:
        """Return the events selected by index or mask."""
        return replace(
            self,
            codes=self.codes[chosen],
            us=self.us[chosen],
            batch_ids=self.batch_ids[chosen],
            positions=self.positions[chosen],
            params={name: values.take(chosen) for name, values in self.params.items()},
            ids=None if self.ids is None else self.ids[chosen],
            stamps=None if self.stamps is None else self.stamps[chosen],
        )

    def before(self, us: int | None) -> ColumnEvents:
        """Return the events before a time; none for None. REQUIRES: event-time order."""
        return self.take(slice(0 if us is None else int(self.us.searchsorted(us))))

    def since(self, us: int | None) -> ColumnEvents:
        """Return the events at or after a time; all for None. REQUIRES: event-time order."""
        return self.take(slice(0 if us is None else int(self.us.searchsorted(us)), None))

    def places(self) -> list[tuple[int, int, int]]:
        """Return the time and the arrival position of each event."""
        return list(
            zip(self.us.tolist(), self.batch_ids.tolist(), self.positions.tolist(), strict=True)
        )

    def are_at(self, places: Sequence[Ints]) -> Mask:
        """Return for each event whether it is at one of some places (batch and position)."""
        wanted = {tuple(place) for some in places for place in some.tolist()}
        if not wanted:
            return np.zeros(len(self), np.bool_)
        own = zip(self.batch_ids.tolist(), self.positions.tolist(), strict=True)
        return np.fromiter((place in wanted for place in own), np.bool_, len(self))

    def in_order(self) -> ColumnEvents:
        """Return the events in time order, with ties broken as by `Arrival.order`; O(n log n).

        Complexity: O(n) if they are already in order and no two share a time.
        """
        steps = self.us[1:] - self.us[:-1]
        if not len(steps) or steps.min() > 0:
            return self
        order = np.argsort(self.us, kind="stable")
        sorted_us = self.us[order]
        same = sorted_us[1:] == sorted_us[:-1]
        if same.any():
            tied = np.zeros(len(self), np.bool_)
            tied[order[1:][same]] = True
            tied[order[:-1][same]] = True
            order = np.lexsort((self.positions, self.batch_ids, self._ranks(tied), self.us))
        return self.take(order)

    @classmethod
    def joined(cls, parts: Sequence[ColumnEvents]) -> ColumnEvents:
        """Return the events of several parts, concatenated."""
        parts = [part for part in parts if len(part)]
        if len(parts) <= 1:
            return parts[0] if parts else cls.none()
        types = tuple(dict.fromkeys(name for part in parts for name in part.types))
        names = dict.fromkeys(name for part in parts for name in part.params)
        codes = [
            part.codes
            if part.types == types[: len(part.types)]
            else np.array([types.index(name) for name in part.types], np.int64)[part.codes]
            for part in parts
        ]
        return cls(
            types,
            np.concatenate(codes),
            np.concatenate([part.us for part in parts]),
            np.concatenate([part.batch_ids for part in parts]),
            np.concatenate([part.positions for part in parts]),
            {
                name: Values.joined(
                    [part.params.get(name) or Values.absent(len(part)) for part in parts]
                )
                for name in names
            },
            _joined([part.ids for part in parts], parts),
            _joined([part.stamps for part in parts], parts),
        )

    def arrivals(self, rows: Column | None = None) -> list[Arrival]:
        """Return all events, or the chosen rows, as arrivals."""
        some = self if rows is None else self.take(rows)
        found = zip(
            some.codes.tolist(),
            some.us.tolist(),
            [None] * len(some) if some.ids is None else some.ids.tolist(),
            [None] * len(some) if some.stamps is None else some.stamps.tolist(),
            some.batch_ids.tolist(),
            some.positions.tolist(),
            some.records(),
            strict=True,
        )
        return [
            Arrival(
                Occurrence(
                    self.types[code],
                    moment_of(us) if stamp is None else decode_timestamp(stamp),
                    params,
                    id=id_,
                ),
                batch_id,
                position,
            )
            for code, us, id_, stamp, batch_id, position, params in found
        ]

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield each event's parameters as Python objects: None for NULL, absent ones left out."""
        names = list(self.params)
        columns = [values.objects() for values in self.params.values()]
        if any(v.missing is not None and (v.missing == ABSENT).any() for v in self.params.values()):
            absent = [
                [False] * len(self) if v.missing is None else (v.missing == ABSENT).tolist()
                for v in self.params.values()
            ]
            for values, gone in zip(
                _rows(columns, len(self)), _rows(absent, len(self)), strict=True
            ):
                pairs = zip(names, values, gone, strict=True)
                yield {name: value for name, value, is_gone in pairs if not is_gone}
            return
        for values in _rows(columns, len(self)):
            yield dict(zip(names, values, strict=True))

    def _ranks(self, tied: Mask) -> Ints:
        """Return ranks by id for the tied events; 0 for the others."""
        ranks = np.zeros(len(self), np.int64)
        if self.ids is not None:
            ids = [id_ or "" for id_ in self.ids[tied].tolist()]
            places = {id_: place for place, id_ in enumerate(sorted(set(ids)))}
            ranks[tied] = [places[id_] for id_ in ids]
        return ranks


def _is_exact(o: Occurrence) -> bool:
    return o.stamp is None and o.low_us == o.us == o.high_us


def _values(name: str, found: Sequence[Occurrence]) -> Values:
    absent = np.fromiter((name not in o.params for o in found), np.bool_, len(found))
    values = [o.params.get(name) for o in found]
    missing = np.where(absent, ABSENT, THERE).astype(np.uint8) if absent.any() else None
    return Values.of(values, missing)


def _rows(columns: Sequence[list[Any]], count: int) -> Iterator[tuple[Any, ...]]:
    return zip(*columns, strict=True) if columns else iter([()] * count)


def _joined(columns: Sequence[Column | None], parts: Sequence[ColumnEvents]) -> Column | None:
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.full(len(part), None, object) if column is None else column
            for column, part in zip(columns, parts, strict=True)
        ]
    )


# -- columns of a batch's table as arrays; those of Arrow without an object per value --------------


def values_of(column: Any) -> Values:
    """Return a numeric column as a numeric array, any other column as objects."""
    if not _is_arrow(column):
        return Values.of(column.to_pylist())
    pa = arrow()
    kind = column.type
    is_integer = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_text or is_integer or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return Values.of(column.to_pylist())
    missing = None
    if column.null_count:
        missing = np.where(numpy_of(column.is_null()), NULL, THERE).astype(np.uint8)
    if is_text:
        return Values(numpy_of(column), missing)
    if column.null_count:
        column = column.fill_null(False if pa.types.is_boolean(kind) else 0)
    array = numpy_of(column)
    if is_integer:
        return Values(array.astype(np.int64, copy=False), missing)
    if pa.types.is_floating(kind):
        return Values(array.astype(np.float64, copy=False), missing)
    return Values(array.astype(np.bool_, copy=False), missing)


def codes_of(column: Any, types: Sequence[str]) -> Ints:
    """Return per row the index of its text in `types`; -1 if it is not among them."""
    if _is_arrow(column):
        pa = arrow()
        kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
        if any(is_kind(column.type) for is_kind in kinds):
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            found = pa.compute.index_in(column, value_set=pa.array(types, column.type))
            return numpy_of(found.fill_null(-1)).astype(np.int64)
    places = {name: place for place, name in enumerate(types)}
    return np.array([places.get(text, -1) for text in column.to_pylist()], np.int64)


def texts_of(table: EventTable, name: str) -> Column | None:
    """Return a column of texts as objects; None if all are NULL."""
    column: Any = table.column(name)
    if _is_arrow(column) and column.null_count == len(column):
        return None
    texts = column.to_pylist()
    return objects(texts) if any(text is not None for text in texts) else None


def arrow() -> Any:
    """Return pyarrow untyped; it is installed whenever its columns occur."""
    import pyarrow.compute

    return pyarrow


def _is_arrow(column: Any) -> bool:
    return hasattr(column, "null_count") and hasattr(column, "type")


def numpy_of(column: Any) -> Column:
    """Convert an Arrow column without NULLs to a writable array, as the kernels require."""
    given = (
        {} if hasattr(column, "chunks") else {"zero_copy_only": False}
    )  # only arrays take this argument
    return np.require(column.to_numpy(**given), requirements="W")
