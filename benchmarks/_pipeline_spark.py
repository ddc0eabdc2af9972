"""Pipeline runs: a workload from files, through Spark, to committed rows.

All measurements are from outside: when a batch arrived, when it had been applied, and up to which
event time its effects are then committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from activedb.streams import AtomicBatch
from benchmarks._pipeline_workload import Opened, Rows
from spark_bridge import SparkFeed

__all__ = ["Applied", "Ran", "check", "feed_all"]


@dataclass(frozen=True, slots=True)
class Applied:
    """Measurements of one batch.

    Attributes
    ----------
    began_s, ended_s : float
        When it came from Spark and when it had been committed, by `time.perf_counter`.
    cpu_s : float
        Processor time of this process in between.
    punctuation_us : int or None
        All events before this event time have been processed.
    """

    began_s: float
    ended_s: float
    cpu_s: float
    punctuation_us: int | None


@dataclass(slots=True)
class Ran:
    """A run over all files.

    Attributes
    ----------
    batches : list of Applied
        The last one is the remainder at the end of the source.
    seconds : float
        Total time, from before Spark's query begins to the end.
    last : AtomicBatch or None
        The last batch from Spark.
    """

    batches: list[Applied] = field(default_factory=list)
    seconds: float = 0.0
    last: AtomicBatch | None = None

    def steady_per_s(self, us: Any, skipped: int) -> float:
        """Return the events per second whose effects were committed after `skipped` batches.

        Parameters
        ----------
        us : array of int64
            The time of each event, in order.
        skipped : int
            At least 2: the first batch has no punctuation.
        """
        first, last = self.batches[skipped - 1], self.batches[-2]
        assert first.punctuation_us is not None
        assert last.punctuation_us is not None
        count = np.diff(us.searchsorted([first.punctuation_us, last.punctuation_us]))[0]
        return float(count / (last.ended_s - first.ended_s))

    def medians_ms(self, skipped: int) -> dict[str, float]:
        """Return the median times of a batch: in Spark, in Python, and waiting for Postgres."""
        batches = self.batches[skipped - 1 : -1]
        pairs = list(pairwise(batches))
        return {
            "spark": _median_ms([b.began_s - a.ended_s for a, b in pairs]),
            "python": _median_ms([b.cpu_s for _, b in pairs]),
            "postgres": _median_ms([b.ended_s - b.began_s - b.cpu_s for _, b in pairs]),
        }


def feed_all(
    opened: Opened,
    folder: Path,
    checkpoint: Path,
    *,
    on_applied: Callable[[int], None] = lambda batches: None,
) -> Ran:
    """Feed a workload from all files of a folder.

    Parameters
    ----------
    opened : Opened
    folder, checkpoint : Path
    on_applied : callable, optional
        Called after each batch with the number of batches so far.
    """
    ran = Ran()
    feed = SparkFeed(opened.stream, folder, checkpoint)

    def take(batch: AtomicBatch) -> None:
        ran.last = batch
        ran.batches.append(applied(opened, batch))
        on_applied(len(ran.batches))

    began_s = time.perf_counter()
    feed.run(take)
    left_s, cpu_s = time.perf_counter(), time.process_time()
    opened.run.finish()
    ended_s = time.perf_counter()
    ran.batches.append(Applied(left_s, ended_s, time.process_time() - cpu_s, None))
    ran.seconds = ended_s - began_s
    return ran


def applied(opened: Opened, batch: AtomicBatch) -> Applied:
    """Apply a batch and return its measurements."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    opened.run.apply(batch)
    cpu_s = time.process_time() - cpu_s
    return Applied(began_s, time.perf_counter(), cpu_s, batch.punctuation_us)


def check(found: Rows, expected: Rows, who: str) -> None:
    """Compare the tables with their expected contents.

    Raises
    ------
    AssertionError
        If they differ.
    """
    for table, rows in expected.items():
        assert len(found[table]) == len(rows), (
            f"{who}: {table} has {len(found[table])} rows, not {len(rows)}"
        )
        wrong = [pair for pair in zip(found[table], rows, strict=True) if pair[0] != pair[1]]
        assert not wrong, f"{who}: {table} has {len(wrong)} wrong rows, the first: {wrong[0]}"


def _median_ms(seconds: Sequence[float]) -> float:
    return float(np.median(seconds)) * 1e3
