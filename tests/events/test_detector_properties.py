"""The detector against the definition, under late events, withdrawals and trimming."""

from __future__ import annotations

import os
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.events import Detector, Occurrence, detect

from .naive import NaiveDetector, Part, Pattern

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
# By the number of parts, which parts are negated: every arrangement with a positive last part.
SHAPES = [[(*shape, False) for shape in product([False, True], repeat=size)] for size in range(5)]

bounded = settings(max_examples=120 * SCALE, deadline=None)


@st.composite
def patterns(draw: st.DrawFn) -> Pattern:
    negated = draw(st.sampled_from(SHAPES).flatmap(st.sampled_from))
    parts = tuple(
        Part(
            name=draw(st.sampled_from("AABBC")),
            alias=f"p{place}",
            negated=is_negated,
            x_min=draw(st.sampled_from([None] * 4 + [1])),
        )
        for place, is_negated in enumerate(negated)
    )
    windows: list[Any] = [2, 4, 6, 8, 10, 12]
    windows += [] if negated[0] else [None] * 4
    return Pattern(
        parts=parts,
        same=draw(st.sampled_from([(), (), ("worker",), ("worker", "x")])),
        window_us=draw(st.sampled_from(windows)),
        rising=draw(st.sampled_from([False, False, True])),
    )


@st.composite
def occurrences(draw: st.DrawFn) -> Occurrence:
    # Few different times, so that many are equal, a window's width apart, or one beside it.
    return Occurrence(
        draw(st.sampled_from("AABBC")),
        draw(st.integers(0, 12)) / 1e6,
        {"worker": draw(st.sampled_from([0, 0, 0, 1])), "x": draw(st.integers(0, 1))},
        id=draw(st.sampled_from([None, None, "a", "b"])),
    )


event_lists = st.sampled_from(range(14, -1, -1)).flatmap(
    lambda size: st.lists(occurrences(), min_size=size, max_size=size)
)


def parts_of(matches: list[Occurrence]) -> list[list[tuple[str, Occurrence]]]:
    return [list(match.parts.items()) for match in matches]


class Pair:
    """A detector and the definition, fed alike and compared at every step."""

    def __init__(self, pattern: Pattern):
        self.pattern = pattern
        self.detector = Detector(pattern.expression())
        self.naive = NaiveDetector(pattern)
        self.trimmed_us = 0

    def feed(self, o: Occurrence) -> None:
        # What `trim` promises: no match ends before the trimmed time any more.
        if o.us < self.trimmed_us and self.pattern.parts[-1].takes(o):
            return
        expected = [list(match.items()) for match in self.naive.feed(o)]
        matches = self.detector.feed(o)
        assert parts_of(matches) == expected
        assert all(match.timestamp == o.timestamp and match.us == o.us for match in matches)

    def withdraw(self, number: int) -> None:
        if self.naive.fed:
            o = self.naive.fed[number % len(self.naive.fed)]
            self.detector.withdraw(o)
            self.naive.withdraw(o)

    def trim(self, before_us: int) -> None:
        self.trimmed_us = max(self.trimmed_us, before_us)
        self.detector.trim(self.trimmed_us)
        if self.pattern.window_us is not None:
            from_us = self.trimmed_us - self.pattern.window_us
            assert self.detector.partials == self.naive.retained(from_us)

    def withdraw_everything(self) -> None:
        for o in self.naive.fed:
            self.detector.withdraw(o)
        assert self.detector.partials == 0
        assert not self.detector._histories


@bounded
@given(patterns(), event_lists)
def test_detector_fed_in_any_order_equals_the_definition(
    pattern: Pattern, events: list[Occurrence]
) -> None:
    pair = Pair(pattern)
    for o in events:
        pair.feed(o)
    assert pair.detector.partials == pair.naive.retained(0)


@bounded
@given(patterns(), event_lists, st.randoms(use_true_random=False))
def test_detect_in_any_order_equals_feeding_in_order(
    pattern: Pattern, events: list[Occurrence], random: Random
) -> None:
    events = [
        Occurrence(o.name, o.timestamp, o.params, id=f"{o.id}{number:02}")
        for number, o in enumerate(events)
    ]
    detector = Detector(pattern.expression())
    expected = []
    for o in sorted(events, key=lambda o: (o.us, o.id)):
        expected += parts_of(detector.feed(o))
    random.shuffle(events)
    assert parts_of(detect(pattern.expression(), events)) == expected


@bounded
@given(patterns(), event_lists, st.randoms(use_true_random=False))
def test_detector_with_everything_withdrawn_retains_nothing(
    pattern: Pattern, events: list[Occurrence], random: Random
) -> None:
    pair = Pair(pattern)
    for o in events:
        pair.feed(o)
    random.shuffle(pair.naive.fed)
    pair.withdraw_everything()


@pytest.mark.parametrize("seed", range(8 * SCALE))
def test_detector_after_random_feeds_withdrawals_and_trims_equals_the_definition(
    seed: int,
) -> None:
    # Plain seeded randomness: it yields far denser histories, with more matches, than Hypothesis.
    random = Random(seed)
    for _ in range(1000):
        pair = Pair(_random_pattern(random))
        now_us, disorder = 0, random.random()
        for _ in range(random.randrange(26)):
            time_us = random.randrange(13) if random.random() < disorder else now_us
            now_us = min(12, now_us + random.randrange(2))
            step = random.random()
            if step < 0.75:
                pair.feed(_random_occurrence(random, time_us))
            elif step < 0.88:
                pair.withdraw(random.randrange(100))
            else:
                pair.trim(time_us)
        pair.withdraw_everything()


def _random_pattern(random: Random) -> Pattern:
    negated = [*(random.random() < 0.4 for _ in range(random.randrange(5))), False]
    parts = tuple(
        Part(random.choice("AABC"), f"p{place}", is_negated, random.choice([None, None, None, 1]))
        for place, is_negated in enumerate(negated)
    )
    windowed = negated[0] or random.random() < 0.6
    return Pattern(
        parts,
        random.choice([(), (), ("worker",), ("worker", "x")]),
        random.choice([1, 2, 4, 6, 8, 10, 12]) if windowed else None,
        random.random() < 0.3,
    )


def _random_occurrence(random: Random, us: int) -> Occurrence:
    return Occurrence(
        random.choice("AABC"),
        us / 1e6,
        {"worker": random.choice([0, 0, 0, 1]), "x": random.randrange(2)},
        id=random.choice([None, None, "a", "b"]),
    )
