"""Events per second from files to committed rows, against one SQL transaction per event."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from activedb.streams import Files
from benchmarks._nested_parts import Figure
from benchmarks._nested_rows import Server
from benchmarks._pipeline_per_event import per_event_per_s
from benchmarks._pipeline_places import fresh_schema, write_files
from benchmarks._pipeline_spark import check, feed_all
from benchmarks._pipeline_workload import Opened, Rows, Workload

__all__ = ["PEER", "Load", "Throughput"]

PEER: Final = "SQL per event"
_REPLAYS: Final = 9


@dataclass(frozen=True, slots=True)
class Load:
    """Amount of work in a run.

    Attributes
    ----------
    batch : int
        Events in a file, and so in a batch.
    batches : int
    skipped : int
        Batches until the run is steady: Spark and numba compile during these. At least 2: the first
        one has no punctuation.
    peer : int
        Events of the peer.
    """

    batch: int = 200_000
    batches: int = 12
    skipped: int = 3
    peer: int = 4_000


class Throughput:
    """One run: all events through the pipeline, and the first ones through the peer."""

    def __init__(self, workload: Workload, server: Server, folder: Path, load: Load):
        self._workload = workload
        self._per_s: float | None = None
        self._server = server
        self._folder = folder
        self._load = load
        self._runs = 0
        self._columns: Any = None
        self._expected: Rows | None = None

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        name, load, columns = self._workload.name, self._load, self._made()
        self._runs += 1
        place = self._folder / f"run-{self._runs}"
        with fresh_schema(self._server, f"{self._server.schema}_peer") as schema:
            peer_per_s = per_event_per_s(
                self._workload,
                schema,
                self._folder / "peer",
                place / "peer",
                columns.part(slice(load.peer)),
            )
        with fresh_schema(self._server, f"{self._server.schema}_{name}") as schema:
            opened = self._workload.open(schema, Files("parquet"))
            try:
                ran = feed_all(opened, self._folder / "files", place / "checkpoint")
                self._check(schema)
                assert ran.last is not None
                replayed_ms = _replayed_ms(opened, ran.last)
            finally:
                opened.close()
        self._per_s = ran.steady_per_s(columns.us, load.skipped)
        return {
            f"{name}_pipeline_per_s": Figure(self._per_s, "events/s", PEER, peer_per_s),
            f"{name}_whole_per_s": Figure(len(columns) / ran.seconds, "events/s"),
            f"{name}_replayed_batch_ms": Figure(replayed_ms, "ms", smaller_is_better=True),
            **{
                f"{name}_batch_{what}_ms": Figure(taken_ms, "ms", smaller_is_better=True)
                for what, taken_ms in ran.medians_ms(load.skipped).items()
            },
        }

    def last_per_s(self) -> float:
        """Return the events per second of the last run; do a run if there was none."""
        if self._per_s is None:
            self()
        assert self._per_s is not None
        return self._per_s

    def _made(self) -> Any:
        """Return the events, and write them as files, too."""
        if self._columns is None:
            load = self._load
            self._columns = self._workload.events(load.batch * load.batches)
            write_files(self._folder / "files", self._columns, load.batch)
            write_files(self._folder / "peer", self._columns.part(slice(load.peer)), load.peer)
        return self._columns

    def _check(self, schema: Server) -> None:
        if self._expected is None:
            self._expected = self._workload.expected(self._columns)
        with schema.connection() as connection:
            check(self._workload.found(connection), self._expected, self._workload.name)


def _replayed_ms(opened: Opened, batch: Any) -> float:
    """Return the time of a batch that has been applied before."""
    taken_s = []
    for _ in range(_REPLAYS):
        began_s = time.perf_counter()
        opened.run.apply(batch)
        taken_s.append(time.perf_counter() - began_s)
    return statistics.median(taken_s) * 1e3
