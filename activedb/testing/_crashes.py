"""Errors and process deaths at named points of a commit, or before and after a rule."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from activedb.database import Database
from activedb.errors import ConfigurationError
from activedb.firing import Ran, RuleListener, Triggered
from activedb.spelling import did_you_mean
from activedb.store.session import TRIGGER_POINTS
from activedb.transactions import Node, current_transaction

__all__ = ["POINTS", "Crash", "Crashed", "arm", "checked_point", "crashing"]

POINTS: tuple[str, ...] = (*TRIGGER_POINTS, "before rule NAME", "after rule NAME")
"""Points at which a crash can be injected: points of a commit, and begin and end of a rule."""

_OF_RULES = ("before rule ", "after rule ")


class Crashed(Exception):  # named after the event
    """Error raised at the point that a test has named."""


class Crash(RuleListener):
    """Action at the n-th time that a point is reached; safe to use from many threads.

    Parameters
    ----------
    point : str
        One of `POINTS`, with a rule's name for NAME.
    nth : int
        Number of the time, from 1, counted over all threads.
    act : callable ``(point)``
        The action.
    on_reach : callable ``(point)``, optional
        Called at every point that is reached, before the action.

    Attributes
    ----------
    reached : Counter of str
        Number of times each point was reached.
    has_happened : bool
    """

    def __init__(
        self,
        point: str,
        nth: int,
        act: Callable[[str], object],
        on_reach: Callable[[str], object] = lambda point: None,
    ):
        self.point = checked_point(point)
        if isinstance(nth, bool) or not isinstance(nth, int) or nth < 1:
            raise ConfigurationError(f"nth counts from 1, and is not {nth!r}")
        self.reached: Counter[str] = Counter()
        self.has_happened = False
        self._nth = nth
        self._act = act
        self._on_reach = on_reach
        self._latch = threading.Lock()

    def reach(self, point: str) -> None:
        """Record that a point is reached, and act if it is the chosen one."""
        with self._latch:
            self.reached[point] += 1
            is_it = point == self.point and self.reached[point] == self._nth
            self.has_happened = self.has_happened or is_it
            self._on_reach(point)
        if is_it:
            self._act(point)

    def starts(self, s: Node, item: Triggered) -> None:
        self.reach(f"before rule {item.rule.name}")

    def ran(
        self,
        s: Node,
        item: Triggered,
        outcome: Ran,
        seconds: float,
        error: BaseException | None,
    ) -> None:
        if outcome == "acted":
            self.reach(f"after rule {item.rule.name}")

    def missed(self) -> str:
        """Return the reason why the action has not run."""
        counts = ", ".join(f"{point} ({count})" for point, count in sorted(self.reached.items()))
        return (
            f"the point {self.point!r} was not reached {self._nth} time"
            f"{'' if self._nth == 1 else 's'}; reached were: {counts or 'none'}"
        )


def checked_point(point: str) -> str:
    """Return `point`, if such a point exists.

    Raises
    ------
    ConfigurationError
        If it does not exist.
    """
    is_of_rule = isinstance(point, str) and point.startswith(_OF_RULES)
    if point in TRIGGER_POINTS or (is_of_rule and point.split(" ", 2)[2:] != [""]):
        return point
    raise ConfigurationError(
        f"there is no point {point!r}: {did_you_mean(point, POINTS)}; the points are "
        f"{', '.join(POINTS)}"
    )


def arm(db: Database, crash: Crash) -> Callable[[], None]:
    """Make a database report its points to a crash; return a function that undoes this."""
    before = db._store.trigger

    def reach(point: str) -> None:
        before(point)
        crash.reach(point)

    db._store.trigger = reach
    db._triggering.listeners.add(crash)

    def disarm() -> None:
        db._store.trigger = before
        db._triggering.listeners.remove(crash)

    return disarm


@contextmanager
def crashing(databases: Sequence[Database], point: str, nth: int = 1) -> Iterator[Crash]:
    """Raise `Crashed` at a point, and end the block there.

    It is an error, not a death: the thread that runs the transaction gets it and cleans up.
    `run_until_killed` shows what a killed process leaves behind.

    Raises
    ------
    ConfigurationError
        If there is no such point.
    AssertionError
        If it was not reached, not even by the detached rules that the block started.
    """
    __tracebackhide__ = True

    def raise_there(point: str) -> None:
        raise Crashed(f"as the test has asked for: {point}")

    crash = Crash(point, nth, raise_there)
    disarm = [arm(db, crash) for db in databases]
    try:
        yield crash
        if not crash.has_happened and current_transaction() is None:
            for db in databases:
                db.wait_idle()
    except Exception as error:
        if not _is_of_crash(error):
            raise
    finally:
        for each in disarm:
            each()
    if not crash.has_happened:
        raise AssertionError(crash.missed())


def _is_of_crash(error: BaseException | None) -> bool:
    """Return whether an error is that of the crash, or was raised because of it."""
    while error is not None:
        if isinstance(error, Crashed):
            return True
        error = error.__cause__  # not the context: a test's own failure after the crash has one
    return False
