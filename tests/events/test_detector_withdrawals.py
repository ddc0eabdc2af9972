"""Withdrawing what was trimmed since: nothing is counted twice, nothing forgotten comes back."""

from __future__ import annotations

import pytest

from activedb.events import (
    AccuracyInterval,
    Detector,
    Expression,
    Occurrence,
    event,
    many,
    seq,
)
from tests.drawing import SCALE, Worlds

A, B, C = event("A"), event("B"), event("C")
SECOND_US = 1_000_000


def test_withdraw_of_what_trim_has_forgotten_leaves_the_count_of_partials() -> None:
    detector = Detector(seq(C, ~A).within(3))
    detector.advance(10 * SECOND_US)
    late = Occurrence("A", 0)
    detector.feed(late)
    detector.trim(5 * SECOND_US)
    assert detector.partials == 0
    detector.feed(Occurrence("B", 5))
    detector.withdraw(late)
    assert detector.partials == 0


@pytest.mark.parametrize(
    "expression",
    [
        seq(C, ~A).within(3),
        seq(~A, B, ~A, C).within(4).context("chronicle"),
        seq(A, B).within(3).context("cumulative").same("k"),
        seq(A, many(B, 0), C).within(4).selecting("next").context("continuous").same("k"),
        seq(A, seq(B, ~A, C).within(3).context("chronicle")).within(5).context("recent"),
        seq(A, B, ~C, A.named("last")).within(3).timed_out(),
    ],
    ids=repr,
)
def test_partials_after_withdrawals_and_trims_are_what_is_kept(expression: Expression) -> None:
    for random in Worlds(40 * SCALE, expression):
        detector, second = Detector(expression), 0.0
        fed: list[Occurrence] = []
        for _ in range(30):
            second += random.choice([0, 0.5, 1])
            match random.randrange(6):
                case 0:
                    detector.advance(round(second * SECOND_US))
                case 1:
                    detector.advance(round(second * SECOND_US))
                    detector.trim(round(second * SECOND_US))
                case 2 if fed:
                    detector.withdraw(fed.pop(random.choice([-1, random.randrange(len(fed))])))
                case _:
                    late = random.choice([0, 0, 2])
                    o = Occurrence(random.choice("ABC"), second - late, {"k": random.randrange(2)})
                    fed.append(o)
                    detector.feed(o)
            fresh = Detector(expression)
            fresh.restore(detector.state())
            assert detector.partials == fresh.partials
        detector.advance(10**9)
        detector.trim(10**9)
        assert detector.partials == 0
        for o in reversed(fed):
            detector.withdraw(o)
            assert detector.partials == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_choice_does_not_outlive_the_events_that_are_withdrawn(number: int) -> None:
    def about(name: str, us: int) -> Occurrence:
        return Occurrence(name, AccuracyInterval(us, us - 10, us + 10, node=f"{name}{us}"))

    events = [about("A", 100), about("A", 101), about("B", 105)]
    detector = Detector(seq(event("A"), event("B")), on_uncertain="certain")
    for o in events:
        detector.feed(o)
    detector.take_undecided()
    detector.withdraw(events[number])
    fresh = Detector(seq(event("A"), event("B")), on_uncertain="certain")
    for o in events[:number] + events[number + 1 :]:
        fresh.feed(o)
    left = {each.identity for each in fresh.undecided}
    assert {each.identity for each in detector.undecided} == left
    assert {each.identity for each in detector.take_undecided()} == left
