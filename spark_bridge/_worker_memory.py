"""What Spark's Python processes keep in memory between tasks."""

from __future__ import annotations

import gc
from functools import cache


@cache
def keep_what_is_loaded() -> None:
    """Keep what was imported out of the garbage collector's sight, once per process.

    Spark collects all garbage after each task. To look through all that activedb imports each time
    would take far longer than a small task does.
    """
    gc.collect()
    gc.freeze()
