"""Worker: runs firings that other processes have recorded."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing

from activedb.errors import ConfigurationError, TransactionStateError
from activedb.firing._launcher import Launcher
from activedb.firing._triggered import SYSTEMIC
from activedb.transactions import current_transaction

__all__ = ["Worker"]

_LOG = logging.getLogger(__name__)

_STOP_S_MAX = 0.2  # within this time a waiting worker sees `stop`
_PAUSE_S = 1.0  # after a lost connection


class Worker:
    """Loop that claims as many firings as the threads can run, until it is told to stop.

    ```
      claim ──► start on the pool ──► less than half left, a wake-up, or poll_s passed ─┐
        ▲                                                                               │
        └───────────────────────────────────────────────────────────────────────────────┘
    ```

    A wake-up only ends the wait, so a lost one costs at most `poll_s`. At the same interval the
    worker looks for firings of dead processes, and deletes the rows of those that they had done.

    Parameters
    ----------
    launcher : Launcher
    threads : int
        Number of threads of the pool. At most twice as many firings are claimed, so that a thread
        finds the next firing when it has ended one.
    """

    def __init__(self, launcher: Launcher, threads: int):
        self._launcher = launcher
        self._threads = threads
        self._latch = threading.Lock()

    def run(
        self,
        stop: threading.Event,
        *,
        poll_s: float,
        on_progress: Callable[[int, int], None] | None,
    ) -> int:
        """Work until `stop` is set, finish the started firings, and return how many were claimed.

        Raises
        ------
        ConfigurationError
            On ``memory://``, or if `poll_s` is not a positive number.
        TransactionStateError
            Inside a transaction, or if a worker already runs on this database object.
        """
        t = current_transaction()
        if t is not None:
            raise TransactionStateError(f"{t.path} is open; run the worker outside a transaction")
        if isinstance(poll_s, bool) or not isinstance(poll_s, int | float) or not 0 < poll_s < 1e6:
            raise ConfigurationError(f"poll_s takes a positive number of seconds, not {poll_s!r}")
        if not self._latch.acquire(blocking=False):
            raise TransactionStateError("this database object is already running a worker")
        try:
            return self._run(stop, poll_s, on_progress or (lambda taken, running: None))
        finally:
            self._latch.release()

    def _run(
        self, stop: threading.Event, poll_s: float, on_progress: Callable[[int, int], None]
    ) -> int:
        launcher = self._launcher
        taken, next_look_s = 0, 0.0

        def wake(running: int) -> None:
            if running <= self._threads:
                wakeups.wake()

        with closing(launcher.journal.wakeups()) as wakeups, launcher.telling(wake):
            while not stop.is_set():
                room = 2 * self._threads - launcher.running
                is_time = time.monotonic() >= next_look_s
                more = 0
                if room >= self._threads or is_time:
                    try:
                        if is_time:
                            next_look_s = time.monotonic() + poll_s
                        more = launcher.take_over(max(room, 0), of_dead=is_time)
                        if is_time:
                            launcher.journal.forget_left()
                    except SYSTEMIC:
                        _LOG.warning("no firings can be taken over for now", exc_info=True)
                        stop.wait(_PAUSE_S)
                taken += more
                on_progress(taken, launcher.running)
                if more < room or room <= 0:
                    left_s = next_look_s - time.monotonic()
                    wakeups.wait(min(max(left_s, 0.0), _STOP_S_MAX))
        on_progress(taken, launcher.running)
        launcher.join_running()
        return taken
