"""The detector against the definition, under disorder, withdrawals, trims and crashes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from activedb.errors import PartialsExceeded
from activedb.events import (
    Detector,
    Expression,
    Occurrence,
    all_of,
    any_of,
    detect,
    event,
    every,
    many,
    seq,
    some_of,
)
from tests.drawing import SCALE, Worlds

from .comparison import compare
from .descriptions import Labels, described_made, described_match
from .generation import CONTEXTS, EVERYTHING, Plan, Reads, plans, random_expression
from .histories import Advance, Course, Feed, histories, random_history
from .reference import Reference

ALL_CONTEXTS = ["unrestricted", *CONTEXTS]
SELECTIONS = ["any", "next", "strict"]
SKIPS = ["none", "to_next", "past_last", "to_first", "to_last"]
FAMILIES = {
    "sequences, fed and withdrawn in any order": (Plan(), Course(10, withdrawals=9)),
    "negations at the end": (Plan(ending=True), Course(8, withdrawals=7)),
    "contexts": (Plan(conjunctions=True, contexts=CONTEXTS), Course(9, withdrawals=0)),
    "selections and skips": (
        Plan(contexts=ALL_CONTEXTS, selections=SELECTIONS[1:], skips=SKIPS),
        Course(9, withdrawals=0),
    ),
    "composites in composites": (
        Plan(nested=True, conjunctions=True, contexts=ALL_CONTEXTS),
        Course(8, withdrawals=0),
    ),
    "what time completes, in order": (
        Plan(ending=True, timed=True, nested=True, contexts=ALL_CONTEXTS),
        Course(8, ordered=True),
    ),
    "predicates that read": (
        Plan(ending=True, reading=True, contexts=ALL_CONTEXTS),
        Course(9, withdrawals=0),
    ),
    "everything that reads, often late": (
        replace(EVERYTHING, reading=True),
        Course(8, withdrawals=0, late=True),
    ),
    "everything, in order": (EVERYTHING, Course(8, ordered=True)),
    "everything, in any order": (EVERYTHING, Course(8, withdrawals=0)),
}

bounded = settings(
    max_examples=60 * SCALE,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
@bounded
@given(st.data())
def test_detector_at_every_step_equals_the_definition(family: str, data: st.DataObject) -> None:
    plan, course = FAMILIES[family]
    compare(data.draw(plans(plan)), data.draw(histories(course)))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_detector_over_dense_histories_equals_the_definition(family: str, seed: int) -> None:
    plan, course = FAMILIES[family]
    worlds = Worlds(60 * SCALE, "dense", family, seed, matches=1)
    for random in worlds:
        expression, steps = random_expression(random, plan), random_history(random, course)
        worlds.met["matches"] += compare(expression, steps)


def closed_by_time(random: Random) -> Expression:
    """A sequence of A's without B's after them, with a predicate that reads."""
    parts: list[Any] = [event("A", alias=f"p{n}") for n in range(random.randint(1, 2))]
    most = random.choice([1, 2, None])
    several = many(event("A", alias="k"), random.randint(0, 1), most, greedy=random.random() < 0.5)
    parts.insert(random.randint(0, len(parts)), several)
    made = seq(*parts, ~event("B")).within(random.randint(2, 4)).reading(Reads())
    made = made.context(random.choice(ALL_CONTEXTS)).selecting(random.choice(SELECTIONS))
    to = random.choice(SKIPS)
    if to == "none":
        return made
    return made.skipping(to, random.choice(made.names) if to in ("to_first", "to_last") else None)


def of_several_names(random: Random) -> Expression:
    """An expression that one event may match under several names, with a predicate that reads."""

    def part(name: str) -> Expression:
        alone = event("A", alias=name)
        match random.randint(0, 3):
            case 0:
                return alone
            case 1:
                return seq(many(event("B", alias=f"k{name}"), 0, 1), alone).within(2)
            case 2:
                return alone.after(random.randint(1, 2))
        return every(2, alias=name)

    either = [part(f"p{n}") for n in range(random.randint(2, 3))]
    made: Any
    match random.randint(0, 2):
        case 0:
            made = some_of(random.randint(1, 2), *either)
        case 1:
            made = seq(any_of(*either), event("A", alias="x") | event("B", alias="y")).within(4)
        case _:
            made = seq(many(event("A", alias="k"), 0, 2), any_of(*either)).within(4)
    made = made.reading(Reads()).context(random.choice(ALL_CONTEXTS))
    assert isinstance(made, Expression)
    return made


def of_what_was_read(random: Random) -> Expression:
    """An expression whose matches depend on what earlier steps have read."""
    inner: Any
    match random.randint(0, 3):
        case 0:
            inner = seq(event("A"), event("B"))
        case 1:
            inner = all_of(event("A"), random.choice([event("B"), every(2, alias="tick")]))
        case 2:
            inner = seq(many(event("A"), 1, 2), ~event("B")).within(2)
        case _:
            inner = some_of(1, event("A").after(1), event("B"))
    inner = inner.reading(Reads())
    if random.random() < 0.3:
        inner = inner.after(1)
    made: Expression = seq(inner, event("A", alias="last", reading=Reads()))
    return made


WHAT_READS = {
    # What was read at the first end of a window may read otherwise when it ends again.
    "windows that end again": (closed_by_time, Course(8, late=True, names="AAAB")),
    "the same events under several names": (
        of_several_names,
        Course(8, late=True, names="AAAB"),
    ),
    "steps done again, which do not read again": (
        of_what_was_read,
        Course(8, withdrawals=7, trims=False, late=True, names="AAB"),
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", WHAT_READS)
def test_predicates_that_read_are_asked_once_for_each_match_and_step(shape: str, seed: int) -> None:
    drawn, course = WHAT_READS[shape]
    worlds = Worlds(200 * SCALE, shape, seed, matches=1)
    for random in worlds:
        worlds.met["matches"] += compare(drawn(random), random_history(random, course))


def in_order(expression: Expression, feeds: list[tuple[int, Occurrence]], end_us: int) -> list[Any]:
    """The matches of events fed in the order of their places, time advanced before each."""
    detector, labels = Detector(expression), Labels()
    found: list[Occurrence] = []
    for _, o in sorted(feeds, key=lambda item: (item[1].us, item[1].id or "", item[0])):
        found += detector.advance(o.us)
        found += detector.feed(o)
    found += detector.advance(end_us)
    return [described_match(match, labels) for match in found]


@bounded
@given(
    plans(EVERYTHING),
    histories(Course(10)),
    st.lists(st.integers(0, 3), min_size=10, max_size=10),
)
def test_disordered_stream_held_back_until_punctuation_equals_the_ordered_one(
    expression: Expression, steps: list[Any], delays: list[int]
) -> None:
    feeds = [
        (number, step.occurrence(number))
        for number, step in enumerate(steps)
        if isinstance(step, Feed)
    ]
    begun_us = min((o.us for _, o in feeds), default=0)
    end_us = 30_000_000
    # Each event arrives up to three seconds late; so much behind is the punctuation.
    arrivals = sorted(
        (
            (o.us + delay * 1_000_000, number, o)
            for (number, o), delay in zip(feeds, delays, strict=False)
        ),
        key=lambda item: item[:2],
    )
    feeds = [(number, o) for _, number, o in arrivals]
    detector, labels = Detector(expression), Labels()
    held: list[tuple[int, Occurrence]] = []
    found: list[Occurrence] = []

    def punctuate(us: int) -> None:
        ready = [item for item in held if item[1].us < us]
        for item in sorted(ready, key=lambda item: (item[1].us, item[1].id or "", item[0])):
            held.remove(item)
            found.extend(detector.advance(item[1].us))
            found.extend(detector.feed(item[1]))
        if us > begun_us:
            found.extend(detector.advance(us))

    for arrived_us, number, o in arrivals:
        punctuate(arrived_us - 3_000_000)
        held.append((number, o))
    punctuate(end_us)
    described = [described_match(match, labels) for match in found]
    assert described == in_order(expression, feeds, end_us)


WITHOUT_B = seq(event("A", alias="p0"), ~event("B"), many(event("A", alias="p1"), 0, 1)).within(2)


@bounded
@given(
    plans(Plan(nested=True, conjunctions=True, contexts=ALL_CONTEXTS)),
    histories(Course(10)),
    st.randoms(use_true_random=False),
)
@example(WITHOUT_B, [Feed("A", 0), Feed("A", 2)], Random(1))
def test_detect_of_a_shuffled_stream_equals_feeding_in_order(
    expression: Expression, steps: list[Any], random: Any
) -> None:
    feeds = []
    for number, step in enumerate(steps):
        if isinstance(step, Feed):
            o = step.occurrence(number)
            feeds.append(
                (number, Occurrence(o.name, o.timestamp, o.params, id=f"{o.id}{number:02}"))
            )
    # By default `detect` also finds what time completes at the moment of the last event.
    expected = in_order(expression, feeds, max((o.us for _, o in feeds), default=0) + 1)
    random.shuffle(feeds)
    labels = Labels()
    found = detect(expression, [o for _, o in feeds])
    assert [described_match(match, labels) for match in found] == expected


@bounded
@given(plans(Plan()), histories(Course(10)), st.randoms(use_true_random=False))
def test_detector_with_everything_withdrawn_keeps_nothing(
    expression: Expression, steps: list[Any], random: Any
) -> None:
    detector = Detector(expression)
    fed = [step.occurrence(n) for n, step in enumerate(steps) if isinstance(step, Feed)]
    for o in fed:
        detector.feed(o)
    random.shuffle(fed)
    for o in fed:
        detector.withdraw(o)
    assert detector.partials == 0


@bounded
@given(plans(Plan(conjunctions=True)), histories(Course(10, ordered=True)))
def test_trimmed_detector_keeps_no_more_than_its_horizon(
    expression: Expression, steps: list[Any]
) -> None:
    detector = Detector(expression)
    horizon_us = detector.horizon_us
    fed_us: list[int] = []
    for number, step in enumerate(steps):
        if isinstance(step, Advance):
            now_us = step.at * 1_000_000
            detector.advance(now_us)
            detector.trim(now_us)
            if horizon_us is not None:
                assert detector.partials <= sum(us >= now_us - horizon_us for us in fed_us)
        elif isinstance(step, Feed):
            fed_us.append(step.at * 1_000_000)
            detector.feed(step.occurrence(number))
            assert detector.partials <= len(fed_us)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_full_detector_that_refuses_is_as_if_it_was_never_fed(seed: int) -> None:
    plan = Plan(nested=True, contexts=ALL_CONTEXTS)
    worlds = Worlds(60 * SCALE, "refuses", seed, refused=1)
    for random in worlds:
        expression, most = random_expression(random, plan), random.randint(1, 4)
        # In order: a full detector forgets what has expired, also for events that come late.
        steps = random_history(random, Course(9, ordered=True))
        detector = Detector(expression, partials_max=most, on_full="refuse")
        reference, labels = Reference(expression), Labels()
        for number, step in enumerate(steps):
            if not isinstance(step, Feed):
                continue
            o = step.occurrence(number)
            labels.add(o)
            try:
                found = detector.feed(o)
            except PartialsExceeded:
                worlds.met["refused"] += 1
                continue
            finally:
                assert detector.partials <= most
            expected = [described_made(made, labels) for made in reference.feed(o)]
            assert [described_match(match, labels) for match in found] == expected
        assert detector.dropped == 0


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_full_detector_that_drops_finds_some_of_the_matches_and_counts(seed: int) -> None:
    plan = Plan(negated=False)
    worlds = Worlds(60 * SCALE, "drops", seed, dropped=1)
    for random in worlds:
        expression, most = random_expression(random, plan), random.randint(1, 4)
        is_ordered = random.random() < 0.5
        steps = random_history(random, Course(9, ordered=is_ordered))
        detector = Detector(expression, partials_max=most, on_full="drop_oldest")
        free, labels = Detector(expression), Labels()
        for number, step in enumerate(steps):
            if not isinstance(step, Feed):
                continue
            o = step.occurrence(number)
            labels.add(o)
            all_found = [described_match(match, labels) for match in free.feed(o)]
            found = [described_match(match, labels) for match in detector.feed(o)]
            assert all(match in all_found for match in found)
            assert detector.partials <= most
            # A full detector forgets what has expired, also for events that come late.
            assert detector.dropped or not is_ordered or found == all_found
        worlds.met["dropped"] += detector.dropped
