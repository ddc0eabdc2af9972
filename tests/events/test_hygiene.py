"""The hygiene logic of Wang, Rundensteiner and Ellison 2011 (figure 1, examples 1 to 3).

As far as detection goes: a table of statuses with versions stands for the shared store, which the
queries read as of the time of their last event. The anomalies of the examples come about when they
read at the time of processing instead. With rules and the store: `tests/streams`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import Any

import pytest

from activedb.events import Detector, Occurrence, event, occurrence, part, query, seq


class Statuses:
    """A status of each worker, with its versions by time."""

    def __init__(self) -> None:
        self._versions: dict[int, list[tuple[int, str]]] = {}

    def set(self, worker: int, us: int, status: str) -> None:
        self._versions.setdefault(worker, [(0, "safe")]).append((us, status))
        self._versions[worker].sort()

    def as_of(self, worker: int, us: int) -> str:
        """The status before what the event of this very time does to it."""
        versions = self._versions.get(worker, [(0, "safe")])
        return versions[bisect_right(versions, (us - 1, "~")) - 1][1]

    def latest(self, worker: int) -> str:
        return self._versions.get(worker, [(0, "safe")])[-1][1]


def has(status: str, last: str) -> Any:
    """A reading: the worker has a status as of the match's last event."""

    def reads(store: Statuses, parts: Any) -> bool:
        o = parts[last]
        return store.as_of(o.params["worker"], o.us) == status

    return reads


def has_now(status: str, last: str) -> Any:
    """The same, read when it is processed, as the push-based model does."""

    def reads(store: Statuses, parts: Any) -> bool:
        return store.latest(parts[last].params["worker"]) == status

    return reads


EXIT, ENTER, SANITIZE, MASK = (event(name) for name in ("EXIT", "ENTER", "SANITIZE", "MASK"))
returned = {"worker": part("ENTER").worker}
PATTERN_1 = (
    seq(EXIT, ~SANITIZE, ENTER)
    .same("worker")
    .where(part("EXIT").location != part("ENTER").location)
    .within(45)
)
PATTERN_2 = seq(MASK, EXIT).same("worker").within(5)
Q1 = query("Q1", PATTERN_1.reading(has("safe", "ENTER")), returned)
Q2 = query("Q2", PATTERN_2.reading(has("warning", "EXIT")))


def at(name: str, timestamp: float, location: int = 0, worker: int = 7) -> Occurrence:
    return occurrence(name, timestamp=timestamp, worker=worker, location=location)


def outputs(
    events: Iterable[Occurrence], queries: Sequence[Any] = (Q1, Q2)
) -> tuple[list[tuple[str, Any]], Statuses]:
    """Process events as they come: R1 makes a worker "warning", R2 "safe"."""
    statuses = Statuses()
    detectors = [Detector(one) for one in queries]
    found = []
    for o in events:
        matches = [match for detector in detectors for match in detector.feed(o, statuses)]
        for match in matches:
            found.append((match.name, match.timestamp))
            becomes = {"Q1": "warning", "Q2": "safe"}[match.name]
            statuses.set(match.params["worker"], match.us, becomes)
    return found, statuses


EXIT_2, ENTER_10, EXIT_15 = at("EXIT", 2, 1), at("ENTER", 10, 2), at("EXIT", 15, 2)
MASK_1, MASK_14 = at("MASK", 1), at("MASK", 14)


def test_hygiene_example_1_in_order_q1_matches_and_later_q2_sees_its_effect() -> None:
    events = [MASK_1, EXIT_2, ENTER_10, MASK_14, EXIT_15]
    found, statuses = outputs(events)
    # Not Q2 at 2: the worker was "safe" then.
    assert found == [("Q1", 10), ("Q2", 15)]
    assert [statuses.as_of(7, us * 1_000_000) for us in (2, 10, 11, 15, 16)] == [
        "safe",
        "safe",
        "warning",
        "warning",
        "safe",
    ]


def test_hygiene_example_2_read_too_late_only_happens_to_who_reads_what_is_latest() -> None:
    # Exit 2 is evaluated by Q2 after enter 10 was by Q1.
    q1, q2 = Detector(Q1), Detector(Q2)
    push = Detector(query("Q2", PATTERN_2.reading(has_now("warning", "EXIT"))))
    statuses = Statuses()
    q1.feed(EXIT_2, statuses)
    [match] = q1.feed(ENTER_10, statuses)
    statuses.set(7, match.us, "warning")
    for detector in (q2, push):
        detector.feed(MASK_1, statuses)
    assert len(push.feed(EXIT_2, statuses)) == 1  # the anomaly
    assert q2.feed(EXIT_2, statuses) == []


def test_hygiene_example_3_write_too_late_needs_the_events_in_order() -> None:
    # Exit 15 is evaluated by Q2 before R1 writes: no version can help that. So events are processed
    # in order, however they come.
    unordered, _ = outputs([MASK_14, EXIT_15, EXIT_2, ENTER_10])
    assert unordered == [("Q1", 10)]  # the anomaly: Q2 is missing
    for arrived in permutations([MASK_1, EXIT_2, ENTER_10, MASK_14, EXIT_15]):
        found, _ = outputs(sorted(arrived, key=lambda o: o.us))
        assert found == [("Q1", 10), ("Q2", 15)]


@pytest.mark.parametrize(
    ("events", "matches"),
    [
        ([EXIT_2, at("SANITIZE", 5), ENTER_10], 0),
        ([EXIT_2, at("SANITIZE", 5, worker=8), ENTER_10], 1),
        ([EXIT_2, at("SANITIZE", 2), ENTER_10], 1),
        ([EXIT_2, at("SANITIZE", 10), ENTER_10], 1),
        ([EXIT_2, at("ENTER", 47, 2)], 1),
        ([EXIT_2, at("ENTER", 47.000001, 2)], 0),
        ([EXIT_2, at("ENTER", 10, 1)], 0),  # the room that he left
        ([EXIT_2, at("ENTER", 10, 2, worker=8)], 0),
        ([ENTER_10, EXIT_15], 0),
        # Warned already: the second one changes nothing.
        ([EXIT_2, ENTER_10, EXIT_15, at("ENTER", 20, 3)], 1),
    ],
)
def test_hygiene_q1_matches_leaving_and_entering_without_sanitizing(
    events: list[Occurrence], matches: int
) -> None:
    found, _ = outputs(events, [Q1])
    assert len(found) == matches


@pytest.mark.parametrize(("mask", "matches"), [(10, 1), (9.999999, 0), (14, 1), (15, 0), (16, 0)])
def test_hygiene_q2_matches_a_mask_at_most_five_seconds_before_the_exit(
    mask: float, matches: int
) -> None:
    statuses = Statuses()
    statuses.set(7, 9_000_000, "warning")
    detector = Detector(Q2)
    found = []
    for o in sorted([at("MASK", mask), EXIT_15], key=lambda o: o.us):
        found += detector.feed(o, statuses)
    assert len(found) == matches


def test_hygiene_each_worker_has_a_status_of_his_own() -> None:
    events = [o for w in (7, 8) for o in (at("EXIT", 2, 1, w), at("ENTER", 10, 2, w))]
    events += [at("MASK", 14, worker=8), at("EXIT", 15, 2, worker=8), at("EXIT", 15, 2, worker=7)]
    found, statuses = outputs(sorted(events, key=lambda o: o.us))
    assert found == [("Q1", 10), ("Q1", 10), ("Q2", 15)]
    assert (statuses.latest(7), statuses.latest(8)) == ("warning", "safe")
