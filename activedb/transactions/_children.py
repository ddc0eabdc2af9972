"""Handles of parallel children."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from activedb.transactions._node import Node

__all__ = ["Child"]

T = TypeVar("T")


class Child(Generic[T]):
    """A child that runs in parallel with its parent; returned by ``spawn``."""

    __slots__ = ("_parent", "_seen", "_task")

    def __init__(self, parent: Node, call: Callable[[], T]):
        self._parent = parent
        self._seen = False
        self._task = parent.forest.pool.submit(call)

    def result(self) -> T:
        """Wait for the child and return its result, or raise what it raised.

        While it waits the parent offers its locks to the child.
        """
        self._parent.offer()
        self._seen = True
        return self._task.result()

    def wait(self) -> None:
        """Wait until the child has ended, running it here if no thread has taken it."""
        self._task.wait()

    def raise_if_unseen(self) -> None:
        """Raise the child's error unless `result` has delivered it."""
        if not self._seen and self._task.error is not None:
            raise self._task.error
