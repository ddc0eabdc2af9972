"""What the rows of a micro-batch let the next one's punctuation be, as Spark will say it then."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute

if TYPE_CHECKING:
    from activedb.streams import Stream

pa: Any = pyarrow
pc: Any = pyarrow.compute
_US_MAX = 2.0**62  # a time beyond all, of the type of the column


def last_believed_us(planned_ms: int, future_max_s: float) -> int:
    """Return the newest time that is believed of a batch that was planned at a moment."""
    return int(min(planned_ms * 1000 + future_max_s * 1e6, _US_MAX))


def reached_us(
    stream: Stream, table: Any, planned_ms: int, future_max_s: float, before_us: int | None
) -> int | None:
    """Return the punctuation of the batch after this one. O(rows), in columns.

    Parameters
    ----------
    stream : Stream
    table : pyarrow.Table
        The event columns.
    planned_ms : int
        When Spark planned the batch.
    future_max_s : float
        A time further ahead of that moves no watermark.
    before_us : int or None
        The punctuation of the batch itself.
    """
    column = table.column("event_time_us" if stream.accuracy is None else "event_low_us")
    last_us = last_believed_us(planned_ms, future_max_s)
    newest_us: int | None = pc.max(column).as_py()
    if newest_us is not None and newest_us > last_us:
        newest_us = pc.max(column.filter(pc.less_equal(column, last_us))).as_py()
    if newest_us is None:
        return before_us
    # Spark counts in whole milliseconds, and says 0 where it knows nothing.
    watermark_ms = newest_us // 1000 + (-stream.delay // timedelta(milliseconds=1))
    if watermark_ms <= 0:
        return before_us
    return max(watermark_ms * 1000, watermark_ms * 1000 if before_us is None else before_us)
