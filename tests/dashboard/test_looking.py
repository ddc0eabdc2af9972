"""The one poller: what it keeps, how rates come about, and what a failed look leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from activedb.dashboard._poller import (
    EVENTS_MAX,
    POINTS_MAX,
    RECENT_MAX,
    PointHistory,
    Poller,
    PollResult,
)
from activedb.dashboard._tables import Row, difference
from activedb.errors import ServerUnreachable
from tests.dashboard.recorded import Recorded


class Playing(Recorded):
    """A recorded source with a clock that the test moves, and that can be made to fail."""

    def __init__(self) -> None:
        super().__init__(ended=3, events=2)
        self.now_s = 1000.0
        self.asked: list[int] = []
        self.problem: Exception | None = None
        self.more: dict[str, Any] = {}

    def state(self, since: int = 0) -> dict[str, Any]:
        self.asked.append(since)
        if self.problem is not None:
            raise self.problem
        state = super().state(since)
        self.now_s += 0.5
        process = state["process"] | {"now_s": self.now_s}
        return state | {"process": process | self.more.get("process", {})}


def looks(source: Playing, number: int) -> Poller:
    async def look() -> Poller:
        poller = Poller(source)
        for _ in range(number):
            await poller.look()
        return poller

    return asyncio.run(look())


def test_poller_asks_only_for_what_came_after_its_last_look() -> None:
    source = Playing()
    poller = looks(source, 3)
    assert source.asked == [0, 5, 10]
    assert [event["seq"] for event in poller.snapshot.events] == [4, 5, 9, 10, 14, 15]
    assert len(poller.snapshot.recent) == 9
    assert poller.snapshot.number == 3


def test_rates_are_differences_of_counters_over_the_time_of_the_process() -> None:
    poller = looks(Playing(), 3)
    points = poller.history.points
    assert [point.rates["committed"] for point in points] == [6.0, 6.0]  # 3 in half a second
    assert poller.snapshot.rates == points[-1].rates
    assert points[0].latencies_s["transaction p50"] < points[0].latencies_s["transaction p99"]


def test_history_keeps_a_bounded_number_of_points() -> None:
    history = PointHistory()
    state = Recorded().state()
    for n in range(POINTS_MAX + 50):
        history.add(state | {"process": state["process"] | {"now_s": float(n)}})
    assert len(history.points) == POINTS_MAX
    assert history.number == POINTS_MAX + 49


def test_state_of_the_same_moment_makes_no_point() -> None:
    history = PointHistory()
    state = Recorded().state()
    assert history.add(state) is None
    assert history.add(state) is None
    assert history.points == []


def test_what_is_kept_for_pages_is_bounded() -> None:
    poller = looks(Playing(), 600)
    assert len(poller.snapshot.events) == EVENTS_MAX
    assert len(poller.snapshot.recent) == RECENT_MAX


def test_failed_look_keeps_the_last_state_and_says_why() -> None:
    source = Playing()

    async def look() -> tuple[PollResult, PollResult, PollResult]:
        poller = Poller(source)
        await poller.look()
        first = poller.snapshot
        source.problem = ServerUnreachable("the process does not answer; start it")
        await poller.look()
        second = poller.snapshot
        source.problem = None
        await poller.look()
        return first, second, poller.snapshot

    first, second, third = asyncio.run(look())
    assert second.state is first.state
    assert second.error == "the process does not answer; start it"
    assert third.error == ""


class Remembering(Playing):
    """A source that reports an event again if it is asked for it again."""

    def __init__(self) -> None:
        super().__init__()
        self._raised: list[dict[str, Any]] = []

    def state(self, since: int = 0) -> dict[str, Any]:
        state = super().state(since)
        self._raised += state["events"]
        return state | {"events": [each for each in self._raised if each["seq"] > since]}

    def restart(self) -> None:
        """Be another process at the same address, with more events so far."""
        self.more["process"] = {"started_s": 5.0}
        self._seq = 0
        self._raised.clear()
        for _ in range(10):
            self.state()


@pytest.mark.parametrize("looked", [1, 2, 3])
def test_another_process_at_the_same_place_begins_a_new_history(looked: int) -> None:
    source = Remembering()

    async def look() -> Poller:
        poller = Poller(source)
        for _ in range(4):
            await poller.look()
        source.restart()
        for _ in range(looked):
            await poller.look()
        return poller

    poller = asyncio.run(look())
    assert poller.history.generation == 1
    seen = [event["seq"] for event in poller.snapshot.events]
    raised = [event["seq"] for event in source._raised]
    # The first look has asked for what is newer than the other process's last event: of no use.
    assert seen == (raised if looked > 1 else [])


def test_waiting_for_a_snapshot_ends_with_the_next_look() -> None:
    async def wait() -> int:
        poller = Poller(Playing())
        waiting = asyncio.create_task(poller.after(0))
        await poller.look()
        return (await waiting).number

    assert asyncio.run(wait()) == 1


def test_poller_looks_again_as_soon_as_somebody_watches() -> None:
    source = Playing()

    async def watch() -> tuple[int, int]:
        poller = Poller(source, every_s=0, idle_s=1e6)
        running = asyncio.create_task(poller.run())
        await asyncio.sleep(0)
        idle = len(source.asked)
        with poller.watching():
            await poller.after(2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return idle, len(source.asked)

    idle, watched = asyncio.run(watch())
    assert idle == 0
    assert watched >= 3


def test_what_is_made_of_a_snapshot_is_made_once() -> None:
    made: list[int] = []

    def make(snapshot: PollResult) -> int:
        made.append(snapshot.number)
        return snapshot.number

    snapshot = looks(Playing(), 1).snapshot
    assert [snapshot.once(make), snapshot.once(make)] == [1, 1]
    assert made == [1]


@pytest.mark.parametrize(
    ("new", "patch"),
    [
        ({"a": 1, "b": 2}, None),
        ({"a": 1, "b": 3}, {"put": ["b"], "drop": []}),
        ({"b": 2}, {"put": [], "drop": ["a"], "order": ["b"]}),
        ({"b": 2, "a": 1}, {"put": [], "drop": [], "order": ["b", "a"]}),
        ({"c": 9, "a": 1}, {"put": ["c"], "drop": ["b"], "order": ["c", "a"]}),
    ],
)
def test_difference_has_changed_rows_only(new: dict[str, int], patch: Any) -> None:
    def rows(values: dict[str, int]) -> dict[str, Row]:
        return {key: {"key": key, "value": value} for key, value in values.items()}

    found = difference(rows({"a": 1, "b": 2}), rows(new))
    if found is not None:
        found["put"] = [row["key"] for row in found["put"]]
    assert found == patch
