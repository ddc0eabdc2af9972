"""The punctuation of a stream whose rows come from several producers.

Spark's watermark is one for all rows: the producer that is ahead moves it, and all that the others
still send is late. Here each producer has a mark of its own (`activedb.streams.Marks`).

What is known after each micro-batch is in ``<checkpoint>/producers/<batch id>``. It follows from
the rows of the batches and from when Spark planned them, which Spark keeps, so a batch that is run
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
from spark_bridge._reached import last_believed_us

if TYPE_CHECKING:
    from activedb.streams import Stream


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
    before : mapping, optional
        What was known before the query's first batch, as `known_after` tells it.
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
        latest_us = last_believed_us(planned_ms, self._future_max_s)
        newest = newest_times(self._stream, table, latest_us)
        known = self._read(batch_id).after(self._stream, newest, planned_ms * 1000)
        self._write(batch_id, known)
        return known.punctuation_us

    def known_after(self, batch_id: int) -> Mapping[str, Any]:
        """Return what is known behind a micro-batch that has been taken note of, as JSON has it."""
        text = (self._folder / str(batch_id)).read_text(encoding="utf-8")
        known: Mapping[str, Any] = json.loads(text)
        return known

    def _read(self, batch_id: int) -> Marks:
        """Return what was known before a batch."""
        if batch_id == 0:
            return Marks.restore(self._stream, self._before)
        try:
            before = self.known_after(batch_id - 1)
        except FileNotFoundError:
            raise FeedFailed(
                f"what was known of its producers before batch {batch_id} is not in "
                f"{self._folder}: restore the checkpoint, or begin anew with another one and an "
                "empty database"
            ) from None
        return Marks.restore(self._stream, before)

    def _write(self, batch_id: int, known: Marks) -> None:
        self._folder.mkdir(exist_ok=True)
        new = self._folder / f"{batch_id}.new"
        new.write_text(json.dumps(known.record()), encoding="utf-8")
        new.replace(self._folder / str(batch_id))
        with suppress(FileNotFoundError):  # the one before may be needed: this one may come again
            (self._folder / str(batch_id - 2)).unlink()
