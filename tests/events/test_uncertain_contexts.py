"""Contexts in unknown order: what is certain is made at whatever times events happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from activedb.events import AccuracyInterval, Detector, Expression, Occurrence, all_of, event, seq
from tests.drawing import SCALE, Worlds

if TYPE_CHECKING:
    from random import Random

A, B, C = event("A"), event("B"), event("C")


def random_events(random: Random) -> list[Occurrence]:
    found = []
    span_us = random.choice([60, 300])
    for number in range(random.choice([3, 4, 5, 6])):
        low_us = random.randrange(0, span_us)
        high_us = low_us + random.choice([0, 5, 12, 25])
        stamp = AccuracyInterval((low_us + high_us) // 2, low_us, high_us)
        found.append(Occurrence(random.choice("AABBC"), stamp, {"n": number}))
    return sorted(found, key=lambda o: (o.high_us, o.us))


def names(match: Occurrence) -> frozenset[int]:
    return frozenset(leaf.params["n"] for leaf in match.constituents)


def certain(expression: Expression, events: list[Occurrence]) -> list[frozenset[int]]:
    detector, found = Detector(expression, on_uncertain="certain"), []
    for place, o in enumerate(events):
        waiting = [other for other in events[place + 1 :] if other.low_us <= o.high_us]
        found += [names(match) for match in detector.feed(o, None, waiting)]
    return found


def actual(expression: Expression, events: list[Occurrence], random: Random) -> set[frozenset[int]]:
    """Return what is made if the events happened at some times within their intervals."""
    # In whole microseconds: events of the same one count in the order in which they are fed.
    times = [(random.randint(o.low_us, o.high_us), o) for o in events]
    detector, found = Detector(expression), set[frozenset[int]]()
    for us, o in sorted(times, key=lambda item: item[0]):
        exact = Occurrence(o.name, us / 1e6, o.params)
        found.update(names(match) for match in detector.feed(exact))
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("expression", "context"),
    [
        (each, context)
        for context in ("chronicle", "recent", "continuous", "cumulative")
        for each in (seq(A, B), all_of(A, B), seq(A, B, C))
    ],
    ids=repr,
)
def test_certain_match_of_a_context_is_made_at_all_possible_times(
    expression: Expression, context: str
) -> None:
    expression = expression.context(context)
    worlds = Worlds(120 * SCALE, context, expression, matches=1)
    for random in worlds:
        events = random_events(random)
        found = certain(expression, events)
        worlds.met["matches"] += len(found)
        for _ in range(25):
            assert set(found) <= actual(expression, events, random), [str(o) for o in events]
