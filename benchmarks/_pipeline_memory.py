"""Memory growth of this process and of Spark while events are processed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activedb.streams import Files
from benchmarks._nested_parts import Figure
from benchmarks._nested_rows import Server
from benchmarks._pipeline_places import fresh_schema, resident_mb, write_files
from benchmarks._pipeline_spark import feed_all
from benchmarks._pipeline_workload import Workload
from spark_bridge import session

__all__ = ["Kept", "Memory"]

_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Kept:
    """Amount of work in a run.

    Attributes
    ----------
    events : int
        Number of events; 3,600,000 are an hour's worth of these workloads.
    batch : int
        Events in a file.
    first : float
        Share of the batches after which memory is first measured; it is measured again after all.
    """

    events: int = 1_200_000
    batch: int = 60_000
    first: float = 0.4


@dataclass(frozen=True, slots=True)
class _Taken:
    python_mb: float
    jvm_mb: float
    live_mb: float  # of the JVM, after a garbage collection

    @classmethod
    def now(cls, spark: Any) -> _Taken:
        jvm_mb = resident_mb(spark.sparkContext._gateway.proc.pid)
        python_mb = resident_mb(os.getpid())
        spark._jvm.java.lang.System.gc()
        runtime = spark._jvm.java.lang.Runtime.getRuntime()
        return cls(python_mb, jvm_mb, (runtime.totalMemory() - runtime.freeMemory()) / _MB)


class Memory:
    """One run: memory at the end over that after some batches; 1 is flat."""

    def __init__(self, workload: Workload, server: Server, folder: Path, kept: Kept):
        self._workload = workload
        self._server = server
        self._folder = folder
        self._kept = kept
        self._runs = 0

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        kept, name = self._kept, self._workload.name
        self._runs += 1
        files = self._folder / "files"
        if not files.exists():
            write_files(files, self._workload.events(kept.events), kept.batch)
        batches = -(-kept.events // kept.batch)
        when = {round(batches * kept.first), batches}
        taken: list[_Taken] = []
        with (
            fresh_schema(self._server, f"{self._server.schema}_memory") as schema,
            session() as spark,
        ):
            opened = self._workload.open(schema, Files("parquet"))

            def look(number: int) -> None:
                if number in when:
                    taken.append(_Taken.now(spark))

            try:
                place = self._folder / f"run-{self._runs}"
                feed_all(opened, files, place, on_applied=look)
            finally:
                opened.close()
        first, last = taken
        return {
            f"{name}_python_mb": Figure(last.python_mb, "MB", smaller_is_better=True),
            f"{name}_jvm_mb": Figure(last.jvm_mb, "MB", smaller_is_better=True),
            **{
                f"{name}_{what}_growth": Figure(ratio, "ratio", smaller_is_better=True)
                for what, ratio in (
                    ("python", last.python_mb / first.python_mb),
                    ("jvm", last.jvm_mb / first.jvm_mb),
                    ("jvm_live", last.live_mb / first.live_mb),
                )
            },
        }
