from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from activedb.errors import BadEvent, PatternError
from activedb.events import Occurrence, detect, event, occurrence, seq

Q1 = seq(event("EXIT"), ~event("SANITIZE"), event("ENTER")).same("worker").within(45)
STREAM = [
    {"type": "EXIT", "timestamp": 2, "worker": 7},
    {"type": "ENTER", "timestamp": 10, "worker": 7},
    {"type": "EXIT", "timestamp": 15, "worker": 7},
]


@pytest.mark.parametrize("events", list(permutations(STREAM)))
def test_detect_in_any_order_of_the_paper_stream_finds_its_match(events: Any) -> None:
    [match] = detect(Q1, iter(events))
    assert (match.name, match.timestamp) == (repr(Q1), 10)
    assert {name: part.timestamp for name, part in match.parts.items()} == {"EXIT": 2, "ENTER": 10}
    assert match.params == {"worker": 7}


def test_detect_takes_occurrences_and_mappings_together() -> None:
    first = occurrence("A", timestamp=1)
    [match] = detect(seq(event("A"), event("B")), [{"type": "B", "timestamp": 2.5}, first])
    assert match.parts["A"] is first
    assert match.timestamp == 2.5


def test_detect_orders_equal_times_by_id_then_position() -> None:
    events = [
        {"type": "A", "timestamp": 1, "id": id_, "n": n}
        for n, id_ in enumerate(["b", "a", None, "b", "a"])
    ]
    assert [o.params["n"] for o in detect(event("A"), events)] == [2, 1, 4, 0, 3]
    assert [o.id for o in detect(event("A"), events)] == [None, "a", "a", "b", "b"]


def test_detect_leaves_its_input_as_it_was() -> None:
    events = [dict(item) for item in STREAM]
    detect(Q1, events)
    assert events == STREAM


def test_detect_returns_matches_in_the_order_of_their_completion() -> None:
    events = [Occurrence(name, at) for at, name in enumerate("ABAB")]
    found = detect(seq(event("A"), event("B")), reversed(events))
    assert [[part.us for part in match.parts.values()] for match in found] == [
        [0, 1_000_000],
        [0, 3_000_000],
        [2_000_000, 3_000_000],
    ]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"timestamp": 1}, "event 1 of the trial run: type missing"),
        ({"type": "A"}, "event 1 of the trial run: timestamp missing"),
        ({}, "type and timestamp missing"),
        ({"type": "A", "timestamp": "noon"}, "event 1 of the trial run: event 'A': the timestamp"),
        ({"type": "A", "timestamp": 1, "id": 7}, "event 1 of the trial run: the id"),
        (("A", 1), "event 1 of the trial run: expected an Occurrence or a mapping"),
    ],
)
def test_detect_with_a_bad_event_says_which(item: Any, reason: str) -> None:
    with pytest.raises(BadEvent, match=reason):
        detect(event("A"), [{"type": "A", "timestamp": 1}, item])


AB = seq(event("A"), event("B"))
A1_A2_B3_B4 = [Occurrence(name, at) for at, name in enumerate("AABB", start=1)]


def seconds(found: list[Occurrence]) -> list[list[Any]]:
    return [[o.us // 1_000_000 for o in match.constituents] for match in found]


@pytest.mark.parametrize(
    ("context", "matches"),
    [
        ("unrestricted", [[1, 3], [2, 3], [1, 4], [2, 4]]),
        ("recent", [[2, 3], [2, 4]]),
        ("chronicle", [[1, 3], [2, 4]]),
        ("continuous", [[1, 3], [2, 3]]),
        ("cumulative", [[1, 2, 3]]),
    ],
)
def test_detect_in_a_context_is_that_of_the_expression_in_it(context: str, matches: Any) -> None:
    assert seconds(detect(AB, A1_A2_B3_B4, context=context)) == matches
    assert seconds(detect(AB.context(context), A1_A2_B3_B4)) == matches
    assert seconds(detect(AB.context("recent"), A1_A2_B3_B4, context=context)) == matches


def test_detect_with_a_selection_or_skip_is_that_of_the_sequence_with_it() -> None:
    assert seconds(detect(AB, A1_A2_B3_B4, selection="next")) == [[1, 3], [2, 3]]
    assert seconds(detect(AB, A1_A2_B3_B4, selection="strict")) == [[2, 3]]
    assert seconds(detect(AB, A1_A2_B3_B4, skip="past_last")) == [[1, 3]]
    assert seconds(detect(AB, A1_A2_B3_B4, skip=("to_first", "B"))) == [[1, 3]]


@pytest.mark.parametrize("option", ["selection", "skip"])
def test_detect_with_an_option_for_another_kind_of_expression_is_refused(option: str) -> None:
    with pytest.raises(PatternError, match=f"{option} is for a sequence, not for A"):
        detect(event("A"), [], **{option: "next"})  # type: ignore[arg-type]  # either of two
    with pytest.raises(PatternError, match="is not a context"):
        detect(AB, [], context="latest")


def test_detect_until_a_time_finds_what_time_completes_by_then() -> None:
    unanswered = seq(event("A"), ~event("B")).within(5)
    events = [Occurrence("A", 1)]
    assert seconds(detect(unanswered, events)) == []
    assert seconds(detect(unanswered, events, until=5.999999)) == []
    assert seconds(detect(unanswered, events, until=6)) == [[1]]
    assert seconds(detect(unanswered, [*events, Occurrence("C", 7)])) == [[1]]


def test_detect_with_an_incomplete_expression_is_refused() -> None:
    with pytest.raises(PatternError, match="within"):
        detect(seq(~event("A"), event("B")), [])
