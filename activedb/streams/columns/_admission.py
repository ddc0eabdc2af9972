"""Admission of rows to columns, and handling of all other rows.

Unusual rows go through `activedb.streams.of_batch`, as objects; the events that it admits are
merged back into the columns. So the classification as refused, late or admitted is the same as
without columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from activedb.clock import in_microseconds
from activedb.columns import PARAM_PREFIX, EventColumn, EventTable
from activedb.columns.events import (
    Column,
    ColumnEvents,
    Ints,
    Mask,
    Values,
    codes_of,
    texts_of,
    values_of,
)
from activedb.errors import BadEvent
from activedb.events import Occurrence, encode_params
from activedb.store.sql import is_storable
from activedb.streams._admission import Admission
from activedb.streams._arrivals import Arrivals, AtomicBatch
from activedb.streams._declaration import StreamDeclaration

__all__ = ["ColumnAdmission", "ColumnArrivals", "WaitingColumns"]


@dataclass(slots=True)
class _SortedRun:
    """Sorted run of events; the first `gone` of them no longer wait."""

    events: ColumnEvents
    gone: int = 0

    def __len__(self) -> int:
        return len(self.events) - self.gone

    def passed(self, punctuation_us: int) -> int:
        """Return the number of leading events that a punctuation has passed, including `gone`."""
        return max(self.gone, int(np.searchsorted(self.events.us, punctuation_us)))

    def left(self) -> ColumnEvents:
        """Return the waiting events, copied so that the rest of the run can be freed."""
        return self.events.take(np.arange(self.gone, len(self.events)))


class WaitingColumns:
    """Buffer of waiting events in O(log n) runs, each sorted by time.

    The events a punctuation has passed are a prefix of each run. The remaining events are not
    touched until half of their run is gone: O(log² n) besides the events passed. Each run is more
    than twice as long as the next, so an event is merged O(log n) times.
    """

    def __init__(self) -> None:
        self._runs: list[_SortedRun] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, events: ColumnEvents) -> None:
        """Add events that are in order."""
        if not len(events):
            return
        new = _SortedRun(events).left()
        while self._runs and len(self._runs[-1]) <= 2 * len(new):
            new = ColumnEvents.joined([self._runs.pop().left(), new]).in_order()
        self._runs.append(_SortedRun(new))

    def passed(self, punctuation_us: int | None) -> ColumnEvents:
        """Return the events that a punctuation has passed, in order; none for None (unknown)."""
        if punctuation_us is None:
            return ColumnEvents.none()
        parts = [run.events.take(slice(run.gone, run.passed(punctuation_us))) for run in self._runs]
        return ColumnEvents.joined(parts).in_order()

    def first(self, punctuation_us: int, count_max: int) -> tuple[ColumnEvents, int | None]:
        """Return the first events that a punctuation has passed, about `count_max`, in order.

        Events of equal time stay together. As in `EventTimeBuffer.first`, also return a punctuation
        that has passed exactly these events, None if they are all.
        """
        passed = self.passed(punctuation_us)
        if len(passed) <= count_max:
            return passed, None
        count = int(np.searchsorted(passed.us, passed.us[count_max - 1], side="right"))
        if count == len(passed):
            return passed, None
        return passed.take(slice(count)), passed.us.item(count)

    def remove_passed(self, punctuation_us: int | None) -> None:
        """Drop the events that a punctuation has passed, after they have been processed durably."""
        if punctuation_us is None:
            return
        for run in self._runs:
            run.gone = run.passed(punctuation_us)
            if len(run) <= run.gone:
                run.events, run.gone = run.left(), 0
        self._runs = [run for run in self._runs if len(run)]

    def newest_us(self) -> int | None:
        """Return the time of the latest event; None if there is none. O(runs)."""
        return max((run.events.us.item(-1) for run in self._runs), default=None)

    def restore(self, parts: Iterable[ColumnEvents], punctuation_us: int | None) -> None:
        """Restore from stored events, of which the punctuation has passed some."""
        self._runs = []
        for part in parts:
            passed = 0 if punctuation_us is None else _SortedRun(part).passed(punctuation_us)
            self.add(part.take(slice(passed, None)))


_FIRST_US = in_microseconds(datetime.min.replace(tzinfo=UTC))
_LAST_US = in_microseconds(datetime.max.replace(tzinfo=UTC))
_KEEPABLE = {type(None), bool, int, float, str, date, Decimal, bytes, UUID}
"""Types whose every value the database can store."""


@dataclass(slots=True)
class ColumnArrivals(Arrivals):
    """Classified rows of one batch.

    Attributes
    ----------
    events : ColumnEvents
        Admitted events in time order; `admitted` is empty.
    """

    events: ColumnEvents = field(default_factory=ColumnEvents.none)

    @property
    def newest_us(self) -> int | None:
        return int(self.events.us[-1]) if len(self.events) else None


class ColumnAdmission(Admission):
    """Classifier of rows as admitted, late or refused, with the admitted ones in columns."""

    def none(self) -> ColumnArrivals:
        """Return no arrivals."""
        return ColumnArrivals()

    def of_batch(self, batch: AtomicBatch) -> ColumnArrivals:
        """Classify the rows of a batch.

        Raises
        ------
        BadEvent
            If the times of some are intervals; no event has been taken then.
        """
        table = batch.table
        when = values_of(table.column("event_time_us"))
        if batch.has_intervals or when.array.dtype != np.int64:  # no int64 times
            return self._in_columns(super().of_batch(batch))
        events, good = _read(
            self._state.stream, batch, when, self._state.punctuation_us, self._future.latest_us()
        )
        others = Arrivals()
        if not good.all():
            rows = np.flatnonzero(~good)
            others = _placed(super().of_batch(replace(batch, table=_Some(table, rows))), rows)
            good[[arrival.position for arrival in others.admitted]] = True
            events = events.take(good)
        return ColumnArrivals([], others.late, others.refused, events.in_order())

    def of_events(self, events: Iterable[Occurrence], batch_id: int) -> ColumnArrivals:
        """Classify events from Python.

        Raises
        ------
        BadEvent
            If the times of some are intervals; no event has been taken then.
        """
        return self._in_columns(super().of_events(events, batch_id))

    def _in_columns(self, arrivals: Arrivals) -> ColumnArrivals:
        return ColumnArrivals(
            [],
            arrivals.late,
            arrivals.refused,
            ColumnEvents.of_exact(self._state.stream.name, arrivals.admitted).in_order(),
        )


def _read(
    stream: StreamDeclaration,
    batch: AtomicBatch,
    when: Values,
    punctuation_us: int | None,
    latest_us: int | None,
) -> tuple[ColumnEvents, Mask]:
    """Read all rows; also return which are certainly valid, not late and not from the future."""
    table: Any = batch.table
    count = table.num_rows
    types = tuple(stream.types)
    codes = codes_of(table.column("event_type"), types)
    us: Ints = when.array
    first_us = _FIRST_US if punctuation_us is None else max(_FIRST_US, punctuation_us)
    last_us = _LAST_US if latest_us is None else min(_LAST_US, latest_us)
    good: Mask = (codes >= 0) & (us >= first_us) & (us <= last_us)
    ids = texts_of(table, "event_id")
    params = {name: values_of(table.column(PARAM_PREFIX + name)) for name in batch.param_names}
    if when.missing is not None:
        good &= when.missing == 0
    if ids is not None:
        good &= ~_unkeepable_ids(ids)
    for name, values in params.items():
        if values.array.dtype == object:
            good &= ~_unkeepable(name, values)
    for code, required in enumerate(stream.types.values()):
        for name in required:
            if name not in params:
                good &= codes != code
            elif (missing := params[name].missing) is not None:
                good &= (codes != code) | (missing == 0)
    events = ColumnEvents(
        types,
        codes,
        us,
        np.full(count, batch.batch_id, np.int64),
        np.arange(count),
        params,
        ids,
    )
    return events, good


def _unkeepable_ids(ids: Column) -> Mask:
    found: list[Any] = ids.tolist()
    if all(type(id_) is str for id_ in found) and is_storable("".join(found)):
        return np.zeros(len(found), np.bool_)
    return np.array(
        [id_ is not None and (type(id_) is not str or not is_storable(id_)) for id_ in found],
        np.bool_,
    )


def _unkeepable(name: str, values: Values) -> Mask:
    """Return for each value whether a database cannot store it."""
    found: list[Any] = values.array.tolist()
    bad = np.zeros(len(found), np.bool_)
    if set(map(type, found)) <= _KEEPABLE:
        return bad
    for row, value in enumerate(found):
        try:
            encode_params({name: value})
        except BadEvent:
            bad[row] = True
    return bad


def _placed(arrivals: Arrivals, rows: Ints) -> Arrivals:
    """Translate positions within the selected rows to positions within the batch."""
    places = rows.tolist()
    return Arrivals(
        [replace(arrival, position=places[arrival.position]) for arrival in arrivals.admitted],
        [replace(arrival, position=places[arrival.position]) for arrival in arrivals.late],
        [replace(refused, position=places[refused.position]) for refused in arrivals.refused],
    )


class _Some:
    """View of selected rows of an event table."""

    def __init__(self, table: EventTable, rows: Ints):
        self._table = table
        self._rows = rows

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return self._table.column_names

    def column(self, name: str) -> EventColumn:
        """Return the column called ``name``."""
        column: Any = self._table.column(name)
        if hasattr(column, "take"):
            return _Listed(column.take(self._rows).to_pylist())
        values = column.to_pylist()
        return _Listed([values[row] for row in self._rows.tolist()])


class _Listed:
    """Column backed by a list."""

    def __init__(self, values: list[Any]):
        self._values = values

    def to_pylist(self) -> list[Any]:
        """Return the values."""
        return self._values
