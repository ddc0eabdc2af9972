"""Micro-batch of a stream on its way into the store: a columnar table and a punctuation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from activedb.columns import PARAM_PREFIX, EventTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from activedb.streams._matched import Matched

__all__ = ["AtomicBatch", "Positions"]


@dataclass(frozen=True, slots=True)
class Positions:
    """Progress of reading a stream's source, as recorded in the database.

    Attributes
    ----------
    query_id, batch_id : str, int
        The last micro-batch.
    known : list of mapping or None
        `AtomicBatch.position` of each batch, oldest first.
    """

    query_id: str
    batch_id: int
    known: list[Mapping[str, Any] | None]


@dataclass(frozen=True, eq=False)
class AtomicBatch:
    """Rows of one micro-batch, to be processed completely or not at all.

    Attributes
    ----------
    stream : str
        Name of the stream.
    query_id, batch_id : str, int
        Spark's ids of the query and the micro-batch. A batch that Spark submits again after a
        failure has the same ids, the same rows in the same order, and the same punctuation.
    table : EventTable
        One row per input row, in input order, with the columns

        ==================  ======  ==============================================================
        ``event_type``      string  NULL or undeclared: the row is not a valid event
        ``event_time_us``   int64   microseconds since 1970 UTC, within the years 1 to 9999;
                                    NULL: the time cannot be parsed
        ``event_low_us``    int64   only if the stream declares an accuracy: start of the time's
                                    interval; NULL if the time is NULL or the accuracy unknown
        ``event_high_us``   int64   with it: end of the interval
        ``event_id``        string  NULL allowed
        ``event_producer``  string  only if the stream declares producers; NULL allowed
        ``p_<name>``        any     one column per parameter, in declared order
        ``raw``             string  JSON text of the whole input row (for CSV and JSON lines that
                                    do not parse, the line itself) if the row is not a valid event:
                                    time or accuracy NULL, type not declared, or a required
                                    parameter NULL. NULL in every other row
        ==================  ======  ==============================================================
    punctuation_us : int or None
        Microseconds since 1970 UTC. Every event before it has been seen by the end of this batch
        (if rows of it are `matched` elsewhere, by the end of the previous one). Once the batch is
        processed, a row of a later batch with a smaller ``event_time_us`` (or ``event_low_us``, if
        that column exists) is late. Never decreases from batch to batch. None: unknown so far.
    matched : Matched or None
        Matching results for rows that are matched elsewhere and not in the table; None: all rows
        are in it.
    position : mapping or None
        Position of the source after the batch, stored with its effects, as JSON values:

        ==================  =======================================================================
        ``source``          its ``kind``, and the batch's identity: the names of its files, or the
                            source's own offset after the batch
        ``punctuation_us``  of this batch
        ``marks``           progress of event completeness after it, for `Marks.restore`
        ``elsewhere``       true if Spark retains more of the rows, as for ``matched``
        ==================  =======================================================================

        None: unknown; processing cannot resume from there.
    continues : str or None
        Query that fed the stream before, if this query resumes after the work of that one. Batch
        ids continue from its last batch.
    """

    stream: str
    query_id: str
    batch_id: int
    table: EventTable
    punctuation_us: int | None
    matched: Matched | None = None
    position: Mapping[str, Any] | None = None
    continues: str | None = None

    @property
    def has_intervals(self) -> bool:
        """True if the times of the rows are intervals."""
        return "event_low_us" in self.table.column_names

    @property
    def param_names(self) -> tuple[str, ...]:
        """Names of the parameters, in declared order, without their prefix."""
        return tuple(
            name.removeprefix(PARAM_PREFIX)
            for name in self.table.column_names
            if name.startswith(PARAM_PREFIX)
        )
