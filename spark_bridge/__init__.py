"""The bridge from Spark Structured Streaming to activedb: micro-batches become atomic batches.

See this package's README for the picture and the guarantees. Importing it does not import Spark.
"""

from spark_bridge._feed import SparkFeed, feed
from spark_bridge._session import session

__all__ = ["SparkFeed", "feed", "session"]
