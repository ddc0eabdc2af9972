"""What is complete of a stream that comes in batches: the newest times, by producer.

Each producer has a mark, its newest time so far. The punctuation is the mark that is furthest
behind, less the stream's delay; a producer that is silent for too long is left out until it is
heard again, and if all are the newest mark counts::

    ann   ─────●──────●────────────●      mark of ann
    bob   ──●──────●                      mark of bob = the punctuation …
    eve   ────●      (silent)             … as eve is silent
                   ▲

A stream that does not say who sends has one producer, which is never silent: then this is the
newest time less the delay.

A batch's punctuation counts the batch's own rows: what they complete is processed with it. Its rows
are late by the punctuation of the batch before, as those of one batch have no order among them.
Punctuations are whole milliseconds, rounded down, and there is none before 1970: as Spark's
watermarks are, so that a stream matched on executors has the same.

All of it follows from the batches and from when each was planned, or published, which is kept with
them: a batch that comes again has the same punctuation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, Self

from activedb.columns import EventTable
from activedb.streams._declaration import Stream

__all__ = ["Marks", "newest_times"]

_EVERYBODY = ""  # the producer of a stream that names none


@dataclass(frozen=True, slots=True)
class Marks:
    """What is known after a batch.

    Attributes
    ----------
    marks : mapping of str to (int or None, int)
        Per producer its newest time and when it was heard, both in microseconds, the latter on a
        clock that goes on from batch to batch.
    awaited : mapping of str to int
        Producers that are declared and were never heard, and since when they are waited for.
    clock_us : int
        That clock. From one batch to the next it goes no further than half of what makes a producer
        silent: if the whole feed pauses, that is held against nobody.
    made_us : int or None
        When the batch was planned, or published; None before the first.
    punctuation_us : int or None
        The batch's: every event before it has been seen, with the batch at the latest.
    """

    marks: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    awaited: Mapping[str, int] = field(default_factory=dict)
    clock_us: int = 0
    made_us: int | None = None
    punctuation_us: int | None = None

    @classmethod
    def restore(cls, stream: Stream, record: Mapping[str, Any] | None) -> Self:
        """What `record` was made of; None: nothing has been taken yet.

        The stream may have been declared with other producers then, or with none.
        """
        known = cls() if record is None else cls(**record)
        marks = _as_declared(stream, known)
        awaited = {
            name: known.awaited.get(name, known.clock_us)
            for name in stream.producers
            if name not in marks
        }
        return replace(known, marks=marks, awaited=awaited)

    def record(self) -> dict[str, Any]:
        """As JSON has it; `restore` undoes it."""
        return asdict(self)

    def after(self, stream: Stream, newest: Mapping[str, int | None], made_us: int) -> Marks:
        """What is known after one more batch; O(producers).

        Parameters
        ----------
        newest : mapping of str to int or None
            See `newest_times`.
        made_us : int
            When it was planned, or published.
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


def _as_declared(stream: Stream, known: Marks) -> dict[str, tuple[int | None, int]]:
    """The marks of those who send as the stream is declared now."""
    if stream.producer is None:
        times = [us for us, _ in known.marks.values() if us is not None]
        return {_EVERYBODY: (max(times), known.clock_us)} if times else {}
    return {name: mark for name, mark in known.marks.items() if name != _EVERYBODY}


def _reached_us(
    stream: Stream, marks: Sequence[tuple[int | None, int]], clock_us: int
) -> int | None:
    """What is complete by the marks alone; None: nothing is known."""
    silent_us = stream.silent_after_us
    waited_for = [
        us for us, heard_us in marks if silent_us is None or clock_us - heard_us <= silent_us
    ]
    known = [us for us, _ in marks if us is not None]
    # One that is waited for and has no mark was never heard, or nobody believes its times.
    if not known or None in waited_for:
        return None
    behind_us = min((us for us in waited_for if us is not None), default=max(known))
    reached_ms = behind_us // 1000 + -stream.delay // timedelta(milliseconds=1)
    return reached_ms * 1000 if reached_ms > 0 else None


def newest_times(stream: Stream, table: EventTable, latest_us: int | None) -> dict[str, int | None]:
    """Who has sent rows, and the newest time of each; O(rows), in columns.

    Parameters
    ----------
    table : pyarrow.Table
        Event columns. Of an interval its lower end counts.
    latest_us : int or None
        A time beyond it is not believed; None: all are.

    Returns
    -------
    dict of str to int or None
        None: no time of this one can be believed. An empty name is nobody's, as NULL is.
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
        return {} if newest_us is None else {_EVERYBODY: newest_us}
    rows = pa.table({"name": table.column("event_producer"), "us": us})
    rows = rows.filter(pc.not_equal(rows.column("name"), _EVERYBODY))  # nor is NULL a producer
    newest = rows.group_by("name").aggregate([("us", "max")])
    names, times = newest.column("name").to_pylist(), newest.column("us_max").to_pylist()
    return dict(sorted(zip(names, times, strict=True)))
