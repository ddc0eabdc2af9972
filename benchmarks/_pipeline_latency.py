"""Latency at half load, from when an event is due until its effects are committed.

Files arrive in the folder that the stream follows: each is moved there when the last of its events
is due. An event waits for its file, for the batch in progress, and for its own batch.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from activedb.streams import AtomicBatch, Files
from benchmarks._nested_parts import Figure
from benchmarks._nested_rows import Server
from benchmarks._pipeline_places import fresh_schema, write_files
from benchmarks._pipeline_spark import Applied, applied
from benchmarks._pipeline_workload import Opened, Workload
from spark_bridge import SparkFeed

__all__ = ["HalfLoad", "Latency"]

_FILES_AT_ONCE: Final = 1_000
_WAIT_S_MAX: Final = 120.0
_BEFORE_END: Final = 0.9  # of the events: later ones wait for a punctuation that comes later


@dataclass(frozen=True, slots=True)
class HalfLoad:
    """Durations of a run.

    Attributes
    ----------
    seconds : float
        Period over which events are due.
    skipped_s : float
        Initial part that is skipped, until the run is steady: Spark plans its first batches slowly.
    file_s : float
        Period over which the events of a file are due.
    """

    seconds: float = 25.0
    skipped_s: float = 10.0
    file_s: float = 0.2


class Latency:
    """One run at half of the rate that `per_s` returns."""

    def __init__(
        self,
        workload: Workload,
        server: Server,
        folder: Path,
        load: HalfLoad,
        per_s: Callable[[], float],
    ):
        self._workload = workload
        self._server = server
        self._folder = folder
        self._load = load
        self._per_s = per_s
        self._runs = 0

    def __call__(self) -> dict[str, Figure]:
        """Do one run."""
        load = self._load
        per_file = max(round(self._per_s() / 2 * load.file_s), 1)
        rate = per_file / load.file_s  # at which they come
        columns = self._workload.events(per_file * round(load.seconds / load.file_s))
        self._runs += 1
        place = self._folder / f"latency-{self._runs}"
        staged = write_files(place / "staged", columns, per_file)
        with fresh_schema(self._server, f"{self._server.schema}_latency") as schema:
            opened = self._workload.open(schema, Files("parquet", per_batch=_FILES_AT_ONCE))
            try:
                arriving = _Arriving(opened, place, staged, load.file_s, int(columns.us[-1]))
                arriving.run()
            finally:
                opened.close()
        for file in place.glob("*/*.parquet"):
            file.unlink()
        latencies_ms = arriving.latencies_ms(columns.us, rate, load)
        name = self._workload.name
        return {
            f"{name}_e2e_p{q}_ms_half_load": Figure(
                float(np.percentile(latencies_ms, q)), "ms", smaller_is_better=True
            )
            for q in (50, 99)
        }


class _Arriving:
    """A feed that follows a folder, and the thread that moves files there.

    Parameters
    ----------
    opened : Opened
    place : Path
        Place of the folder and the checkpoint.
    staged : list of Path
        The complete files. The first is in the folder from the beginning.
    file_s : float
        Interval between two files.
    last_us : int
        The time of the last event.
    """

    def __init__(
        self, opened: Opened, place: Path, staged: list[Path], file_s: float, last_us: int
    ):
        self._opened = opened
        self._folder = place / "files"
        self._folder.mkdir()
        self._staged = staged
        self._file_s = file_s
        self._last_us = last_us
        self._feed = SparkFeed(opened.stream, self._folder, place / "checkpoint", follow=True)
        self._is_going = threading.Event()
        self._is_over = threading.Event()
        self._batches: list[Applied] = []
        self._began_s = 0.0  # when the first event was due

    def run(self) -> None:
        """Feed until all events but those at the end are committed."""
        self._move(0)
        mover = threading.Thread(target=self._arrive, name="arrivals")
        mover.start()
        try:
            self._feed.run(self._take)
        finally:
            self._is_over.set()
            self._is_going.set()
            mover.join()

    def latencies_ms(self, us: Any, rate: float, load: HalfLoad) -> Any:
        """Return the latency of each event that was due in the steady state."""
        due_s = self._began_s + np.arange(len(us)) / rate
        reached = [b for b in self._batches if b.punctuation_us is not None]
        places = np.array([b.punctuation_us for b in reached]).searchsorted(us, side="right")
        # Ends of the batches, for events before their punctuation.
        ends_s = np.array([b.ended_s for b in reached])
        steady = slice(round(rate * load.skipped_s), round(len(us) * _BEFORE_END))
        assert places[steady].max() < len(ends_s), "not all events were committed in time"
        return (ends_s[places[steady]] - due_s[steady]) * 1e3

    def _take(self, batch: AtomicBatch) -> None:
        done = applied(self._opened, batch)
        self._batches.append(done)
        self._is_going.set()
        if done.punctuation_us is not None and done.punctuation_us >= self._last_us // 1000 * 1000:
            self._is_over.set()

    def _arrive(self) -> None:
        self._is_going.wait()
        # The events of the first file have come; those of the next are due from now on.
        self._began_s = time.perf_counter() - self._file_s
        for number in range(1, len(self._staged)):
            due_s = self._began_s + (number + 1) * self._file_s
            if self._is_over.wait(max(due_s - time.perf_counter(), 0.0)):  # the feed has failed
                return
            self._move(number)
        self._is_over.wait(_WAIT_S_MAX)
        self._feed.stop()

    def _move(self, number: int) -> None:
        file = self._staged[number]
        os.replace(file, self._folder / file.name)
