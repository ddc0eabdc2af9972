"""Contended hand-over of one lock from thread to thread, for any lock manager."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

__all__ = ["handover_us"]

_POLL_S = 20e-6
_WAIT_S_MAX = 30.0


def handover_us(
    handovers: int,
    acquire: Callable[[int], object],
    release: Callable[[int], object],
    waits: Callable[[], int],
) -> float:
    """Return the median time from just before a release until the other thread's `acquire` returns.

    Two parties, 0 and 1, pass the lock to and fro, each on a separate thread, and request it again
    as soon as they have released it. A party releases only when the other is blocked, so that every
    hand-over is contended; the time spent waiting for that is not counted.

    Parameters
    ----------
    handovers : int
    acquire, release : callable
        Called with the party.
    waits : callable
        Returns the number of requests that have waited so far.
    """
    waits_before = waits()
    released_s = 0.0
    taken_s: list[float] = []

    def take_turns(party: int) -> None:
        nonlocal released_s
        for turn in range(party, handovers + 1, 2):
            if turn > 0:
                acquire(party)
                taken_s.append(time.perf_counter() - released_s)
            if turn < handovers:
                give_up_s = time.monotonic() + _WAIT_S_MAX
                while waits() - waits_before <= turn:
                    assert time.monotonic() < give_up_s, "the other thread never waited"
                    time.sleep(_POLL_S)
            released_s = time.perf_counter()
            release(party)

    acquire(0)
    other = threading.Thread(target=take_turns, args=(1,), daemon=True)
    other.start()
    take_turns(0)
    other.join()
    return 1e6 * statistics.median(taken_s)
