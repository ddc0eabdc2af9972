"""Punctuations of a stream fed in batches, derived from the newest time per producer.

Each producer has a mark, its newest time so far. The punctuation is the lowest mark, less the
stream's delay. A producer that is silent for too long is ignored until its next row; if all are
silent, the highest mark counts::

    ann   ─────●──────●────────────●      mark of ann
    bob   ──●──────●                      mark of bob = the punctuation …
    eve   ────●      (silent)             … as eve is silent
                   ▲

A stream that does not name producers has a single one, which is never silent: the punctuation is
then the newest time less the delay.

The punctuation of a batch counts the batch's own rows, so events that they make complete are
processed with it. Its rows are late by the punctuation of the previous batch, as the rows within a
batch are unordered. Punctuations are whole milliseconds, rounded down, and none is before 1970.
Spark's watermarks follow the same rules, so a stream matched on executors has the same
punctuations.

All of this is a function of the batches and of the times at which they were planned or published,
which are stored with them: a replayed batch has the same punctuation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from activedb.columns import EventTable
from activedb.streams._declaration import StreamDeclaration

__all__ = ["Marks", "newest_times"]

_ANONYMOUS = ""  # the producer of a stream without named producers


@dataclass(frozen=True, slots=True)
class Marks:
    """Progress of a stream's producers after a batch.

    Attributes
    ----------
    marks : mapping of str to (int or None, int)
        Per producer: its newest time, and the time it was last heard, both in microseconds. The
        latter is on a clock that continues from batch to batch.
    awaited : mapping of str to int
        Declared producers that were never heard, each with the time since when it is awaited.
    clock_us : int
        Current time of that clock. Between two batches it advances by at most half of the stream's
        `silent_after`, so a pause of the whole feed makes no producer silent.
    made_us : int or None
        Time when the batch was planned, or published; None before the first batch.
    punctuation_us : int or None
        Punctuation of the batch: every event before it has been seen by the end of the batch.
    """

    marks: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    awaited: Mapping[str, int] = field(default_factory=dict)
    clock_us: int = 0
    made_us: int | None = None
    punctuation_us: int | None = None

    @classmethod
    def restore(cls, stream: StreamDeclaration, record: Mapping[str, Any] | None) -> Self:
        """Restore from `record`; None: no batch has been taken yet.

        The stream's declared producers may have changed since, or have been removed.
        """
        known = cls() if record is None else cls(**record)
        marks = _as_declared(stream, known)
        awaited = {
            name: known.awaited.get(name, known.clock_us)
            for name in stream.expected_producers
            if name not in marks
        }
        return replace(known, marks=marks, awaited=awaited)

    def record(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict; `restore` is the inverse."""
        return asdict(self)

    def after(
        self, stream: StreamDeclaration, newest: Mapping[str, int | None], made_us: int
    ) -> Marks:
        """Return the marks after one more batch; O(producers).

        Parameters
        ----------
        newest : mapping of str to int or None
            Result of `newest_times`.
        made_us : int
            Time when the batch was planned, or published.
        """
        silent_us = stream.silent_after_us
        step_us = 0 if self.made_us is None else max(0, made_us - self.made_us)
        clock_us = self.clock_us + (step_us if silent_us is None else min(step_us, silent_us // 2))
        marks = dict(self.marks)
        for name, us in newest.items():
            known = [each for each in (us, marks.get(name, (None, 0))[0]) if each is not None]
            marks[name] = (max(known, default=None), clock_us)
        awaited = {name: us for name, us in self.awaited.items() if name not in marks}
        waited_for = [*marks.values(), *((None, since_us) for since_us in awaited.values())]
        reached_us = _reached_us(stream, waited_for, clock_us)
        known = [us for us in (self.punctuation_us, reached_us) if us is not None]
        return Marks(marks, awaited, clock_us, made_us, max(known, default=None))


def _as_declared(stream: StreamDeclaration, known: Marks) -> dict[str, tuple[int | None, int]]:
    """Return the marks of the producers of the stream as it is declared now."""
    if stream.producer is None:
        times = [us for us, _ in known.marks.values() if us is not None]
        return {_ANONYMOUS: (max(times), known.clock_us)} if times else {}
    return {name: mark for name, mark in known.marks.items() if name != _ANONYMOUS}


def _reached_us(
    stream: StreamDeclaration, marks: Sequence[tuple[int | None, int]], clock_us: int
) -> int | None:
    """Return the punctuation by the marks alone; None if unknown."""
    silent_us = stream.silent_after_us
    waited_for = [
        us for us, heard_us in marks if silent_us is None or clock_us - heard_us <= silent_us
    ]
    known = [us for us, _ in marks if us is not None]
    # An awaited producer without a mark was never heard, or none of its times is credible.
    if not known or None in waited_for:
        return None
    behind_us = min((us for us in waited_for if us is not None), default=max(known))
    reached_ms = behind_us // 1000 + -stream.delay // timedelta(milliseconds=1)
    return reached_ms * 1000 if reached_ms > 0 else None


def newest_times(
    stream: StreamDeclaration, table: EventTable, latest_us: int | None
) -> dict[str, int | None]:
    """Return the newest time of each producer with rows in a table; O(rows), in columns.

    Parameters
    ----------
    table : pyarrow.Table
        Event columns. The lower end of an interval counts.
    latest_us : int or None
        Latest credible time; later ones are ignored. None: all times are credible.

    Returns
    -------
    dict of str to int or None
        None: no time of the producer is credible. Rows with an empty or NULL name don't count.
    """
    import pyarrow
    import pyarrow.compute

    pa: Any = pyarrow
    pc: Any = pyarrow.compute
    us: Any = table.column("event_time_us" if stream.accuracy is None else "event_low_us")
    if latest_us is not None:
        us = pc.if_else(pc.less_equal(us, latest_us), us, pa.scalar(None, pa.int64()))
    if stream.producer is None:
        newest_us = pc.max(us).as_py()
        return {} if newest_us is None else {_ANONYMOUS: newest_us}
    rows = pa.table({"name": table.column("event_producer"), "us": us})
    rows = rows.filter(pc.not_equal(rows.column("name"), _ANONYMOUS))  # this drops NULL, too
    newest = rows.group_by("name").aggregate([("us", "max")])
    names, times = newest.column("name").to_pylist(), newest.column("us_max").to_pylist()
    return dict(sorted(zip(names, times, strict=True)))
