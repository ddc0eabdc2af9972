"""Memory of Spark's Python processes between tasks."""

from __future__ import annotations

import gc
from functools import cache


@cache
def keep_what_is_loaded() -> None:
    """Hide imported objects from the garbage collector, once per process.

    Spark collects all garbage after each task. Scanning all that activedb imports each time would
    take far longer than a small task does.
    """
    gc.collect()
    gc.freeze()
