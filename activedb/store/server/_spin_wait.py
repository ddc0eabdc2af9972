"""Waiting awake: a thread that expects an answer at once looks for it, instead of going to sleep.

The server answers a statement by key in less time than it takes a core to fall asleep and to be
woken again, on virtual machines above all, and a thread that has slept finds its caches cold. So
who is the only one at work here, and so far has been answered soon, looks for a moment whether
the answer is there, and gives its core to whoever wants it between two looks.
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
    """Looks for answers of one kind on one connection.

    Each one that does not come in time has it look half as often.

    Parameters
    ----------
    socket : int
        The connection's.
    is_alone : callable
        Whether no other thread has a use for the core.
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
        """Whether there is an answer now, looked for as long as it is worth while."""
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
