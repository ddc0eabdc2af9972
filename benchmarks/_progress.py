"""Progress on standard error: a bar on a terminal, else a line every two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["progress"]

_SILENT_S = 2.0


@contextmanager
def progress(steps: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call at the beginning of each step, with a description of the step."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(steps)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)
        begun = 0

        def step(text: str) -> None:
            nonlocal begun
            bar.update(task, description=text, completed=begun)
            begun += 1

        yield step


def _lines(steps: int) -> Callable[[str], None]:
    begun = 0
    said_s = time.monotonic()

    def step(text: str) -> None:
        nonlocal begun, said_s
        begun += 1
        now_s = time.monotonic()
        if now_s - said_s >= _SILENT_S:
            print(f"{begun}/{steps} {text}", file=sys.stderr)
            said_s = now_s

    return step
