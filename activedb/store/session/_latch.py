"""Latch that guards the uses of one session's connection."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

__all__ = ["Latch"]


class Latch(Protocol):
    """Re-entrant latch with the interface of `threading.RLock`."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take the latch; return False if it is not free and `blocking` is False."""
        ...

    @property
    def release(self) -> Callable[[], object]:
        """Function that releases the latch."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
