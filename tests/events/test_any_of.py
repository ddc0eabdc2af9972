"""Any one of several events: what occurs is the event itself, once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb.events import (
    Detector,
    Occurrence,
    all_of,
    any_of,
    attr,
    deleted,
    detect,
    event,
    inserted,
    occurrence,
    query,
    seq,
    updated,
)


class Accounts:
    fullname = "accounts"


A, B, C = event("A"), event("B"), event("C")


def at(name: str, timestamp: float, **params: Any) -> Occurrence:
    return occurrence(name, timestamp=timestamp, **params)


def test_any_of_matches_each_of_its_events_once_and_keeps_nothing() -> None:
    detector = Detector(A | B | event("A", where=lambda o: True))
    first, second = at("A", 2), at("B", 1)
    assert detector.feed(first) == [first]
    assert detector.feed(second) == [second]
    assert detector.feed(at("C", 3)) == []
    assert (detector.partials, detector.horizon_us, detector.is_stateful) == (0, 0, False)
    detector.withdraw(first)
    detector.trim(10)


def test_any_of_data_changes_gives_the_change_itself() -> None:
    detector = Detector(inserted(Accounts) | updated(Accounts, "n") | deleted(Accounts))
    changes = [
        Occurrence("accounts", 1, new={"n": 1}),
        Occurrence("accounts", 2, old={"n": 1, "m": 1}, new={"n": 1, "m": 2}),
        Occurrence("accounts", 3, old={"n": 1}, new={"n": 2}),
        Occurrence("accounts", 4, old={"n": 2}),
    ]
    assert [detector.feed(o) for o in changes] == [[changes[0]], [], [changes[2]], [changes[3]]]


def test_any_of_composites_and_events_gives_what_occurs() -> None:
    detector = Detector(seq(A, B) | B)
    a, b = at("A", 1, x=1), at("B", 2, y=2)
    assert detector.feed(a) == []
    match, event_itself = detector.feed(b)
    assert dict(match.parts) == {"A": a, "B": b}
    assert match.params == {"x": 1, "y": 2}
    assert event_itself is b


def test_any_of_composites_of_the_same_events_gives_the_first() -> None:
    detector = Detector(any_of(all_of(B, A), seq(A, B)))
    detector.feed(at("A", 1))
    [match] = detector.feed(at("B", 2))
    assert list(match.parts) == ["B", "A"]


def test_any_of_queries_of_the_same_events_gives_each_by_its_name() -> None:
    detector = Detector(query("Q1", seq(A, B)) | query("Q2", seq(A, B)) | query("Q1", all_of(A, B)))
    detector.feed(at("A", 1))
    assert [match.name for match in detector.feed(at("B", 2))] == ["Q1", "Q2"]


def test_any_of_as_a_part_is_bound_by_the_name_of_what_occurred() -> None:
    [first, second] = detect(
        seq(A | B.named("b"), C),
        [
            {"type": "A", "timestamp": 1},
            {"type": "B", "timestamp": 2},
            {"type": "C", "timestamp": 3},
        ],
    )
    assert list(first.parts) == ["A", "C"]
    assert list(second.parts) == ["b", "C"]


@given(
    st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 3)), max_size=12),
    st.lists(st.tuples(st.sampled_from("ABC"), st.integers(0, 3)), min_size=1, max_size=4),
)
def test_any_of_matches_what_one_of_its_parts_matches(
    events: list[tuple[str, int]], parts: list[tuple[str, int]]
) -> None:
    detector = Detector(any_of(*(event(name, where=attr("x") >= x) for name, x in parts)))
    for name, x in events:
        o = at(name, 1, x=x)
        taken = any(name == other and x >= least for other, least in parts)
        assert detector.feed(o) == ([o] if taken else [])


@pytest.mark.parametrize("order", [("A", "B"), ("B", "A")])
def test_detect_of_any_of_returns_events_by_time(order: tuple[str, str]) -> None:
    events = [at(name, timestamp) for timestamp, name in enumerate(order)]
    assert detect(A | B, reversed(events)) == events
