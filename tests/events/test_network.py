"""Detectors that share common subexpressions find what they would find alone."""

from __future__ import annotations

import json
from random import Random

import pytest

from activedb.errors import PartialsExceeded
from activedb.events import (
    AccuracyInterval,
    Detector,
    Expression,
    Occurrence,
    all_of,
    event,
    occurrence,
    seq,
)
from activedb.events.detection._network import Network
from activedb.events.terms import attr
from tests.drawing import drawn

A, B, C, D, N = (event(name) for name in "ABCDN")
PAIR = seq(A, ~N, B).same("x").within(6)
EXPRESSIONS: list[Expression] = [
    seq(PAIR, C),
    seq(PAIR, D).context("chronicle"),
    all_of(PAIR, C).within(9),
    seq(A, ~N, B).same("x").within(6) | D,
]
WHOLES: list[Expression] = [PAIR, seq(A, ~N, B).same("x").within(6), seq(PAIR, C), PAIR]


def o(random: Random, second: float) -> Occurrence:
    return occurrence(random.choice("AABBCDN"), timestamp=second, x=random.randrange(2))


def network_of(expressions: list[Expression]) -> Network:
    return Network(shares_whole=expressions is WHOLES)


def parts_of(matches: list[Occurrence]) -> list[tuple[str, dict[str, Occurrence]]]:
    return [(match.name, dict(match.parts) or {"": match}) for match in matches]


def test_equal_subexpressions_are_evaluated_once() -> None:
    judged = []

    def judge(event_: Occurrence) -> bool:
        judged.append(event_)
        return True

    network, pair = Network(), seq(event("A", where=judge), B)
    detectors = [Detector(seq(pair, last), network=network) for last in (C, D)]
    assert network.shared == 1
    first = occurrence("A", timestamp=1)
    for detector in detectors:
        detector.feed(first)
    assert judged == [first]
    assert [detector.partials for detector in detectors] == [1, 1]


@pytest.mark.parametrize("expressions", [EXPRESSIONS, WHOLES], ids=["parts", "wholes"])
@pytest.mark.parametrize("seed", range(40))
def test_detectors_of_a_network_equal_detectors_alone(
    seed: int, expressions: list[Expression]
) -> None:
    random = drawn("alone", seed)
    network = network_of(expressions)
    pairs = [
        (Detector(e, name=f"r{number}", network=network), Detector(e, name=f"r{number}"))
        for number, e in enumerate(expressions)
    ]
    assert network.shared == 1
    fed: list[Occurrence] = []
    second = 0.0
    for _ in range(60):
        second += random.randrange(3)
        event_ = o(random, second - random.choice([0, 0, 0, 2]))
        fed.append(event_)
        deaf = random.randrange(len(pairs)) if random.random() < 0.03 else None
        for number, (shared, alone) in enumerate(pairs):
            if number != deaf:
                assert parts_of(shared.feed(event_)) == parts_of(alone.feed(event_))
        if random.random() < 0.05:
            gone = random.choice(fed[-3:])
            for shared, alone in random.sample(pairs, random.randrange(1, 4)):
                shared.withdraw(gone)
                alone.withdraw(gone)
        if random.random() < 0.1:
            for shared, alone in pairs:
                shared.trim(int(second - 3) * 1_000_000)
                alone.trim(int(second - 3) * 1_000_000)
        if random.random() < 0.02:
            random.choice(pairs)[0].detach()
        if random.random() < 0.03:
            number = random.randrange(len(pairs))
            state = json.loads(json.dumps(pairs[number][0].state()))
            restored = Detector(expressions[number], network=network)
            restored.restore(state)
            assert restored.partials == pairs[number][0].partials


