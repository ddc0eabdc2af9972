"""One micro-batch of a stream on its way into the store: a columnar table and a punctuation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

PARAM_PREFIX = "p_"


class EventColumn(Protocol):
    """A column of an :class:`EventTable`; ``pyarrow.ChunkedArray`` is one."""

    def to_pylist(self) -> list[Any]:
        """Return the values as Python objects, None for NULL."""


class EventTable(Protocol):
    """The rows of an atomic batch by column; ``pyarrow.Table`` is one."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""

    def column(self, name: str) -> EventColumn:
        """Return the column called ``name``."""


@dataclass(frozen=True, eq=False)
class AtomicBatch:
    """The rows of one micro-batch, to be processed completely or not at all.

    Attributes
    ----------
    stream : str
        Name of the stream.
    query_id, batch_id : str, int
        What Spark calls the query and the micro-batch. A batch that Spark hands over again after
        a failure has the same two, the same rows in the same order, and the same punctuation.
    table : EventTable
        One row per input row, in input order, with the columns

        ==================  ======  ==============================================================
        ``event_type``      string  NULL or undeclared: no event can be made of the row
        ``event_time_us``   int64   microseconds since 1970 UTC, within the years 1 to 9999;
                                    NULL: the time cannot be understood
        ``event_low_us``    int64   only if the stream declares an accuracy: where the time's
                                    interval begins; NULL where the time is, or nothing is known
        ``event_high_us``   int64   with it: where the interval ends
        ``event_id``        string  NULL allowed
        ``event_producer``  string  only if the stream declares who sends; NULL allowed
        ``p_<name>``        any     one column per parameter, in declared order
        ``raw``             string  JSON text of the whole input row (for CSV and JSON lines that
                                    do not parse, the line itself) where no event can be made of
                                    the row: time or accuracy NULL, type not declared, or a
                                    parameter that the type needs is NULL. NULL in every other row
        ==================  ======  ==============================================================
    punctuation_us : int or None
        Microseconds since 1970 UTC. Every event before it has been seen, with this batch at the
        latest; once the batch is processed, a row of a later one with a smaller
        ``event_time_us`` (``event_low_us``, if there is one) is late. Never decreases from batch
        to batch. None: nothing is known yet.
    """

    stream: str
    query_id: str
    batch_id: int
    table: EventTable
    punctuation_us: int | None

    @property
    def has_intervals(self) -> bool:
        """Whether the times of the rows are intervals."""
        return "event_low_us" in self.table.column_names

    @property
    def param_names(self) -> tuple[str, ...]:
        """Names of the parameters, in declared order, without their prefix."""
        return tuple(
            name.removeprefix(PARAM_PREFIX)
            for name in self.table.column_names
            if name.startswith(PARAM_PREFIX)
        )
