"""Schedule of micro-batches without rows while a feed is idle.

Matching executors use the watermark of the rows before a batch, so without another batch the last
events would wait until more rows arrive. Silent producers are noticed in a batch, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

_FIRST_S = 0.5


def idle_waits_s(silent_after_us: int | None) -> list[float]:
    """Return the waiting times before each of the batches without rows, in seconds.

    One lets executors match what the last rows have made complete. Two more notice silent
    producers: the clock of a producer advances by at most half of `silent_after` from batch to
    batch (`Marks`).
    """
    if silent_after_us is None:
        return [_FIRST_S]
    return [_FIRST_S, silent_after_us / 2e6, silent_after_us / 2e6]


def idle_of(options: Mapping[str, str]) -> Idle:
    """Return the schedule given by a data source's option ``idle``, a JSON list of seconds."""
    return Idle(json.loads(options.get("idle", f"[{_FIRST_S}]")))


class Idle:
    """Counter of the batches without rows that are still to be run.

    Parameters
    ----------
    waits_s : sequence of float
        Idle time required before each.
    clock : callable
        Returns seconds of a clock that never goes back.
    """

    def __init__(
        self, waits_s: Sequence[float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._waits_s = waits_s
        self._clock = clock
        self._run = len(waits_s)
        self._since_s = 0.0

    def note_rows(self) -> None:
        """Restart the schedule, because rows have arrived."""
        self._run = 0
        self._since_s = self._clock()

    def is_due(self) -> bool:
        """Return whether to run a batch without rows now; the batch counts as run."""
        if self._run == len(self._waits_s):
            return False
        now_s = self._clock()
        if now_s - self._since_s < self._waits_s[self._run]:
            return False
        self._run += 1
        self._since_s = now_s
        return True
