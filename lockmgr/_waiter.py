"""The one seam through which the lock manager blocks a thread."""

from __future__ import annotations

import threading
from typing import Protocol

__all__ = ["ThreadWaiter", "Waiter"]


class Waiter(Protocol):
    """A place for one thread to sleep once; tests put a deterministic scheduler behind it."""

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until `wake`, or for `timeout_s` seconds (None: without end), never shorter.

        `wake` may have come before `wait`.
        """
        ...

    def wake(self) -> None:
        """End the wait, from another thread; the latch is not held."""
        ...


class ThreadWaiter:
    """Sleeps on a `threading.Event`."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until woken or the time is up."""
        self._event.wait(None if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        """Wake the sleeper."""
        self._event.set()
