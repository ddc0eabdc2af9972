"""Metrics of a feed while it runs: throughput, progress, kept state."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from activedb.metrics import Histogram, NamedCounters

_SHOWN_S_MIN = 0.0005


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """One micro-batch, as Spark measured it.

    Attributes
    ----------
    batch_id : int
    rows : int
        Number of rows.
    seconds : float
        Time from Spark's look for rows until it recorded the batch as processed.
    apply_s : float
        Part of that time spent on making its columns and applying it.
    rows_per_s : float
        `rows` divided by `seconds`.
    arriving_per_s : float or None
        Rows that arrived per second since the batch before; None for the first.
    punctuation_us : int or None
        `AtomicBatch.punctuation_us`.
    state_rows, state_bytes : int
        State kept by stateful operators of the query; 0 if it has none.
    """

    batch_id: int
    rows: int
    seconds: float
    apply_s: float
    rows_per_s: float
    arriving_per_s: float | None
    punctuation_us: int | None
    state_rows: int
    state_bytes: int

    @classmethod
    def of(
        cls, progress: Mapping[str, Any], punctuations_us: Mapping[int, int | None]
    ) -> BatchProgress | None:
        """Read Spark's JSON, with the punctuation of each batch; None if no batch was run."""
        durations = progress.get("durationMs") or {}
        if "addBatch" not in durations:
            return None
        seconds = durations.get("triggerExecution", 0) / 1000
        rows = int(progress.get("numInputRows", 0))
        operators = progress.get("stateOperators") or []
        arriving = progress.get("inputRowsPerSecond")
        batch_id = int(progress["batchId"])
        return cls(
            batch_id=batch_id,
            rows=rows,
            seconds=seconds,
            apply_s=durations["addBatch"] / 1000,
            rows_per_s=rows / max(seconds, _SHOWN_S_MIN),
            arriving_per_s=arriving if isinstance(arriving, float | int) and arriving > 0 else None,
            punctuation_us=punctuations_us.get(batch_id),
            state_rows=sum(int(o.get("numRowsTotal", 0)) for o in operators),
            state_bytes=sum(int(o.get("memoryUsedBytes", 0)) for o in operators),
        )

    def __str__(self) -> str:
        return f"batch {self.batch_id}: {self.rows:,} rows in {self.seconds:.2f} s"


class FeedMetrics:
    """Metrics of a feed, over all its runs in this process. Safe to use from any thread.

    Spark reports a batch a moment after it has been processed; when a run has ended all reports
    have arrived.
    """

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._counters = NamedCounters()
        self._durations = Histogram()
        self._last: BatchProgress | None = None
        self._next = 0  # the first batch of this run that has not been reported yet
        self._punctuations_us: dict[int, int | None] = {}  # of batches from there on

    @property
    def last(self) -> BatchProgress | None:
        """The last batch; None before the first one."""
        with self._latch:
            return self._last

    def counters(self) -> dict[str, int]:
        """Return the counters ``batches`` and ``rows``."""
        return self._counters.snapshot()

    def batch_s(self, q: float) -> float:
        """Return the seconds not exceeded by the fraction `q` of batches; 0.0 without any."""
        return self._durations.quantile(q)

    def begin(self, batch_id: int) -> None:
        """Begin a run with this batch."""
        with self._latch:
            self._next = batch_id
            self._punctuations_us.clear()

    def reached(self, batch_id: int, punctuation_us: int | None) -> None:
        """Record the punctuation of a batch, before Spark reports the batch."""
        with self._latch:
            self._punctuations_us[batch_id] = punctuation_us

    def note(self, progress: Mapping[str, Any]) -> None:
        """Record Spark's JSON about a batch, once."""
        with self._latch:
            found = BatchProgress.of(progress, self._punctuations_us)
            if found is None or found.batch_id < self._next:
                return
            self._next = found.batch_id + 1
            self._last = found
            self._punctuations_us.pop(found.batch_id, None)
        self._counters.add("batches")
        self._counters.add("rows", found.rows)
        self._durations.record(found.seconds)
