"""Random histories: the steps of a detector."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis import strategies as st

from activedb.events import Occurrence

from .choosing import Chooser, Drawn, Thrown

__all__ = [
    "Advance",
    "Course",
    "Cut",
    "Feed",
    "Trim",
    "Withdraw",
    "histories",
    "random_history",
]

LAST = 9


@dataclass(frozen=True)
class Feed:
    name: str
    at: int
    w: int = 0
    x: int = 0
    id: str | None = None

    def occurrence(self, number: int) -> Occurrence:
        params = {"w": self.w, "x": self.x, "n": f"{self.name}@{self.at}#{number}"}
        return Occurrence(self.name, self.at, params, id=self.id)


@dataclass(frozen=True)
class Advance:
    at: int


@dataclass(frozen=True)
class Withdraw:
    """Withdrawal of a feed: the one that was `back` feeds before the last one still present."""

    back: int


@dataclass(frozen=True)
class Trim:
    """Trim to the latest time that nothing later precedes, neither a feed nor what is due."""


@dataclass(frozen=True)
class Cut:
    """A crash: the detector's state is saved, and a fresh detector goes on from it."""


@dataclass(frozen=True)
class Course:
    """Steps that a history may have.

    Attributes
    ----------
    size : int
        The number of feeds, at most.
    ordered : bool
        Whether time is advanced to each event before it is fed; else advances are random.
    withdrawals : int or None
        How many feeds back a withdrawn one may lie; None: no withdrawals.
    trims : bool
        Whether the detector is trimmed now and then.
    late : bool
        Whether time is advanced before every other feed, so that many feeds are late.
    names : str
        The names of events; one that stands there twice is as frequent.
    """

    size: int = 9
    ordered: bool = False
    withdrawals: int | None = None
    trims: bool = True
    late: bool = False
    names: str = "ABC"


def _history(choose: Chooser, course: Course) -> list[Any]:
    # Long lists first: left to itself, Hypothesis draws short ones, in which nothing matches.
    length = choose.pick(range(course.size, -1, -1))
    workers = choose.pick([0, 0, 1])
    last = choose.pick([LAST, 5])
    feeds = [
        Feed(
            choose.pick(course.names),
            choose.integer(0, last),
            choose.integer(0, workers),
            choose.integer(0, 1),
            choose.pick([None, None, "a", "b"]),
        )
        for _ in range(length)
    ]
    if course.ordered or choose.integer(0, 1):
        feeds.sort(key=lambda feed: feed.at)
    steps: list[Any] = []
    for feed in feeds:
        extra = choose.integer(0, 7)
        if extra == 7 and course.withdrawals is not None:
            steps.append(Withdraw(choose.integer(0, course.withdrawals)))
        elif extra == 6 and course.trims:
            steps.append(Trim())
        elif extra == 5:
            steps.append(Cut())
        elif extra == 4 and not course.ordered:
            steps.append(Advance(choose.integer(0, LAST + 3)))
        if course.late and choose.integer(0, 1):
            steps.append(Advance(choose.integer(0, LAST)))
        if course.ordered:
            steps.append(Advance(feed.at))
        steps.append(feed)
    return [*steps, Advance(LAST + 10)]


@st.composite
def histories(draw: st.DrawFn, course: Course) -> list[Any]:
    """Lists of steps."""
    return _history(Drawn(draw), course)


def random_history(random: Random, course: Course) -> list[Any]:
    """A list of steps."""
    return _history(Thrown(random), course)
