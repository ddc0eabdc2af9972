"""Spin-wait: a thread that expects an answer at once polls for it, instead of sleeping.

The server answers a statement by key in less time than it takes a core to fall asleep and wake up,
especially on virtual machines, and a thread that has slept finds its caches cold. So a thread that
is the only one at work, and has had quick answers so far, polls for a moment, and yields its core
to other threads between two polls.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

__all__ = ["Watch"]

_AWAKE_S = 0.000_3
_SKIPPED_MAX = 64

_is_possible = hasattr(select, "poll") and hasattr(os, "sched_yield") and (os.cpu_count() or 1) > 1


class Watch:
    """Spinner for answers of one kind on one connection.

    Each answer that is late makes it spin half as often.

    Parameters
    ----------
    socket : int
        Descriptor of the connection's socket.
    is_alone : callable
        Return whether no other thread needs the core.
    """

    __slots__ = ("_is_alone", "_left", "_poll", "_skipped")

    def __init__(self, socket: int, is_alone: Callable[[], bool]):
        self._is_alone = is_alone
        self._skipped = self._left = 0
        if _is_possible:
            poll = select.poll()
            poll.register(socket, select.POLLIN)
            self._poll = poll.poll

    def sees_answer(self) -> bool:
        """Return whether an answer is available, after spinning as long as that is worthwhile."""
        if self._left:
            self._left -= 1
            return False
        if not _is_possible or not self._is_alone():
            return False
        poll = self._poll
        until_s = time.perf_counter() + _AWAKE_S
        while not poll(0):
            if time.perf_counter() > until_s:
                self._left = self._skipped = min(2 * self._skipped + 1, _SKIPPED_MAX)
                return False
            os.sched_yield()
        self._skipped = 0
        return True
