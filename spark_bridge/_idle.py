"""When a feed to which nothing comes runs a micro-batch without rows.

Executors that match go by the rows before a batch, so without one more the last events would wait
until somebody sends something. Producers that have become silent are noticed in a batch, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence

_FIRST_S = 0.5


def idle_waits_s(silent_after_us: int | None) -> list[float]:
    """Return how long to wait before each of the batches without rows, in seconds.

    One lets executors match what the last rows have made complete. Two more notice producers that
    are silent: their clock goes on by at most half of `silent_after` from batch to batch (`Marks`).
    """
    if silent_after_us is None:
        return [_FIRST_S]
    return [_FIRST_S, silent_after_us / 2e6, silent_after_us / 2e6]


def idle_of(options: Mapping[str, str]) -> Idle:
    """Return what the option ``idle`` of a data source says, a JSON list of seconds."""
    return Idle(json.loads(options.get("idle", f"[{_FIRST_S}]")))


class Idle:
    """Counts the batches without rows that are still to be run.

    Parameters
    ----------
    waits_s : sequence of float
        How long nothing must have come before each.
    clock : callable
        Seconds, of a clock that never goes back.
    """

    def __init__(
        self, waits_s: Sequence[float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._waits_s = waits_s
        self._clock = clock
        self._run = len(waits_s)
        self._since_s = 0.0

    def note_rows(self) -> None:
        """Rows have come: begin anew."""
        self._run = 0
        self._since_s = self._clock()

    def is_due(self) -> bool:
        """Whether to run a batch without rows now; it counts as run."""
        if self._run == len(self._waits_s):
            return False
        now_s = self._clock()
        if now_s - self._since_s < self._waits_s[self._run]:
            return False
        self._run += 1
        self._since_s = now_s
        return True