@pytest.mark.parametrize("expressions", [EXPRESSIONS, WHOLES], ids=["parts", "wholes"])
@pytest.mark.parametrize("on_full", ["drop_oldest", "refuse"])
@pytest.mark.parametrize("seed", range(20))
def test_bounded_detectors_of_a_network_equal_bounded_ones_alone(
    seed: int, on_full: str, expressions: list[Expression]
) -> None:
    random = drawn("bounded", seed)
    network = network_of(expressions)
    bounds = [random.choice([2, 3, 5, 8, 1_000]) for _ in expressions]
    pairs = [
        (
            Detector(e, network=network, partials_max=bound, on_full=on_full),
            Detector(e, partials_max=bound, on_full=on_full),
        )
        for e, bound in zip(expressions, bounds, strict=True)
    ]
    assert network.shared == 1
    fed: list[Occurrence] = []
    second = 0.0
    for _ in range(80):
        second += random.random() * 2
        event_ = o(random, second - random.choice([0, 0, 0, 1.5]))
        fed.append(event_)
        for shared, alone in pairs:
            made = [fed_or_refused(detector, event_) for detector in (shared, alone)]
            assert made[0] == made[1]
            assert (shared.partials, shared.dropped) == (alone.partials, alone.dropped)
        if random.random() < 0.1:
            gone = random.choice(fed[-3:])
            for shared, alone in random.sample(pairs, random.randrange(1, 4)):
                shared.withdraw(gone)
                alone.withdraw(gone)
        if random.random() < 0.1:
            for shared, alone in pairs:
                shared.trim(int((second - 3) * 1_000_000))
                alone.trim(int((second - 3) * 1_000_000))


def fed_or_refused(
    detector: Detector, event_: Occurrence
) -> list[tuple[str, dict[str, Occurrence]]] | str:
    try:
        return parts_of(detector.feed(event_))
    except PartialsExceeded:
        return "refused"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_equal_whole_expressions_with_some_intervals_equal_those_alone(seed: int) -> None:
    random = drawn("intervals", seed)
    network = network_of(WHOLES)
    pairs = [
        tuple(
            Detector(e, name=f"r{n}", on_uncertain="certain", network=net)
            for net in (network, None)
        )
        for n, e in enumerate(WHOLES)
    ]
    second, exact = 0, 20
    for number in range(60):
        second += random.randrange(1, 3)
        us = second * 1_000_000
        is_exact = number < exact or random.random() < 0.8
        at = second if is_exact else AccuracyInterval(us, us - 600_000, us + 600_000)
        event_ = occurrence(random.choice("AABBCN"), timestamp=at, x=random.randrange(2))
        for shared, alone in pairs:
            assert parts_of(shared.feed(event_)) == parts_of(alone.feed(event_))
            if number < exact:  # a hub without intervals forgets sooner than who has some
                assert shared.partials == alone.partials
        if random.random() < 0.1:
            for shared, alone in pairs:
                shared.trim(us - 3_000_000)
                alone.trim(us - 3_000_000)
    for _ in range(2):  # after the first one nothing is left that is uncertain
        for shared, alone in pairs:  # a hub without intervals forgets when all of them have
            shared.trim(us + 60_000_000)
            alone.trim(us + 60_000_000)
    for shared, alone in pairs:
        assert shared.partials == alone.partials


def test_equal_wholes_are_evaluated_once_under_their_own_names() -> None:
    judged = []

    def judge(event_: Occurrence) -> bool:
        judged.append(event_)
        return True

    network, pair = Network(shares_whole=True), seq(event("A", where=judge), B).within(5)
    detectors = [Detector(pair, name=name, network=network) for name in ("one", "two")]
    first, last = occurrence("A", timestamp=1), occurrence("B", timestamp=2)
    made = [detector.feed(event_) for event_ in (first, last) for detector in detectors]
    assert [[match.name for match in matches] for matches in made] == [[], [], ["one"], ["two"]]
    assert judged == [first]
    assert network.shared == 1
    for detector in detectors:
        detector.trim(9_000_000)
    assert [detector.partials for detector in detectors] == [0, 0]


def test_event_that_the_only_one_who_was_fed_it_withdraws_is_nothing_to_the_others() -> None:
    network = Network()
    detectors = [Detector(seq(PAIR, last), network=network) for last in (C, D, event("E"))]
    gone, first = (occurrence("A", timestamp=second, x=1) for second in (1, 2))
    detectors[0].feed(gone)
    detectors[0].withdraw(gone)
    assert [detector.partials for detector in detectors] == [0, 0, 0]
    for detector in detectors:
        detector.feed(first)
    assert [detector.partials for detector in detectors] == [1, 1, 1]
    assert network.shared == 1
    detectors[1].detach()
    last = occurrence("B", timestamp=3, x=1)
    detectors[0].feed(last)
    detectors[0].detach()
    assert [detector.feed(last) for detector in detectors] == [[], [], []]
    assert len(detectors[2].feed(occurrence("E", timestamp=4, x=1))) == 1


