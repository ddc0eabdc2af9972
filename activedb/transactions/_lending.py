"""Lending of a hierarchy's connection to other hierarchies, until its commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Lending"]


class Lending:
    """Gate for causally dependent transactions that use the connection of another hierarchy."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._is_open = True

    @contextmanager
    def use(self) -> Iterator[bool]:
        """Use the connection for one read; yield False if that is no longer allowed."""
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
        """Refuse further uses, without waiting for the present ones."""
        with self._changed:
            self._is_open = False

    def close(self) -> None:
        """Refuse further uses, and wait until the present ones have ended."""
        self.shut()
        with self._changed:
            self._changed.wait_for(lambda: not self._users)
