"""Uncertain order: the detector against every order that is possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from activedb.errors import UncertainOrder
from activedb.events import (
    AccuracyInterval,
    Detector,
    Expression,
    LocalClock,
    Occurrence,
    all_of,
    event,
    many,
    precedes,
    query,
    seq,
)
from tests.drawing import SCALE, Worlds

from .descriptions import Labels, described_made, described_match
from .generation import Plan, random_expression
from .uncertainty import UncertainReference, orders

if TYPE_CHECKING:
    from random import Random

A, B, N = event("A"), event("B"), event("N")
PLAN = Plan(conjunctions=True)


def at(name: str, low: float, high: float | None = None, **more: Any) -> Occurrence:
    """An event between two times, in seconds; its reading is in the middle."""
    high = low if high is None else high
    low_us, high_us = round(low * 1e6), round(high * 1e6)
    stamp = AccuracyInterval((low_us + high_us) // 2, low_us, high_us, **more)
    return Occurrence(name, stamp, {"w": 0, "x": 0})


def random_events(random: Random) -> list[Occurrence]:
    events = []
    clock = LocalClock("one")
    last = random.choice([2, 4, 9])
    for number in range(random.choice([2, 3, 4, 5])):
        name, low_us = random.choice("ABC"), random.randint(0, last) * 1_000_000
        high_us = low_us + random.choice([0, 0, 1_000_000, 3_000_000])
        reading_us = random.choice([low_us, high_us, (low_us + high_us) // 2])
        more: dict[str, Any] = {}
        if random.random() < 0.3:
            more = {"node": "n", "local_us": reading_us, "local_clock": clock}
        stamp = AccuracyInterval(reading_us, low_us, high_us, **more)
        label = f"{name}{number}[{low_us // 1_000_000}, {high_us // 1_000_000}]"
        params = {"w": 0, "x": random.randint(0, 1), "n": label}
        events.append(Occurrence(name, stamp, params))
    return sorted(events, key=lambda o: o.high_us) if random.random() < 0.7 else events


def is_metric(expression: Expression) -> bool:
    """Return whether distances matter, which orders do not show: see test_theorem.py."""
    return any(getattr(expression, name, None) is not None for name in ("window_us", "gap_us"))


def is_narrowed(events: list[Occurrence]) -> bool:
    """Return whether local clocks narrow an interval, so that some orders have no times."""
    return any(
        precedes(a, b) and (b.low_us <= a.low_us or a.high_us >= b.high_us)
        for a in events
        for b in events
    )


def kept(detector: Detector) -> dict[str, Any]:
    """Return what a detector keeps, but for the number of the next arrival."""
    return {name: value for name, value in detector.state().items() if name != "arrival"}


POLICIES: dict[str, Any] = {
    "certain": "certain",
    "possible": "possible",
    "function of the certain": lambda error: error.certain,
}


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(4))
def test_uncertain_order_by_policy_equals_trying_every_order(policy: str, seed: int) -> None:
    worlds = Worlds(50 * SCALE, "policy", seed, uncertain=1)
    for random in worlds:
        expression, events = random_expression(random, PLAN), random_events(random)
        if is_metric(expression) or (policy == "possible" and is_narrowed(events)):
            continue
        reference, labels = UncertainReference(expression), Labels()
        detector = Detector(expression, on_uncertain=POLICIES[policy])
        for o in events:
            labels.add(o)
            possible, certain = reference.feed(o)
            worlds.met["uncertain"] += len(possible) > len(certain)
            expected = possible if policy == "possible" else certain
            found = detector.feed(o)
            assert [described_match(match, labels) for match in found] == [
                described_made(made, labels) for made in expected
            ], (expression, [str(o.params["n"]) for o in events], o.params["n"])


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_uncertain_order_raises_with_the_candidates_and_keeps_the_event(seed: int) -> None:
    worlds = Worlds(50 * SCALE, "raises", seed, raised=1)
    for random in worlds:
        expression, events = random_expression(random, PLAN), random_events(random)
        if is_metric(expression):
            continue
        reference, labels = UncertainReference(expression), Labels()
        detector = Detector(expression, on_uncertain="raise")
        other = Detector(expression)
        for o in events:
            labels.add(o)
            possible, certain = reference.feed(o)
            if len(possible) == len(certain):
                found = [described_match(match, labels) for match in detector.feed(o)]
                assert found == [described_made(made, labels) for made in possible]
                other.feed(o)
                continue
            worlds.met["raised"] += 1
            other.feed(o)
            sure = [labels.of_parts(each.parts) for each in certain]
            everything = [labels.of_parts(each.parts) for each in possible]
            given = []
            try:
                made = detector.feed(o)
            except UncertainOrder as error:
                made = list(error.made)
                known = [labels.of_parts(parts) for parts in error.certain]
                given = [labels.of_parts(parts) for parts in error.candidates]
            else:
                known = sure
            assert known == [labels.of_parts(match.parts) for match in made] == sure
            assert kept(detector) == kept(other)
            # Of events that local clocks narrow, some orders have no times, perhaps all.
            left = [
                e for e in everything if e not in sure and (e in given or not is_narrowed(events))
            ]
            assert given == left


@pytest.mark.parametrize(
    ("expression", "events", "possible", "certain"),
    [
        (seq(A, B), [at("A", 1, 2), at("B", 3, 4)], 1, 1),
        (seq(A, B), [at("A", 1, 3), at("B", 2, 4)], 1, 0),
        # At a common end they may be simultaneous, which is no sequence.
        (seq(A, B), [at("A", 1, 2), at("B", 2, 4)], 1, 0),
        (seq(A, B), [at("A", 2), at("B", 2)], 0, 0),
        (seq(A, B), [at("A", 2, 3), at("B", 1, 2)], 0, 0),
        (all_of(A, B), [at("A", 1, 3), at("B", 2, 4)], 1, 1),
        # The negated event may lie between.
        (seq(A, ~N, B), [at("A", 1, 3), at("N", 2, 4), at("B", 5)], 1, 0),
        (seq(A, ~N, B), [at("A", 1), at("N", 2, 4), at("B", 5)], 0, 0),
        (seq(A, ~N, B), [at("A", 3), at("N", 1, 2), at("B", 5)], 1, 1),
        # Of two overlapping Bs, one order or the other.
        (
            seq(A, many(B, 2, 2), event("C")),
            [at("A", 1), at("B", 2, 4), at("B", 3, 5), at("C", 6)],
            2,
            0,
        ),
    ],
)
def test_uncertain_order_of_few_events_by_hand(
    expression: Expression, events: list[Occurrence], possible: int, certain: int
) -> None:
    for policy, count in (("possible", possible), ("certain", certain)):
        detector, reference = (
            Detector(expression, on_uncertain=policy),
            UncertainReference(expression),
        )
        *before, last = events
        for o in before:
            detector.feed(o)
            reference.feed(o)
        assert len(detector.feed(last)) == count
        assert len(reference.feed(last)[policy == "certain"]) == count


def test_uncertain_order_of_one_local_clock_is_certain() -> None:
    clock = LocalClock("started at noon", granularity_us=10)
    events = [
        at(name, 1, 3, node="n", local_us=local_us, local_clock=clock)
        for name, local_us in (("A", 100), ("B", 200))
    ]
    detector = Detector(seq(A, B))
    assert detector.feed(events[0]) == []
    assert len(detector.feed(events[1])) == 1


def test_orders_of_two_intervals_are_before_after_and_at_once() -> None:
    def count(*events: Occurrence) -> int:
        reference = UncertainReference(seq(A, many(A.named("z"), 9)).within(99))
        for o in events:
            reference.feed(o)
        return sum(1 for _ in orders(reference.history.fed))

    assert count(at("A", 1, 3), at("A", 2, 4)) == 3
    assert count(at("A", 1, 2), at("A", 2, 4)) == 2
    assert count(at("A", 1), at("A", 1, 2)) == 2
    assert count(at("A", 1), at("A", 1)) == 1
    assert count(at("A", 1), at("A", 2)) == 1


def test_chosen_match_stays_made_beside_worlds_of_which_nothing_is_known() -> None:
    """A local clock orders events of one moment: in some worlds no exact times do that."""
    clock = LocalClock("one", drift_ppb=100_000)

    def local(name: str, low: float, high: float, local_us: int) -> Occurrence:
        return at(name, low, high, node="n", local_us=local_us, local_clock=clock)

    detector = Detector(seq(query("Q", seq(A, B)), event("C")).context("recent"))
    first, second = local("A", 1, 1, 1_000_002), local("B", 1, 4, 2_500_000)
    third = at("C", 2, 5)
    for o in (first, second, third, local("A", 3, 3, 3_000_001), local("B", 3, 3, 3_000_004)):
        detector.feed(o)
    open_choice = next(each for each in detector.undecided if each.us == third.us)
    made = detector.resolve(open_choice.identity, [0])
    assert [match.parts["C"] for match in made] == [third]
    assert open_choice.identity not in {each.identity for each in detector.undecided}
