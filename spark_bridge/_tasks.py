"""Partitions of s-transactions as tasks on Spark's executors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from activedb.errors import FeedFailed
from activedb.scheduling.partitioned import Costs, run_task
from spark_bridge._failures import take_down
from spark_bridge._session import running
from spark_bridge._worker_memory import keep_what_is_loaded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

__all__ = ["SparkTasks"]


class SparkTasks:
    """Runner of tasks on a Spark's executors, beside its other work: a `TaskRunner`.

    Tasks change no state where they run. So if an executor is lost Spark runs its tasks again, with
    the same results.

    Parameters
    ----------
    spark : SparkSession, optional
        By default that of the `session` that is open at the time, as it is while a feed runs. If
        there is none, nothing is started and no task can be run.

    Attributes
    ----------
    costs : Costs
        As measured with two executors on one machine (docs/scale-out.md).
    """

    costs = Costs(batch_s=0.06, operation_s=15e-6)

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._own = spark

    @property
    def slots(self) -> int:
        """Number of tasks that the executors run at once: their cores; 0 if no Spark is running."""
        spark = self._spark
        return 0 if spark is None else int(spark.sparkContext.defaultParallelism)

    def dumps(self, value: Any) -> bytes:
        """Pickle a value, including functions of modules that exist only in this process."""
        from spark_bridge._pickling import dumps  # it needs pyspark, which a feed checks for first

        return dumps(value)

    def run(self, payloads: Sequence[bytes]) -> list[bytes]:
        """Run tasks, one per payload, and return their results in order.

        Raises
        ------
        FeedFailed
            If Spark could not run them, or none is running.
        """
        spark = self._spark
        if spark is None:
            raise FeedFailed("partitions of s-transactions: no Spark is running")
        try:
            spread = spark.sparkContext.parallelize(payloads, len(payloads))
            results: list[bytes] = spread.map(_run).collect()
            return results
        except Exception as error:
            summary, failure = take_down(error)
            raise FeedFailed(f"partitions of s-transactions: {summary}") from failure

    @property
    def _spark(self) -> SparkSession | None:
        return running() if self._own is None else self._own


def _run(payload: bytes) -> bytes:
    """Run a task; in Spark's Python process on an executor."""
    from spark_bridge._pickling import dumps

    answer = run_task(payload, dumps)
    keep_what_is_loaded()
    return answer
