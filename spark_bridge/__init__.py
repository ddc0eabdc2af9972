"""Bridge from Spark Structured Streaming to activedb: micro-batches become atomic batches.

See this package's README for a diagram and the guarantees. Importing it imports neither Spark nor
activedb: Spark's Python processes import it, too, for the data sources, and should start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_bridge._feed import SparkFeed, feed
    from spark_bridge._metrics import BatchProgress, FeedMetrics
    from spark_bridge._projection import events
    from spark_bridge._session import register_sources, session
    from spark_bridge._tasks import SparkTasks

__all__ = [
    "BatchProgress",
    "FeedMetrics",
    "SparkFeed",
    "SparkTasks",
    "events",
    "feed",
    "register_sources",
    "session",
]

_HOMES = {
    "BatchProgress": "_metrics",
    "FeedMetrics": "_metrics",
    "SparkFeed": "_feed",
    "SparkTasks": "_tasks",
    "events": "_projection",
    "feed": "_feed",
    "register_sources": "_session",
    "session": "_session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
