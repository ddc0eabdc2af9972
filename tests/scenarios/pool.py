"""A pool that tells a scenario how the children end that it spawned."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from activedb.transactions._pool import Pool, Task

T = TypeVar("T")


class WatchedPool(Pool):
    """A pool whose tasks can be wrapped by whoever submits them."""

    def __init__(self, threads: int):
        super().__init__(threads)
        self._wrapper = threading.local()

    @contextlib.contextmanager
    def wrapping(self, wrapper: Callable[[Callable[[], Any]], Any]) -> Iterator[None]:
        """Have what this thread submits meanwhile called as ``wrapper(call)``."""
        self._wrapper.call = wrapper
        try:
            yield
        finally:
            self._wrapper.call = None

    def submit(self, call: Callable[[], T], *args: Any, **kwargs: Any) -> Task[T]:
        wrapper = getattr(self._wrapper, "call", None)
        if wrapper is None:
            return super().submit(call, *args, **kwargs)
        return super().submit(lambda: wrapper(call), *args, **kwargs)
