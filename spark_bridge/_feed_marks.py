"""Punctuations of a feed, computed from its rows by `activedb.streams.Marks`.

Spark's own watermark would not do: there is one for all producers, so the fastest producer would
make the events of the others late; and a batch's watermark does not count the rows of the batch, so
that each event would wait for the batch after its own.

The marks after each micro-batch are in ``<checkpoint>/marks/<batch id>``. They follow from the rows
of the batches and from the times at which Spark planned them, which Spark keeps, so a batch that is
run again has the same punctuation.
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
    from activedb.streams import StreamDeclaration

_NAME = "marks"  # the folder
_US_MAX = 2.0**62  # a time beyond all others, in the type of the column


class FeedMarks:
    """Marks of a stream, kept beside Spark's checkpoint.

    Parameters
    ----------
    stream : StreamDeclaration
    checkpoint : Path
        The query's checkpoint folder.
    future_max_s : float
        A time further ahead than this of the planning of its batch is ignored.
    before : mapping, optional
        The marks before the query's first batch, in the form of `Marks.record`.
    """

    def __init__(
        self,
        stream: StreamDeclaration,
        checkpoint: Path,
        future_max_s: float,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self._before = before
        self._stream = stream
        self._folder = checkpoint / _NAME
        self._future_max_s = future_max_s

    def take(self, batch_id: int, table: Any, planned_ms: int) -> Marks:
        """Record a micro-batch; O(rows), in columns.

        Parameters
        ----------
        batch_id : int
        table : pyarrow.Table
            Its event columns.
        planned_ms : int
            Time at which Spark planned it.

        Returns
        -------
        Marks
            The marks behind it.

        Raises
        ------
        FeedFailed
            If the marks of the batches before are lost or damaged.
        """
        latest_us = int(min(planned_ms * 1000 + self._future_max_s * 1e6, _US_MAX))
        newest = newest_times(self._stream, table, latest_us)
        known = self._read(batch_id).after(self._stream, newest, planned_ms * 1000)
        self._write(batch_id, known)
        return known

    def _read(self, batch_id: int) -> Marks:
        """Return the marks before a batch."""
        if batch_id == 0:
            return Marks.restore(self._stream, self._before)
        try:
            text = (self._folder / str(batch_id - 1)).read_text(encoding="utf-8")
            return Marks.restore(self._stream, {**json.loads(text)})
        except (FileNotFoundError, ValueError, TypeError):
            raise FeedFailed(
                f"stream {self._stream.name!r}: what was known before batch {batch_id} of when its "
                f"events are complete is lost or damaged in {self._folder}: restore the checkpoint "
                "or, with an empty one, continue after the last batch of the database (activedb "
                "run --resume)"
            ) from None

    def _write(self, batch_id: int, known: Marks) -> None:
        self._folder.mkdir(exist_ok=True)
        new = self._folder / f"{batch_id}.new"
        new.write_text(json.dumps(known.record()), encoding="utf-8")
        new.replace(self._folder / str(batch_id))
        with suppress(FileNotFoundError):  # keep the one before: this batch may come again
            (self._folder / str(batch_id - 2)).unlink()
