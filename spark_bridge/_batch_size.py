"""Sizes and times of micro-batches: adaptive row limits, and batches without rows while idle.

The limit follows additive increase, multiplicative decrease, as TCP fits its window to a network:
the size settles near the largest one that keeps the bound, and adapts when the cost of a row
changes.

::

    size
      │          ╱│    ╱│   ╱│        too long:  cut to the share that would have been in time
      │         ╱ │   ╱ │  ╱ │        full:      doubled until the first cut, then a little more
      │    ┌───┘  └──╱  └─╱  └─ …     near enough, or not full: as it was
      │ ┌──┘
      └──────────────────────────── batches

Matching executors use the watermark of the rows before a batch, so without another batch the last
events would wait until more rows arrive. Silent producers are noticed in a batch, too.

The limit is passed in a file: a data source written in Python plans in one of Spark's processes,
which receives nothing but offsets while a query runs. A small file, replaced in one step, is
visible to both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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


def write_limit(file: Path, rows: int) -> None:
    """Limit the next batches to this many rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(str(rows), encoding="ascii")
    new.replace(file)


def read_limit(file: str | None, otherwise: int) -> int:
    """Return the limit in the file, `otherwise` if there is none."""
    if file is None:
        return otherwise
    try:
        return max(1, int(Path(file).read_text(encoding="ascii")))
    except (FileNotFoundError, ValueError):
        return otherwise


_AIM = 0.5  # of the bound: a row that arrives just after a batch was cut waits for that batch, too
_CUT_MIN = 0.1  # never to less than this share at once: one slow batch may be an accident
_CUT_MAX = 0.8  # a smaller cut would only be repeated at the next batch
_NEAR = 0.85  # of the allowed time is near enough: a larger size would often take too long
_STEPS = 16  # number of increases between a size and its double


class BatchSize:
    """Size of the next batch, fitted to the durations of the last ones.

    Parameters
    ----------
    first : int
        The size of the first batch.
    latency_max_s : float or None
        Upper bound on a row's latency, from when it can be read to when it has been processed.
        None: the size stays as it is.
    most : int
        Upper bound on the size.

    Notes
    -----
    A batch may take half of `latency_max_s`: a row may have to wait for the end of the batch before
    its own. If rows arrive faster than they can be processed, no size is small enough: they wait in
    the source, which is the purpose of a bound on the batches.

    Not thread-safe: one thread calls `note`; others may read `size`.
    """

    def __init__(self, first: int, latency_max_s: float | None, *, most: int = 1_000_000) -> None:
        assert first >= 1
        self._aim_s = None if latency_max_s is None else latency_max_s * _AIM
        self._most = max(most, first)
        self._size = first
        self._has_cut = False

    @property
    def size(self) -> int:
        """Upper bound on the rows of the next batch; at least 1."""
        return self._size

    def note(self, count: int, seconds: float) -> None:
        """Record a batch of `count` rows that took `seconds`; O(1).

        Parameters
        ----------
        count : int
            Number of rows: a batch that is not full reveals nothing about a larger size.
        seconds : float
            Time from the cut of the batch to the end of its processing.
        """
        if self._aim_s is None or count < 1:
            return
        if seconds > self._aim_s:
            share = min(max(self._aim_s / seconds, _CUT_MIN), _CUT_MAX)
            # A batch may be smaller than allowed, and come later than that: cut its actual size.
            self._size = max(1, int(min(count, self._size) * share))
            self._has_cut = True
        elif count >= self._size and seconds < self._aim_s * _NEAR:
            step = max(1, self._size // _STEPS) if self._has_cut else self._size
            self._size = min(self._size + step, self._most)
