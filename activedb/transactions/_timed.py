"""Runs and children with a limit of time, spelt so that functions keep all their parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from activedb.functions import calling
from activedb.transactions._deadlines import Limit
from activedb.transactions._hierarchy import Run

if TYPE_CHECKING:
    from activedb.transactions._children import Child
    from activedb.transactions._forest import Forest
    from activedb.transactions._transaction import Transaction

__all__ = ["TimedRuns", "TimedSpawns"]

P = ParamSpec("P")
T = TypeVar("T")


class TimedRuns:
    """What ``db.with_timeout(seconds)`` returns."""

    __slots__ = ("_forest", "_timeout_s")

    def __init__(self, forest: Forest, timeout_s: float):
        Limit.after(timeout_s)  # refuses what is no limit where it is written
        self._forest = forest
        self._timeout_s = timeout_s

    def run(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """As ``db.run``, with `TransactionTimeout` when all tries together take too long."""
        return self._forest.run(
            calling(function, "run()", args, kwargs),
            Run(of_application=True, called=getattr(function, "__qualname__", "")),
            timeout=self._timeout_s,
        )


class TimedSpawns:
    """What ``t.with_timeout(seconds)`` returns."""

    __slots__ = ("_parent", "_timeout_s")

    def __init__(self, parent: Transaction, timeout_s: float):
        Limit.after(timeout_s)
        self._parent = parent
        self._timeout_s = timeout_s

    def spawn(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Child[T]:
        """As ``t.spawn``, with `TransactionTimeout` when the child takes too long.

        The time begins now, and counts the wait for a thread and all tries.
        """
        return self._parent.spawn_limited(
            calling(function, "spawn()", args, kwargs), timeout=self._timeout_s
        )
