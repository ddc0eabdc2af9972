"""Latch and pauses shared by the transactions of one hierarchy."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Kin"]


class Kin:
    """Latch of one hierarchy's links, dooms, states and workspaces, and its pausing threads.

    The latch is held for moments only, never during a call to the store, so that a transaction can
    be doomed while the server works for it. No other latch is taken under it.
    """

    __slots__ = ("_pausing", "latch")

    def __init__(self) -> None:
        self.latch = threading.Lock()
        self._pausing: set[threading.Event] = set()

    def pause(self, wait: Callable[[threading.Event], object], over: Callable[[], bool]) -> None:
        """Call `wait` with an event that `notify_all` sets, until it times out or `over()` is true.

        Parameters
        ----------
        wait : callable
            Returns when the event is set, or after its own timeout.
        over : callable
            Returns whether the pause is over; called before the first wait and after each
            `notify_all`.
        """
        event = threading.Event()
        with self.latch:
            self._pausing.add(event)
        try:
            while not over():
                wait(event)
                if not event.is_set():
                    return
                event.clear()
        finally:
            with self.latch:
                self._pausing.discard(event)

    def notify_all(self) -> None:
        """Wake all pausing threads, so that they check again. REQUIRES: the latch."""
        for event in self._pausing:
            event.set()
