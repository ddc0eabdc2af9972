"""Pauses of random lengths wherever another thread may be faster.

With ``ACTIVEDB_TEST_JITTER=1`` they find tests whose verdict depends on which thread is first.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["install"]

_LONG_S, _SHORT_S = 0.03, 0.003


def install(seed: int) -> None:
    """Pause before and after threads and the tasks of pools begin, and after waits for events."""
    from activedb.transactions._pool import Pool, PoolTask

    world = random.Random(seed)

    def pause() -> None:
        drawn = world.random()
        if drawn < 0.05:
            time.sleep(world.uniform(0, _LONG_S))
        elif drawn < 0.5:
            time.sleep(world.uniform(0, _SHORT_S))

    def pausing(owner: Any, name: str, *, before: bool = False, after: bool = False) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        @wraps(call)
        def paused(*args: Any, **options: Any) -> Any:
            if before:
                pause()
            try:
                return call(*args, **options)
            finally:
                if after:
                    pause()

        setattr(owner, name, paused)

    pausing(threading.Thread, "run", before=True)
    pausing(threading.Thread, "start", after=True)
    pausing(threading.Event, "wait", after=True)
    pausing(PoolTask, "make_call", before=True)
    pausing(Pool, "submit", after=True)
