"""Poller of the process, shared by all pages, with the bounded history that it keeps.

However many browsers are open, the process is asked once per look, and what a page shows is
computed once per look (`PollResult.once`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from activedb.dashboard._words import short
from activedb.errors import ActiveDBError

if TYPE_CHECKING:
    from activedb.monitor import Source

__all__ = ["Point", "PointHistory", "PollResult", "Poller"]


POINTS_MAX = 600  # five minutes, at two looks per second

# Rates to draw: name → the counters that are added up.
_RATES: dict[str, tuple[str, ...]] = {
    "committed": ("transactions_committed",),
    "aborted": ("transactions_aborted",),
    "retried": ("transactions_retried",),
    "subtransactions": ("subtransactions_committed", "subtransactions_aborted"),
    "fired": ("rules_fired",),
    "failed": ("rules_failed",),
    "matches": ("matches",),
}


@dataclass(frozen=True, slots=True)
class Point:
    """Measurements of one poll.

    Attributes
    ----------
    at_s : float
        Time of the look by the clock of the observed process; seconds since 1970.
    rates : dict of str to float
        By name, per second, between the previous look and this one.
    latencies_s : dict of str to float
        Quantiles in seconds, by ``transaction p50`` and the like.
    """

    at_s: float
    rates: dict[str, float]
    latencies_s: dict[str, float]


class PointHistory:
    """Bounded list of at most `POINTS_MAX` points, oldest first.

    ``number`` grows by one with each point, ``generation`` with each `clear`.

    One thread adds points; others may read `points`, which is a copy. Adding is O(1).
    """

    def __init__(self) -> None:
        self.number = 0
        self.generation = 0
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._before: Mapping[str, Any] | None = None

    def add(self, state: Mapping[str, Any]) -> Point | None:
        """Add a state; the first one, and one with the same time as the last, makes no point."""
        before, self._before = self._before, state
        if before is None:
            return None
        now_s = float(state["process"]["now_s"])
        seconds = now_s - float(before["process"]["now_s"])
        if seconds <= 0:
            self._before = before
            return None
        rates = {
            name: max(0, _sum(state, names) - _sum(before, names)) / seconds
            for name, names in _RATES.items()
        }
        latencies_s = {
            f"{kind} {quantile}": float(values[quantile])
            for kind, values in state["latency_s"].items()
            for quantile in ("p50", "p99")
            if values.get("count") and values.get(quantile) is not None
        }
        point = Point(now_s, rates, latencies_s)
        self._points.append(point)
        self.number += 1
        return point

    def clear(self) -> None:
        """Drop all points, as another process is observed from now on."""
        self._points.clear()
        self._before = None
        self.generation += 1

    @property
    def rates(self) -> Mapping[str, float]:
        """Rates of the last point; empty if there is none."""
        return self._points[-1].rates if self._points else {}

    @property
    def points(self) -> list[Point]:
        """All points, oldest first."""
        return list(self._points)


def _sum(state: Mapping[str, Any], names: tuple[str, ...]) -> int:
    counters = state["counters"]
    return sum(int(counters.get(name, 0)) for name in names)


_T = TypeVar("_T")

EVENTS_MAX = 1_000
RECENT_MAX = 1_000
_ERROR_MAX = 300

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PollResult:
    """Result of one poll; shared by all pages and never modified.

    Attributes
    ----------
    number : int
        Grows by one with each look.
    state : mapping or None
        The last state received, in the form of ``/api/state``; None if there is none yet.
    error : str
        Reason why the last look failed, and what to do; empty if it did not fail.
    events, recent : list
        The last events, and the last transactions that have ended, oldest first.
    skipped : int
        Events and ended transactions since the previous look that the process left out, as its
        answers are bounded.
    seconds : float
        Duration of the look.
    rates : mapping
        Rates of the last point of the history; empty if there is none.
    """

    number: int
    state: Mapping[str, Any] | None
    error: str
    events: list[Mapping[str, Any]]
    recent: list[Mapping[str, Any]]
    skipped: int
    seconds: float
    rates: Mapping[str, float] = field(default_factory=dict)
    _made: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def once(self, make: Callable[[PollResult], _T]) -> _T:
        """Return `make` of this snapshot, computed once for all callers."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast("_T", self._made[make])


