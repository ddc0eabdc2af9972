"""Ctrl-C, held back while it would leave something half done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["held_back"]


@contextmanager
def held_back() -> Iterator[None]:
    """Have Ctrl-C come when the block has ended; a second one comes at once."""
    handler = signal.getsignal(signal.SIGINT)
    came: list[FrameType | None] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(frame)
        if callable(handler) and len(came) > 1:
            handler(number, frame)

    is_held = callable(handler)
    if is_held:
        try:
            signal.signal(signal.SIGINT, note)
        except ValueError:  # not the main thread, to which alone it comes
            is_held = False
    try:
        yield
    finally:
        if is_held:
            signal.signal(signal.SIGINT, handler)
        if callable(handler) and len(came) == 1:
            handler(signal.SIGINT, came[0])
