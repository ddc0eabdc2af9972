"""Detectors that know of intervals match as others do where the order is known."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from activedb.events import AccuracyInterval, Detector, LocalClock, Occurrence
from tests.drawing import SCALE, Worlds

from .descriptions import Labels, described_made
from .generation import CONTEXTS, EVERYTHING, Plan, random_expression
from .histories import Advance, Course, Feed, random_history
from .reference import Reference

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from activedb.events import Expression

ALL_CONTEXTS = ("unrestricted", *CONTEXTS)
SELECTIONS = ("any", "next", "strict")
SKIPS = ("none", "to_next", "past_last", "to_first", "to_last")
PRIMITIVE = Plan(ending=True, conjunctions=True, reading=True)
BY_READINGS = {
    "primitive": PRIMITIVE,
    "choices": replace(PRIMITIVE, contexts=ALL_CONTEXTS, selections=SELECTIONS, skips=SKIPS),
    "nested": replace(PRIMITIVE, nested=True, contexts=ALL_CONTEXTS),
    "everything": replace(EVERYTHING, reading=True),
}
# The context recent together with a skip may leave certain matches open.
EXACT = {
    "primitive": PRIMITIVE,
    "contexts, selections": replace(PRIMITIVE, contexts=ALL_CONTEXTS, selections=SELECTIONS),
    "contexts, selections, skips": replace(
        PRIMITIVE,
        contexts=("unrestricted", *(name for name in CONTEXTS if name != "recent")),
        selections=SELECTIONS,
        skips=SKIPS,
    ),
}


def compared(
    expression: Expression,
    detector: Detector,
    steps: list[Any],
    stamped: Callable[[Occurrence], Occurrence] = lambda o: o,
) -> int:
    """Tell the detector and the reference, and return how many matches there were."""
    reference, labels = Reference(expression), Labels()
    matches = 0
    for number, step in enumerate(steps):
        if isinstance(step, Advance):
            expected = reference.advance(step.at * 1_000_000, number)
            found = detector.advance(step.at * 1_000_000, number)
        else:
            exact = step.occurrence(number)
            fed = stamped(exact)
            labels.add(exact)
            labels.add(fed)
            expected, found = reference.feed(exact, number), detector.feed(fed, number)
        known = [_of_match(described_made(made, labels)) for made in expected]
        made = [
            {"us": match.us, "parts": labels.of_parts(match.parts)}
            if match.parts
            else labels.of(match)
            for match in found
        ]
        assert made == known, (expression, steps[: number + 1])
        matches += len(made)
    return matches


def _of_match(described: Any) -> Any:
    if isinstance(described, dict):
        return {"us": described["us"], "parts": described["parts"]}
    return described


def random_steps(random: Random, course: Course) -> list[Any]:
    return [s for s in random_history(random, course) if isinstance(s, Feed | Advance)]


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("family", BY_READINGS)
def test_policy_reading_matches_as_if_the_readings_were_exact(
    family: str, is_ordered: bool
) -> None:
    clock = LocalClock("one")

    def stamped(o: Occurrence) -> Occurrence:
        more: dict[str, Any] = {}
        if random.random() < 0.3:
            more = {"node": "n", "local_us": o.us, "local_clock": clock}
        before_us, after_us = (random.choice([0, 0, 1, 2]) * 1_000_000 for _ in range(2))
        stamp = AccuracyInterval(o.us, o.us - before_us, o.us + after_us, **more)
        return Occurrence(o.name, stamp, o.params, id=o.id)

    worlds = Worlds(100 * SCALE, "by readings", family, is_ordered, matches=1)
    for random in worlds:
        expression = random_expression(random, BY_READINGS[family])
        steps = random_steps(random, Course(7, ordered=is_ordered))
        detector = Detector(expression, on_uncertain="reading")
        worlds.met["matches"] += compared(expression, detector, steps, stamped)


@pytest.mark.parametrize("policy", ["certain", "possible"])
@pytest.mark.parametrize("family", EXACT)
def test_exact_times_in_order_leave_nothing_open(family: str, policy: str) -> None:
    worlds = Worlds(100 * SCALE, "exact times", family, policy, matches=1)
    for random in worlds:
        expression = random_expression(random, EXACT[family])
        detector = Detector(expression, on_uncertain=policy)
        # An interval, which is gone again, makes the detector expect that any order is uncertain.
        interval = AccuracyInterval(-90_000_000, -90_000_001, -90_000_000)
        uncertain = [Occurrence(name, interval, {"w": 0, "x": 1}) for name in "ABC"]
        for o in uncertain:
            detector.feed(o, 0)
            detector.withdraw(o)
        steps = random_steps(random, Course(7, ordered=True))
        worlds.met["matches"] += compared(expression, detector, steps)
        assert detector.is_inexact or not any(detector.accepts(o) for o in uncertain)
        assert detector.undecided == ()
