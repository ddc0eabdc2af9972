"""What is complete of a stream that comes in batches: the newest times, by producer.

Each producer has a mark, its newest time in the batches before. The punctuation is the mark that is
furthest behind, less the stream's delay; a producer that is silent for too long is left out until
it is heard again, and if all are the newest mark counts::

    ann   ─────●──────●────────────●      mark of ann
    bob   ──●──────●                      mark of bob = the punctuation …
    eve   ────●      (silent)             … as eve is silent
                   ▲

A stream that does not say who sends has one producer, which is never silent: then this is the
newest time less the delay.

All of it follows from the batches and from when each was planned, or published, which is kept with
them: a batch that comes again has the same punctuation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from activedb.clock import timedelta_us
from activedb.streams._batch import EventTable
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
    clock_us : int
        That clock. From one batch to the next it goes no further than half of what makes a producer
        silent: if the whole feed pauses, that is held against nobody.
    made_us : int or None
        When the batch was planned, or published; None before the first.
    punctuation_us : int or None
        The batch's: every event before it has been seen. It follows from the batches before.
    """

    marks: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)
    clock_us: int = 0
    made_us: int | None = None
    punctuation_us: int | None = None

    @classmethod
    def restore(cls, stream: Stream, record: Mapping[str, Any] | None) -> Self:
        """What `record` was made of; None: nothing has been taken yet."""
        if record is None:
            return cls(dict.fromkeys(stream.producers, (None, 0)))
        return cls(**record)

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
        punctuation_us = self._reached_us(stream, clock_us)
        marks = dict(self.marks)
        for name, us in newest.items():
            known = [each for each in (us, marks.get(name, (None, 0))[0]) if each is not None]
            marks[name] = (max(known, default=None), clock_us)
        return Marks(marks, clock_us, made_us, punctuation_us)

    def _reached_us(self, stream: Stream, clock_us: int) -> int | None:
        """What is complete at `clock_us`, when no rows have come since."""
        silent_us = stream.silent_after_us
        waited_for = [
            us
            for us, heard_us in self.marks.values()
            if silent_us is None or clock_us - heard_us <= silent_us
        ]
        known = [us for us, _ in self.marks.values() if us is not None]
        # One that is waited for and has no mark was never heard, or nobody believes its times.
        if not known or None in waited_for:
            return self.punctuation_us
        behind_us = min((us for us in waited_for if us is not None), default=max(known))
        reached_us = behind_us - timedelta_us(stream.delay)
        return reached_us if self.punctuation_us is None else max(reached_us, self.punctuation_us)


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
        None: no time of this one can be believed.
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
    rows = rows.filter(pc.is_valid(rows.column("name")))
    newest = rows.group_by("name").aggregate([("us", "max")])
    names, times = newest.column("name").to_pylist(), newest.column("us_max").to_pylist()
    return dict(sorted(zip(names, times, strict=True)))
