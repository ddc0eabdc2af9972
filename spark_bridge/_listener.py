"""Listens to Spark's queries, for the metrics of a feed."""

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


class _Listener(StreamingQueryListener):
    """Passes on what is said of one query. Spark calls it on a thread of its own."""

    def __init__(self, metrics: FeedMetrics, query_id: Callable[[], str]) -> None:
        self._metrics = metrics
        self._query_id = query_id

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing: there are no numbers yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """A micro-batch has been processed, or Spark has looked for rows in vain."""
        progress = event.progress
        if str(progress.id) == self._query_id():
            self._metrics.note(json.loads(progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """Nothing: there are no rows."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Nothing: who runs the query knows."""


@contextmanager
def listening(
    spark: SparkSession, metrics: FeedMetrics, query_id: Callable[[], str]
) -> Iterator[None]:
    """Fill the metrics of a feed with what Spark says of its query during the block."""
    listener = _Listener(metrics, query_id)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM may have died
            spark.streams.removeListener(listener)


def note_recent(metrics: FeedMetrics, query: StreamingQuery) -> None:
    """Take note of batches of which the listener has not been told yet; the query has ended."""
    with suppress(Exception):  # the JVM may have died
        for progress in query.recentProgress:
            metrics.note(json.loads(progress.json))
