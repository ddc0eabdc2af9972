"""The punctuations of a feed, from what `activedb.streams.Marks` knows of its rows.

Spark's own watermark would not do: it is one for all producers, so the one that is ahead makes late
what the others still send; and a batch's does not count the rows of the batch, so that each event
would wait for the batch after its own.

What is known after each micro-batch is in ``<checkpoint>/marks/<batch id>``. It follows from the
rows of the batches and from when Spark planned them, which Spark keeps, so a batch that is run
again has the same punctuation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from activedb.errors import FeedFailed
from activedb.streams import Marks, newest_times

if TYPE_CHECKING:
    from activedb.streams import Stream

_NAME = "marks"  # the folder
_US_MAX = 2.0**62  # a time beyond all, of the type of the column


class FeedMarks:
    """Marks of a stream, kept beside Spark's checkpoint.

    Parameters
    ----------
    stream : Stream
    checkpoint : Path
        The query's checkpoint folder.
    future_max_s : float
        A time further ahead than this of when its batch was planned is no mark.
    before : mapping, optional
        What was known before the query's first batch, as `Marks.record` tells it.
    """

    def __init__(
        self,
        stream: Stream,
        checkpoint: Path,
        future_max_s: float,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self._before = before
        self._stream = stream
        self._folder = checkpoint / _NAME
        self._future_max_s = future_max_s

    def take(self, batch_id: int, table: Any, planned_ms: int) -> Marks:
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
        Marks
            What is known behind it.

        Raises
        ------
        FeedFailed
            If what is known of the batches before is lost or damaged.
        """
        latest_us = int(min(planned_ms * 1000 + self._future_max_s * 1e6, _US_MAX))
        newest = newest_times(self._stream, table, latest_us)
        known = self._read(batch_id).after(self._stream, newest, planned_ms * 1000)
        self._write(batch_id, known)
        return known

    def _read(self, batch_id: int) -> Marks:
        """Return what was known before a batch."""
        if batch_id == 0:
            return Marks.restore(self._stream, self._before)
        try:
            text = (self._folder / str(batch_id - 1)).read_text(encoding="utf-8")
            return Marks.restore(self._stream, {**json.loads(text)})
        except (FileNotFoundError, ValueError, TypeError):
            raise FeedFailed(
                f"stream {self._stream.name!r}: what was known before batch {batch_id} of when its "
                f"events are complete is lost or damaged in {self._folder}: restore the checkpoint "
                "or, with an empty one, go on behind the last batch of the database (activedb run "
                "--resume)"
            ) from None

    def _write(self, batch_id: int, known: Marks) -> None:
        self._folder.mkdir(exist_ok=True)
        new = self._folder / f"{batch_id}.new"
        new.write_text(json.dumps(known.record()), encoding="utf-8")
        new.replace(self._folder / str(batch_id))
        with suppress(FileNotFoundError):  # the one before may be needed: this one may come again
            (self._folder / str(batch_id - 2)).unlink()
