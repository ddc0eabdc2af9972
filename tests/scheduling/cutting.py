"""Raise Ctrl-C in the main thread before a chosen line of the package."""

from __future__ import annotations

import linecache
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import activedb

__all__ = ["Line", "cut_before", "lines_of"]

PLACE = str(Path(activedb.__file__).parent)

Line = tuple[str, int]


def _is_telling(line: Line) -> bool:
    # The interpreter traces a `with` line again when it leaves the block. No signal handler runs
    # there: none is checked for between the last call of the block and `__exit__`.
    return not linecache.getline(*line).lstrip().startswith("with ")


@contextmanager
def _traced(seen: Callable[[Line], None]) -> Iterator[None]:
    def local(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            if _is_telling(line):
                seen(line)
        return local

    def entered(frame: FrameType, _event: str, _: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(PLACE) else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def lines_of() -> Iterator[Counter[Line]]:
    """Count how often this thread runs each line of the package."""
    met: Counter[Line] = Counter()

    def seen(line: Line) -> None:
        met[line] += 1

    with _traced(seen):
        yield met


@contextmanager
def cut_before(line: Line, time: int, wait: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Raise Ctrl-C, after `wait`, before a line runs for the given time, counted from 1."""
    left = time
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)

    def seen(other: Line) -> None:
        nonlocal left
        if other == line:
            left -= 1
            if not left:
                wait()
                signal.raise_signal(signal.SIGINT)

    try:
        with _traced(seen):
            yield
    finally:
        signal.signal(signal.SIGINT, handler)
