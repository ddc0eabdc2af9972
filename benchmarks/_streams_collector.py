"""Keeps what a benchmark has made so far from the garbage collector, which stays on.

The modules that are loaded here, a compiler among them, are half a million objects that no program
of its own would have; to look through them once takes longer than many a run.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["frozen"]


@contextmanager
def frozen() -> Iterator[None]:
    """While this is open only objects that were made in it are collected."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
