"""Memory of a columnar detector over very many events, in a separate process.

``python -m benchmarks._events_memory EVENTS BATCH`` prints a JSON object: the peak memory of the
process, in MB, after a tenth of the events and after all, and the state that the detector keeps.
Batches are generated one after another, as they are fed, and keys come and go with them.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks._events_streams import Events, seq3
from benchmarks._nested_parts import Figure
from benchmarks._progress import progress

__all__ = ["Memory", "peak_mb"]

_WORKERS: Final = 10_000
_MB: Final = 1_000_000


class Memory:
    """One run: the memory of a separate process over this number of events; measured once.

    It includes the memory of the generator of the events.
    """

    def __init__(self, events: int, batch: int):
        self._events = events
        self._batch = batch
        self._figures: dict[str, Figure] | None = None

    def __call__(self) -> dict[str, Figure]:
        """Do the run, or return the figures of the first one, as memory hardly varies."""
        if self._figures is None:
            command = [sys.executable, "-m", __name__, str(self._events), str(self._batch)]
            root = Path(__file__).parent.parent
            done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, check=True)  # noqa: S603
            found = json.loads(done.stdout)
            self._figures = {
                f"peak_rss_mb_{_millions(number)}": Figure(
                    found[name], "MB", smaller_is_better=True
                )
                for name, number in (("tenth_mb", self._events // 10), ("all_mb", self._events))
            }
        return self._figures


def peak_mb() -> float:
    """Return the peak memory of this process, in MB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the process that started this one
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1_024 / _MB
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / _MB if sys.platform == "darwin" else most * 1_024 / _MB


def _millions(number: int) -> str:
    return f"{number // 1_000_000}m" if number >= 1_000_000 else str(number)


def _measured(count: int, batch: int) -> dict[str, Any]:
    from activedb.columns.detect._detector import ColumnarDetector

    detector = ColumnarDetector(seq3())
    tenth_mb, fed, matches, kept_max = 0.0, 0, 0, 0
    with progress(-(-count // batch)) as step:
        for table in Events(count, _WORKERS).tables(batch, drifting=True):
            step(f"{fed} events, {peak_mb():.0f} MB")
            matches += len(detector.feed(table))
            kept_max = max(kept_max, detector.partials)
            fed += table.num_rows
            if not tenth_mb and 10 * fed >= count:
                tenth_mb = peak_mb()
    return {"tenth_mb": tenth_mb, "all_mb": peak_mb(), "matches": matches, "kept_max": kept_max}


if __name__ == "__main__":
    print(json.dumps(_measured(*map(int, sys.argv[1:]))))
