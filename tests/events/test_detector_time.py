"""Matches completed by time: ends of windows, delays, ticks, clock events, time-outs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from activedb.errors import BadEvent
from activedb.events import (
    Detector,
    Expression,
    Occurrence,
    at,
    detect,
    event,
    every,
    occurrence,
    periodic,
    seq,
)

A, B, C, N = (event(name) for name in "ABCN")


def o(name: str, second: float, **params: Any) -> Occurrence:
    return occurrence(name, timestamp=second, **params)


def us(second: float) -> int:
    return round(second * 1_000_000)


def told(expression: Expression, script: str) -> list[str]:
    """Feed "A1 B2" and advance "@7"; return the matches as "time: parts"."""
    detector = Detector(expression)
    found = []
    for text in script.split():
        if text[0] == "@":
            made = detector.advance(us(float(text[1:])))
        else:
            made = detector.feed(o(text[0], float(text[1:])))
        found += [
            f"{m.us / 1e6:g}: " + " ".join(f"{c.name}{c.us / 1e6:g}" for c in m.constituents)
            for m in made
        ]
    return found


@pytest.mark.parametrize(
    ("expression", "script", "matches"),
    [
        # The end of a window is decided when nothing at it can come any more.
        (seq(A, ~N).within(5), "A1 @6", []),
        (seq(A, ~N).within(5), "A1 @6.000001", ["6: A1"]),
        (seq(A, ~N).within(5), "A1 N6 @9", []),
        (seq(A, ~N).within(5), "A1 N1 @9", ["6: A1"]),
        (seq(A, ~N).within(5), "A1 N7 @9", ["6: A1"]),
        (seq(A, B, ~N).within(5), "A1 B2 B3 @9", ["6: A1 B2", "6: A1 B3"]),
        (seq(A, B, ~N).within(5), "A1 B2 N2.5 B3 @9", ["6: A1 B3"]),
        (seq(~N, A, ~N).within(5), "N0 A1 A6 @20", ["11: A6"]),
        # What comes late is judged at the next advance, and what was judged is not again.
        (seq(A, B, ~N).within(5), "A1 B2 @9 B3 @9 @10", ["6: A1 B2", "6: A1 B3"]),
        # Delays keep the order of their times.
        (A.after(5) | B.after(1), "A1 B2 @9", ["3: B2", "6: A1"]),
        (seq(A.after(5), B), "A1 B6 @7 B7", ["7: A1 B7"]),
        # Ticks are before the end, and not at it.
        (periodic(A, 2, C), "A1 @6 C7 @20", ["3: A1 tick3", "5: A1 tick5"]),
        (periodic(A, 2, C), "A1 C5 @20", ["3: A1 tick3"]),
        (periodic(A, 2, C, collected=True), "A1 C6", ["6: A1 tick3 tick5 C6"]),
        (periodic(A, 2, C, collected=True), "A1 C2", ["2: A1 C2"]),
        # Ticks are no events of which a disjunction makes something once.
        (periodic(A, 2, C, collected=True) | seq(A, C), "A1 C6", ["6: A1 tick3 tick5 C6"]),
        (seq(A, C) | periodic(A, 2, C, collected=True), "A1 C6", ["6: A1 C6"]),
        (periodic(A, 2, C).context("recent"), "A1 @2 A2 @7 C8 @9", ["4: A2 tick4", "6: A2 tick6"]),
        (
            periodic(A, 2, C).context("chronicle"),
            "A1 A2 @4 C4 @7 C8 @20",
            ["3: A1 tick3", "4: A2 tick4", "6: A2 tick6"],
        ),
        # A partial match times out if it was not whole in time.
        (seq(A, B, C).within(5).timed_out(), "A1 B2 @9", ["6: A1 B2"]),
        (seq(A, B, C).within(5).timed_out(), "A1 B2 C6 @9", []),
        (seq(A, B, C).within(5).timed_out(), "A1 B2 C7 @9", ["6: A1 B2"]),
        (seq(A, N.many(0), B).within(5).timed_out(), "A1 N2 N3 @9", ["6: A1 N2 N3"]),
    ],
)
def test_advance_produces_what_is_due_before_it(
    expression: Expression, script: str, matches: list[str]
) -> None:
    assert told(expression, script) == matches


def test_advance_a_step_beyond_what_is_due_decides_that_alone() -> None:
    detector = Detector(seq(A, ~N).within(5))
    assert detector.due_us is None
    for second in (1, 2):
        detector.feed(o("A", second))
    assert detector.due_us == us(6)
    [match] = detector.advance(us(6) + 1)
    assert match.timestamp == 6
    assert detector.due_us == us(7)


def test_windows_of_two_keys_that_end_again_in_one_step_make_only_what_is_new() -> None:
    detector = Detector(seq(C, ~A).within(3).same("w"))
    detector.feed(o("C", 1, w=1))
    assert len(detector.advance(us(8))) == 1
    detector.feed(o("C", 4, w=1))  # late, and in the window that has ended
    detector.feed(o("C", 1, w=0))
    found = detector.advance(us(19))
    assert [(match.timestamp, match.params["w"]) for match in found] == [(4, 0), (7, 1)]


def test_clock_event_occurs_after_the_first_time_told_and_in_utc() -> None:
    detector = Detector(every(10))
    assert detector.due_us is None
    assert detector.feed(o("Z", 10)) == []
    [tick] = detector.advance(us(30))
    assert tick.key == ("clock", "EVERY 10s")
    assert tick.timestamp == datetime(1970, 1, 1, 0, 0, 20, tzinfo=UTC)
    assert [tick.us for tick in detector.advance(us(41))] == [us(30), us(40)]


def test_clock_event_at_a_moment_occurs_once() -> None:
    detector = Detector(at(20))
    detector.advance(us(1))
    assert [match.us for match in detector.advance(us(100))] == [us(20)]
    assert detector.due_us is None


def test_clock_event_forbids_at_its_time_before_the_window_ends() -> None:
    detector = Detector(seq(A, ~every(6)).within(5))
    detector.feed(o("A", 1))
    assert detector.advance(us(20)) == []


def test_timestamp_of_a_window_end_is_of_the_kind_of_its_constituents_and_exact() -> None:
    when = datetime(2026, 1, 1, tzinfo=UTC)
    [match] = detect(seq(A, ~N).within(0.5), [occurrence("A", timestamp=when)], until=2e9)
    assert match.timestamp == datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    [match] = detect(seq(A, ~N).within(0.25), [o("A", 1)], until=9)
    assert match.timestamp == 1.25
    far = o("A", 8_000_000_000.000001)
    [match] = detect(A.after(1), [far], until=9_000_000_000)
    assert match.us == far.us + 1_000_000


def test_advance_that_raises_has_changed_nothing() -> None:
    def fails(parts: Any) -> bool:
        if failing:
            raise ZeroDivisionError
        return True

    detector = Detector(seq(A, ~N).within(5).where(fails))
    failing = True
    detector.feed(o("A", 1))
    before = detector.state()
    with pytest.raises(ZeroDivisionError):
        detector.advance(us(9))
    assert {**detector.state(), "arrival": 0} == {**before, "arrival": 0}
    failing = False
    assert len(detector.advance(us(9))) == 1


def test_feed_that_raises_in_an_outer_part_leaves_the_inner_ones_as_they_were() -> None:
    detector = Detector(seq(seq(A, B), C).same("x"))
    detector.feed(o("A", 1))
    before = detector.state()
    with pytest.raises(BadEvent, match="no parameter 'x'"):
        detector.feed(o("B", 2))  # completes the inner sequence, which the outer one refuses
    after_it = detector.state()
    assert {**after_it, "arrival": 0} == {**before, "arrival": 0}


def test_trim_before_advance_keeps_what_is_due() -> None:
    detector = Detector(seq(A, ~N).within(5))
    detector.feed(o("A", 1))
    detector.trim(us(100))
    assert [match.us for match in detector.advance(us(100))] == [us(6)]
    detector.trim(us(100))
    assert detector.partials == 0


def test_withdraw_restores_what_was_due_and_what_was_not() -> None:
    detector = Detector(seq(A, ~N).within(5))
    detector.feed(o("A", 1))
    negated = o("N", 2)
    detector.feed(negated)
    detector.withdraw(negated)
    assert [match.us for match in detector.advance(us(9))] == [us(6)]


def test_detect_until_finds_what_time_completes_up_to_then() -> None:
    events = [o("A", 1)]
    assert detect(seq(A, ~N).within(5), events) == []
    assert detect(seq(A, ~N).within(5), events, until=5) == []
    assert len(detect(seq(A, ~N).within(5), events, until=6)) == 1
    assert [match.us for match in detect(A.after(5), events, until=6)] == [us(6)]
