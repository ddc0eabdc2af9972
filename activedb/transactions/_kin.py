"""What the transactions of one hierarchy share about living and ending."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Kin"]


class Kin:
    """The latch of one hierarchy's parents, children, dooms and workspaces; who pauses in it.

    The latch is held for moments only, never while the store is used, so that a transaction can
    be told to end while the server works for it. Nothing else is taken under it.
    """

    __slots__ = ("_pausing", "latch")

    def __init__(self) -> None:
        self.latch = threading.Lock()
        self._pausing: set[threading.Event] = set()

    def pause(self, wait: Callable[[threading.Event], object], over: Callable[[], bool]) -> None:
        """Call `wait` with an event that `rouse` sets, until it is not set or `over()` is true.

        Parameters
        ----------
        wait : callable
            Returns when the event is set, or when enough time has passed.
        over : callable
            Whether there is no reason to wait any more; asked after each `rouse`.
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

    def rouse(self) -> None:
        """Have those who pause look again. REQUIRES: the latch."""
        for event in self._pausing:
            event.set()