class Poller:
    """Poller of a source, twice a second while a page is watched, seldom otherwise.

    Everything but the look itself runs on the event loop that calls `run`; the look runs on a
    thread, as it may wait for another process.

    Parameters
    ----------
    source : Source
        The source to poll: ``activedb.monitor.Monitor`` or ``RemoteMonitor``.
    every_s, idle_s : float
        Seconds between two looks with and without watchers. After an error the longer one is used.
    """

    def __init__(self, source: Source, *, every_s: float = 0.5, idle_s: float = 2.0):
        self.source = source
        self.history = PointHistory()
        self.snapshot = PollResult(0, None, "", [], [], 0, 0.0)
        self._every_s = every_s
        self._idle_s = idle_s
        self._since = 0
        self._started_s: float | None = None
        self._watchers = 0
        self._wanted = asyncio.Event()
        self._told = asyncio.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Count a watcher of a page for the duration of the block."""
        self._watchers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._watchers -= 1

    async def after(self, number: int) -> PollResult:
        """Wait for a snapshot after that number, and return the newest one."""
        while self.snapshot.number <= number:
            await self._told.wait()
        return self.snapshot

    async def run(self) -> None:
        """Look repeatedly, until cancelled."""
        while True:
            is_watched = self._watchers > 0 and not self.snapshot.error
            self._wanted.clear()
            with contextlib.suppress(TimeoutError):
                wait_s = self._every_s if is_watched else self._idle_s
                if is_watched or self.snapshot.error:
                    await asyncio.sleep(max(0.0, wait_s - self.snapshot.seconds))
                else:
                    await asyncio.wait_for(self._wanted.wait(), wait_s)
            await self.look()

    async def look(self) -> None:
        """Look once, and wake the tasks that wait in `after`."""
        began_s = asyncio.get_running_loop().time()
        try:
            state: Mapping[str, Any] = await asyncio.to_thread(self.source.state, self._since)
            self._take(state, asyncio.get_running_loop().time() - began_s)
        except Exception as error:
            self._fail(error)
        told, self._told = self._told, asyncio.Event()
        told.set()

    def _take(self, state: Mapping[str, Any], seconds: float) -> None:
        before = self.snapshot
        events, recent = before.events, before.recent
        new_events, new_recent = state["events"], state["recent"]
        since, self._since = self._since, int(state["last_seq"])
        is_another = self._started_s not in (None, state["process"]["started_s"])
        self._started_s = state["process"]["started_s"]
        if is_another or self._since < since:
            self.history.clear()
            if since > 0:  # the `since` that was sent was a number of another process
                self._since = 0
                new_events, new_recent = [], []  # the next look gets all
            events, recent = [], []
        self.history.add(state)
        self.snapshot = PollResult(
            before.number + 1,
            state,
            "",
            _newest(events, new_events, EVENTS_MAX),
            _newest(recent, new_recent, RECENT_MAX),
            int(state.get("skipped", 0)),
            seconds,
            self.history.rates,
        )

    def _fail(self, error: Exception) -> None:
        text = short(error, _ERROR_MAX)
        if not isinstance(error, ActiveDBError):
            _log.warning("the look at the process has failed: %s", type(error).__name__)
            text = f"{type(error).__name__}: {text}"
        before = self.snapshot
        self.snapshot = PollResult(
            before.number + 1,
            before.state,
            text,
            before.events,
            before.recent,
            0,
            0.0,
            before.rates,
        )


def _newest(
    before: list[Mapping[str, Any]], more: list[Mapping[str, Any]], most: int
) -> list[Mapping[str, Any]]:
    if not more:
        return before
    return list(deque([*before, *more], maxlen=most))
