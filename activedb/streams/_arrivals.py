"""Atomic batches, and the classification of their rows: admitted, late, or not an event."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from activedb.clock import moment_of
from activedb.columns import PARAM_PREFIX, Arrival, EventTable
from activedb.errors import BadEvent
from activedb.events import AccuracyInterval, Occurrence, Timestamp, encode_params
from activedb.spelling import clipped
from activedb.store.sql import is_storable
from activedb.streams._declaration import StreamDeclaration

if TYPE_CHECKING:
    from activedb.streams._matched import Matched

__all__ = [
    "Arrivals",
    "AtomicBatch",
    "Positions",
    "Refused",
    "fed_occurrences",
    "keepable_params",
    "of_batch",
    "of_occurrences",
]


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


_SHOWN_MAX = 60  # characters of an invalid input shown in an error
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Refused:
    """Row that is not a valid event, with the reason."""

    position: int
    payload: Mapping[str, Any]
    error: BadEvent


@dataclass(slots=True)
class Arrivals:
    """Classified rows of one batch."""

    admitted: list[Arrival] = field(default_factory=list)
    late: list[Arrival] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)

    def add(self, arrival: Arrival, punctuation_us: int | None) -> None:
        """Add an event; it is late if it is before the punctuation."""
        is_late = punctuation_us is not None and arrival.occurrence.low_us < punctuation_us
        (self.late if is_late else self.admitted).append(arrival)

    @property
    def newest_us(self) -> int | None:
        """Latest end of the admitted events; None if there are none."""
        return max([arrival.occurrence.high_us for arrival in self.admitted], default=None)


def fed_occurrences(stream: StreamDeclaration, events: object) -> list[Occurrence]:
    """Return the events that a caller feeds, after checking that they are events.

    Raises
    ------
    BadEvent
        If `events` is not iterable, or an item is not an occurrence.
    """
    takes = (
        f"stream {stream.name} is fed a list of events, such as "
        f"[occurrence({next(iter(stream.types))!r}, timestamp=2)]"
    )
    if not isinstance(events, Iterable):
        raise BadEvent(f"{takes}; it was given {_named(events)}")
    found = list(events)
    for position, o in enumerate(found):
        if not isinstance(o, Occurrence):
            raise BadEvent(f"{takes}; item {position} of what it was given is {_named(o)}")
    return found


def of_occurrences(
    stream: StreamDeclaration,
    occurrences: Iterable[Occurrence],
    batch_id: int,
    punctuation_us: int | None,
    check: Callable[[Occurrence], None] = lambda o: None,
) -> Arrivals:
    """Classify events fed from Python; those before `punctuation_us` are late. O(events).

    `check` is as for `of_batch`.
    """
    arrivals = Arrivals()
    for position, o in enumerate(occurrences):
        problem = _problem(stream, o.name, o.params)
        try:
            if problem is not None:
                raise BadEvent(problem)
            encoded = keepable_params(o)
            check(o)
        except BadEvent as error:
            payload = {"type": o.name, "timestamp": str(o.timestamp), **_shown(o.params)}
            arrivals.refused.append(Refused(position, payload, error))
        else:
            arrivals.add(Arrival(o, batch_id, position, encoded), punctuation_us)
    return arrivals


def of_batch(
    stream: StreamDeclaration,
    batch: AtomicBatch,
    punctuation_us: int | None,
    check: Callable[[Occurrence], None] = lambda o: None,
) -> Arrivals:
    """Classify the rows of `batch`; those before `punctuation_us` are late. O(rows).

    Parameters
    ----------
    check : callable
        Called with each valid event; raises `BadEvent` to refuse it.
    """
    arrivals = Arrivals()
    table = batch.table
    names = batch.param_names
    columns = [table.column(PARAM_PREFIX + name).to_pylist() for name in names]
    rows: Iterable[tuple[Any, ...]] = (
        zip(*columns, strict=True) if columns else ((),) * table.num_rows
    )
    nothing = (None,) * table.num_rows
    ends = (
        [table.column(name).to_pylist() for name in ("event_low_us", "event_high_us")]
        if batch.has_intervals
        else (nothing, nothing)
    )
    heads = zip(
        *(
            table.column(name).to_pylist()
            for name in ("event_type", "event_time_us", "event_id", "raw")
        ),
        *ends,
        rows,
        strict=True,
    )
    for position, (kind, us, event_id, raw, low_us, high_us, values) in enumerate(heads):
        params = dict(zip(names, values, strict=True))
        shown: dict[str, Any] = {}
        problem = _problem(stream, kind, params, raw)
        if problem is None and us is None:
            why = _because([stream.timestamp], raw)
            problem = f"the timestamp is missing or cannot be parsed{why}"
        if problem is None and batch.has_intervals and (low_us is None or high_us is None):
            accuracy = stream.accuracy
            why = _because(accuracy if isinstance(accuracy, tuple) else [str(accuracy)], raw)
            problem = f"the accuracy of the timestamp is missing or cannot be parsed{why}"
        if problem is None:
            try:
                when = _time(us, low_us, high_us)
                o = Occurrence(kind, when, params, id=event_id)
                encoded = keepable_params(o)
                check(o)
                arrival = Arrival(o, batch.batch_id, position, encoded)
                arrivals.add(arrival, punctuation_us)
                continue
            except BadEvent as error:
                problem = str(error)
                shown = {"timestamp": str(moment_of(us))}
        payload = {"raw": raw} if raw is not None else {"type": kind, **shown, **_shown(params)}
        arrivals.refused.append(Refused(position, payload, BadEvent(problem)))
    return arrivals


def _time(us: int, low_us: int | None, high_us: int | None) -> Timestamp:
    if low_us is None or high_us is None:
        return moment_of(us)
    return AccuracyInterval(us, low_us, high_us)


def _problem(
    stream: StreamDeclaration, kind: str | None, params: Mapping[str, Any], raw: str | None = None
) -> str | None:
    required = stream.types.get(kind) if kind is not None else None
    if required is None:
        return f"unknown event type {kind!r}; stream {stream.name} has {', '.join(stream.types)}"
    missing: list[str] = []
    for name in required:  # not a comprehension, which would cost a call per event
        if params.get(name) is None:
            missing.append(name)
    if missing:
        expressions = stream.params or {}
        why = _because([expressions[name] for name in missing if name in expressions], raw)
        return f"event {kind} lacks {', '.join(missing)}{why}"
    return None


def _because(expressions: Iterable[str], raw: str | None) -> str:
    """Explain which expressions gave NULL, and for which column values of the raw row."""
    texts = ", ".join(dict.fromkeys(expressions))
    if raw is None or not texts:
        return ""
    try:
        row = json.loads(raw)
    except ValueError:  # the raw text of a row that could not be parsed
        row = None
    words = set(_WORD.findall(texts.casefold()))
    columns = row.items() if isinstance(row, dict) else ()
    given = [
        f"{name} = {_short(value)}"
        for name, value in columns
        if name.casefold() in words and value is not None
    ]
    return f": {texts} is NULL" + (f" for {', '.join(given)}" if given else "")


def keepable_params(o: Occurrence) -> dict[str, Any]:
    """Return the parameters of an event as they are stored, if the event can be stored.

    Raises
    ------
    BadEvent
        If it cannot be stored.
    """
    encoded = encode_params(o.params)
    if o.id is not None and not is_storable(o.id):
        raise BadEvent(f"the id {o.id!r} has characters that a database cannot keep")
    return encoded


def _named(given: object) -> str:
    return f"{_short(given)}, of type {type(given).__name__}"


def _short(given: object) -> str:
    return clipped(repr(given), _SHOWN_MAX)


def _shown(params: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | str) else repr(value)
        for name, value in params.items()
    }
