"""Interface through which the lock manager blocks a thread."""

from __future__ import annotations

import threading
from typing import Protocol

__all__ = ["ThreadWaiter", "Waiter"]


class Waiter(Protocol):
    """One sleep of one thread; tests substitute a deterministic scheduler."""

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until `wake`, or for at least `timeout_s` seconds (None: without limit).

        Return at once if `wake` was called before.
        """
        ...

    def wake(self) -> None:
        """End the wait. Called from another thread, which does not hold the latch."""
        ...


class ThreadWaiter:
    """Waiter that sleeps on a `threading.Event`."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until woken or until the timeout expires."""
        self._event.wait(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """Wake the sleeping thread."""
        self._event.set()
