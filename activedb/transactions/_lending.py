"""Letting others use the connection of a hierarchy, up to its commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Lending"]


class Lending:
    """Who uses a hierarchy's connection besides its own transactions: causally dependent ones."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._is_open = True

    @contextmanager
    def use(self) -> Iterator[bool]:
        """For one read: whether the connection may be used in the block, and is not closed."""
        with self._changed:
            is_open = self._is_open
            self._users += is_open
        try:
            yield is_open
        finally:
            if is_open:
                with self._changed:
                    self._users -= 1
                    self._changed.notify_all()

    def shut(self) -> None:
        """Let nobody use it any more, without waiting for those who do."""
        with self._changed:
            self._is_open = False

    def close(self) -> None:
        """Let nobody use it any more; returns when nobody does."""
        self.shut()
        with self._changed:
            self._changed.wait_for(lambda: not self._users)
