"""One micro-batch of a stream on its way into the store: a columnar table and a punctuation."""

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
    """How far the source of a stream has been read, as the database knows it.

    Attributes
    ----------
    query_id, batch_id : str, int
        The last micro-batch.
    known : list of mapping or None
        `AtomicBatch.position` of each, oldest first.
    """

    query_id: str
    batch_id: int
    known: list[Mapping[str, Any] | None]


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
        latest (if rows of it are `matched` elsewhere, with the one before); once the batch is
        processed, a row of a later one with a smaller ``event_time_us`` (``event_low_us``, if there
        is one) is late. Never decreases from batch to batch. None: nothing is known yet.
    matched : Matched or None
        What elsewhere became of rows that are not in the table; None: all rows are.
    position : mapping or None
        Where the source stands behind the batch, to be kept with its effects; values that JSON has:

        ==================  =======================================================================
        ``source``          its ``kind``, and what tells this batch from another one: the names of
                            its files, or the source's own offset behind it
        ``punctuation_us``  of this batch
        ``marks``           what is known behind it of when events are complete, for `Marks.restore`
        ``elsewhere``       true if Spark keeps more of the rows, as for ``matched``
        ==================  =======================================================================

        None: nothing is known, and nothing can be gone on with from there.
    continues : str or None
        The query that fed the stream before, if this one begins behind what that one has done. The
        batches go on from the last of that one, in their ids, too.
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
