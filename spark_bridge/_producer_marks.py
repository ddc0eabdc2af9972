"""The punctuation of a stream whose rows come from several producers.

Spark's watermark is one for all rows: the producer that is ahead moves it, and all that the others
still send is late. Here each producer has a mark, its newest time; the punctuation is the least of
them, less the delay. A producer that is silent for too long is left out until it is heard again; if
all are, the newest mark counts::

    ann   ─────●──────●────────────●      mark of ann
    bob   ──●──────●                      mark of bob = the punctuation …
    eve   ────●      (silent)             … as eve is silent
                   ▲

What is known after each micro-batch is in ``<checkpoint>/producers/<batch id>``. It follows from
the rows of the batches and from when Spark planned them, which Spark keeps, so a batch that is run
again has the same punctuation.

Silence is counted on a clock that goes on from batch to batch, in one step by no more than half of
what makes a producer silent: if the whole feed pauses, that is held against nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute

from activedb.clock import timedelta_us
from activedb.errors import FeedFailed

if TYPE_CHECKING:
    from activedb.streams import Stream

pa: Any = pyarrow
pc: Any = pyarrow.compute


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known after a batch.

    `marks` has, per producer, its newest time and when it was heard, on the clock of the feed.
    """

    marks: Mapping[str, tuple[int | None, int]]
    punctuation_us: int | None
    clock_us: int
    planned_ms: int


class ProducerMarks:
    """Marks of producers, kept beside Spark's checkpoint.

    Parameters
    ----------
    stream : Stream
        It says who sends a row.
    checkpoint : Path
        The query's checkpoint folder.
    future_max_s : float
        A time further ahead than this of when its batch was planned is no mark.
    """

    def __init__(self, stream: Stream, checkpoint: Path, future_max_s: float) -> None:
        self._stream = stream
        self._folder = checkpoint / "producers"
        self._future_max_s = future_max_s

    def take(self, batch_id: int, table: Any, planned_ms: int) -> int | None:
        """Take note of a micro-batch; O(rows), in columns.

        Parameters
        ----------
        batch_id : int
        table : pyarrow.Table
            Its event columns.
        planned_ms : int
            When Spark planned it.

        Returns
        -------
        int or None
            Its punctuation, in microseconds since 1970 UTC: of what came before it.

        Raises
        ------
        FeedFailed
            If what is known of the producers is lost.
        """
        known = self._read(batch_id, planned_ms)
        silent_us = self._stream.silent_after_us
        step_us = max(0, planned_ms - known.planned_ms) * 1000
        clock_us = known.clock_us + (step_us if silent_us is None else min(step_us, silent_us // 2))
        punctuation_us = self._punctuation_us(known, clock_us)
        marks = dict(known.marks)
        for name, newest_us in self._newest(table, planned_ms):
            before_us, _ = marks.get(name, (None, 0))
            found = [us for us in (newest_us, before_us) if us is not None]
            marks[name] = (max(found, default=None), clock_us)
        self._write(batch_id, _Known(marks, punctuation_us, clock_us, planned_ms))
        return punctuation_us

    def _punctuation_us(self, known: _Known, clock_us: int) -> int | None:
        silent_us = self._stream.silent_after_us
        waited_for = [
            mark_us
            for mark_us, heard_us in known.marks.values()
            if silent_us is None or clock_us - heard_us <= silent_us
        ]
        marks = [mark_us for mark_us, _ in known.marks.values() if mark_us is not None]
        # One that is waited for and has no mark was never heard, or nobody believes its times.
        if not marks or None in waited_for:
            return known.punctuation_us
        reached = min((us for us in waited_for if us is not None), default=max(marks))
        reached -= timedelta_us(self._stream.delay)
        return reached if known.punctuation_us is None else max(reached, known.punctuation_us)

    def _newest(self, table: Any, planned_ms: int) -> list[tuple[str, int | None]]:
        """Return who sent rows, and the newest time of each, None if none can be believed."""
        time = "event_time_us" if self._stream.accuracy is None else "event_low_us"
        rows = pa.table({"name": table.column("event_producer"), "us": table.column(time)})
        rows = rows.filter(pc.is_valid(rows.column("name")))
        last_us = min(planned_ms * 1000 + self._future_max_s * 1e6, 2.0**62)
        believed = pc.less_equal(rows.column("us"), int(last_us))
        us = pc.if_else(believed, rows.column("us"), pa.scalar(None, pa.int64()))
        newest = rows.set_column(1, "us", us).group_by("name").aggregate([("us", "max")])
        pairs = zip(
            newest.column("name").to_pylist(), newest.column("us_max").to_pylist(), strict=True
        )
        return sorted(pairs)

    def _read(self, batch_id: int, planned_ms: int) -> _Known:
        """Return what was known before a batch."""
        if batch_id == 0:
            return _Known(dict.fromkeys(self._stream.producers, (None, 0)), None, 0, planned_ms)
        try:
            text = (self._folder / str(batch_id - 1)).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FeedFailed(
                f"what was known of its producers before batch {batch_id} is not in "
                f"{self._folder}: restore the checkpoint, or begin anew with another one and an "
                "empty database"
            ) from None
        return _Known(**json.loads(text))

    def _write(self, batch_id: int, known: _Known) -> None:
        self._folder.mkdir(exist_ok=True)
        new = self._folder / f"{batch_id}.new"
        new.write_text(json.dumps(asdict(known)), encoding="utf-8")
        new.replace(self._folder / str(batch_id))
        with suppress(FileNotFoundError):  # the one before may be needed: this one may come again
            (self._folder / str(batch_id - 2)).unlink()
