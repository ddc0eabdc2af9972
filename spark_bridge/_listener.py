"""Listener of Spark's queries, for the metrics of a feed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_bridge._metrics import FeedMetrics


class _ProgressListener(StreamingQueryListener):
    """Listener that forwards the progress of one query. Spark calls it on a separate thread."""

    def __init__(self, metrics: FeedMetrics, query_id: Callable[[], str]) -> None:
        self._metrics = metrics
        self._query_id = query_id

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Ignore the start: there are no numbers yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """Record a processed micro-batch, or a look for rows in vain."""
        progress = event.progress
        if str(progress.id) == self._query_id():
            self._metrics.note(json.loads(progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Ignore idleness: there are no rows."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Ignore the end: the thread that runs the query knows of it."""


@contextmanager
def listening(
    spark: SparkSession, metrics: FeedMetrics, query_id: Callable[[], str]
) -> Iterator[None]:
    """Fill the metrics of a feed with Spark's reports on its query during the block."""
    listener = _ProgressListener(metrics, query_id)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM may have died
            spark.streams.removeListener(listener)


def note_recent(metrics: FeedMetrics, query: StreamingQuery) -> None:
    """Record batches that the listener has not received yet; the query has ended."""
    with suppress(Exception):  # the JVM may have died
        for progress in query.recentProgress:
            metrics.note(json.loads(progress.json))
