"""What guards the uses of one session's connection."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol

__all__ = ["Latch"]


class Latch(Protocol):
    """A re-entrant latch, as `threading.RLock` is one."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take the latch; False if it is not free and `blocking` is False."""
        ...

    @property
    def release(self) -> Callable[[], object]:
        """Gives it back."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...
