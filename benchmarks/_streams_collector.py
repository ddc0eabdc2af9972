"""Exemption of existing objects from the garbage collector, which stays enabled.

The modules loaded here, a compiler among them, are half a million objects that no ordinary program
has; scanning them once takes longer than many runs.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["frozen"]


@contextmanager
def frozen() -> Iterator[None]:
    """Let the block collect only objects that were made in it."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
