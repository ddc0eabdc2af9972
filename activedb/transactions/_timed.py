"""Time-limited runs and children, in an API that leaves functions all their parameters."""

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
    """Result of ``db.with_timeout(seconds)``: runs with a time limit."""

    __slots__ = ("_forest", "_timeout_s")

    def __init__(self, forest: Forest, timeout_s: float):
        Limit.after(timeout_s)  # raises on an invalid limit at once
        self._forest = forest
        self._timeout_s = timeout_s

    def run(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run as ``db.run`` does; raise `TransactionTimeout` if all tries take too long."""
        return self._forest.run(
            calling(function, "run()", args, kwargs),
            Run(of_application=True, called=getattr(function, "__qualname__", "")),
            timeout=self._timeout_s,
        )


class TimedSpawns:
    """Result of ``t.with_timeout(seconds)``: children with a time limit."""

    __slots__ = ("_parent", "_timeout_s")

    def __init__(self, parent: Transaction, timeout_s: float):
        Limit.after(timeout_s)
        self._parent = parent
        self._timeout_s = timeout_s

    def spawn(
        self, function: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> Child[T]:
        """Spawn as ``t.spawn`` does; raise `TransactionTimeout` if the child takes too long.

        The limit begins now, and includes the wait for a thread and all tries.
        """
        return self._parent.spawn_limited(
            calling(function, "spawn()", args, kwargs), timeout=self._timeout_s
        )
