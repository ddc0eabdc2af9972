"""Deferral of Ctrl-C over blocks that must not be interrupted halfway."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["defer_sigint"]


@contextmanager
def defer_sigint() -> Iterator[None]:
    """Delay a first Ctrl-C until the end of the block; a second one is not delayed.

    Only a SIGINT handler set by Python code is delayed, and only in the main thread: it runs in no
    other.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(frame)
        if len(came) > 1:
            handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if len(came) == 1:
            handler(signal.SIGINT, came[0])