def test_event_that_leaves_nothing_need_not_be_fed_to_all_who_share() -> None:
    network = Network()
    pair = seq(event("A", where=attr("x") == 1), B).within(9)
    both = [Detector(seq(pair, last), network=network) for last in (C, D)]
    both[0].feed(occurrence("A", timestamp=1, x=2))
    kept = occurrence("A", timestamp=2, x=1)
    for detector in both:
        detector.feed(kept)
    both[1].feed(occurrence("A", timestamp=3, x=2))
    assert network.shared == 1
    assert [detector.partials for detector in both] == [1, 1]


@pytest.mark.parametrize("members", [1, 2])
def test_event_that_left_nothing_is_judged_again_after_a_withdrawal(members: int) -> None:
    network = Network(shares_whole=True)
    detectors = [Detector(PAIR, network=network) for _ in range(members)]
    events = [occurrence(name, timestamp=n, x=1) for n, name in enumerate("ABNB")]
    for event_ in (*events[:3], events[1]):
        for detector in detectors:
            detector.feed(event_)
    between = occurrence("N", timestamp=0.5, x=1)
    last = occurrence("B", timestamp=0.7, x=1)
    for event_ in (between, last):
        assert [detector.feed(event_) for detector in detectors] == [[]] * members
    for detector in detectors:
        detector.withdraw(between)
        assert len(detector.feed(last)) == 1


def test_detector_at_its_bound_takes_nothing_from_others() -> None:
    network = Network()
    small = Detector(seq(PAIR, C), network=network, partials_max=1)
    large = Detector(seq(PAIR, D), network=network, partials_max=1_000)
    for second in (1, 2):
        event_ = occurrence("A", timestamp=second, x=1)
        assert small.feed(event_) == large.feed(event_) == []
    assert (small.partials, small.dropped) == (1, 1)
    assert (large.partials, large.dropped) == (2, 0)
    assert network.shared == 0
    third, last = occurrence("B", timestamp=3, x=1), occurrence("D", timestamp=4, x=1)
    assert small.feed(third) == large.feed(third) == []
    assert len(large.feed(last)) == 2


def test_kept_events_tell_what_was_kept_whoever_was_fed_first() -> None:
    network = Network()
    detectors = [Detector(seq(PAIR, last), network=network) for last in (C, D)]
    for name, is_kept in (("A", True), ("D", False), ("A", True), ("X", False)):
        event_ = occurrence(name, timestamp=1, x=1)
        for detector in detectors:
            before = detector.kept_events
            detector.feed(event_)
            assert (detector.kept_events != before) is is_kept


def test_detector_made_later_has_not_seen_what_came_before() -> None:
    network = Network()
    first = Detector(seq(PAIR, C), network=network)
    first.feed(occurrence("A", timestamp=1, x=1))
    second = Detector(seq(PAIR, D), network=network)
    assert network.shared == 0
    for number, name in enumerate("BCD"):
        event_ = occurrence(name, timestamp=2 + number, x=1)
        made = [len(first.feed(event_)), len(second.feed(event_))]
        assert made == ([1, 0] if name == "C" else [0, 0])


def test_detector_that_is_not_fed_an_event_gets_its_own_copy() -> None:
    network = Network()
    hearing, deaf = (Detector(seq(PAIR, last), network=network) for last in (C, D))
    first, third = occurrence("A", timestamp=1, x=1), occurrence("B", timestamp=3, x=1)
    for detector in (hearing, deaf):
        detector.feed(first)
    hearing.feed(occurrence("N", timestamp=2, x=1))  # forbids, for one of them
    assert network.shared == 1
    for detector in (hearing, deaf):
        detector.feed(third)
    assert network.shared == 0
    assert hearing.feed(occurrence("C", timestamp=4, x=1)) == []
    assert len(deaf.feed(occurrence("D", timestamp=4, x=1))) == 1
