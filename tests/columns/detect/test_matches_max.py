"""Limit on the matches that one event completes in columns: the same as event by event."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from activedb.columns.detect._detector import ColumnarDetector
from activedb.columns.events import EventColumns
from activedb.errors import MatchesExceeded, PatternError
from activedb.events import Detector, Expression, Occurrence, event, many, part, seq

from .strategies import is_supported

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
A, B, C = event("A"), event("B"), event("C")


def fed(expression: Expression, found: list[Occurrence], most: int) -> tuple[list[Any], set[int]]:
    """Matches and the refused ones, event by event."""
    detector = Detector(expression, matches_max=most)
    made: list[Any] = []
    refused = set()
    for number, o in enumerate(found):
        detector.advance(o.us)
        try:
            made += [shown(match) for match in detector.feed(o)]
        except MatchesExceeded:
            refused.add(number)
    return made, refused


def fed_in_columns(
    expression: Expression, found: list[Occurrence], most: int
) -> tuple[list[Any], set[int]]:
    """The same in columns: as many at once as are not refused, as the rules of a stream do."""
    detector = ColumnarDetector(expression, matches_max=most)
    made: list[Any] = []
    refused = set()
    start, size = 0, len(found)
    while start < len(found):
        tried = detector.copy()
        try:
            matches = tried.feed(EventColumns.of_occurrences(found[start : start + size]))
        except MatchesExceeded:
            if size == 1:
                refused.add(start)
                start += 1
            size = max(size // 2, 1)
            continue
        made += [shown(match) for match in matches.occurrences()]
        detector = tried
        start += size
    return made, refused


@st.composite
def crowded(draw: st.DrawFn) -> Expression:
    """Sequences of which one event soon completes several matches."""
    names = draw(st.sampled_from(["AB", "ABC", "AAB", "BAB", "ABA"]))
    parts: list[Any] = [event(name).named(f"p{place}") for place, name in enumerate(names)]
    if draw(st.booleans()):
        place = draw(st.integers(1, len(names) - 1))
        parts[place] = many(event(names[place]), 1, draw(st.sampled_from([2, None])))
        parts[place] = parts[place].named(f"p{place}")
    sequence = seq(*parts).within(draw(st.integers(3, 9)))
    choice = draw(st.sampled_from(["none", "none", "term", "function"]))
    if choice == "term":
        sequence = sequence.where(part("p0").x <= 1)
    if choice == "function":
        sequence = sequence.where(_begins_low)
    context = draw(
        st.sampled_from(
            ["unrestricted", "unrestricted", "recent", "chronicle", "continuous", "cumulative"]
        )
    )
    return sequence.selecting(draw(st.sampled_from(["any", "any", "next"]))).context(context)


def _begins_low(parts: Any) -> bool:
    return bool(parts["p0"].params["x"] <= 1)


def shown(match: Occurrence) -> Any:
    return match.us, {name: _us(part) for name, part in match.parts.items()}


def _us(part: Any) -> Any:
    return tuple(o.us for o in part) if isinstance(part, tuple) else part.us


@pytest.mark.long
@settings(max_examples=200 * SCALE, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_event_is_refused_in_columns_if_it_is_refused_event_by_event(data: Any) -> None:
    expression = data.draw(crowded().filter(is_supported))
    names = data.draw(st.lists(st.sampled_from("ABC"), min_size=5, max_size=12))
    found = [Occurrence(name, us // 2, {"x": us % 3}) for us, name in enumerate(names)]
    most = data.draw(st.integers(1, 3))
    expected = fed(expression, found, most)
    assume(expected[1])  # else it says nothing of the bound
    assert fed_in_columns(expression, found, most) == expected


@pytest.mark.long
@pytest.mark.parametrize("context", ["chronicle", "continuous", "cumulative"])
@pytest.mark.parametrize("middle", [B, many(B, 1, 2)], ids=repr)
def test_what_is_used_up_does_not_count(middle: Expression, context: str) -> None:
    expression = seq(A, middle, C).within(100).selecting("next").context(context)
    found = [Occurrence(name, us, {}) for us, name in enumerate("AABCCAABCC")]
    most = 1 if context == "chronicle" else 2
    made, refused = fed(expression, found, most)
    assert not refused
    assert fed_in_columns(expression, found, most) == (made, set())
    if most > 1:
        made, refused = fed(expression, found, most - 1)
        assert refused
        assert fed_in_columns(expression, found, most - 1) == (made, refused)


@pytest.mark.long
@pytest.mark.parametrize(
    "expression",
    [
        seq(A, B, C).within(100),
        seq(A, B, C).within(100).selecting("next"),
        seq(A, many(B, 1, 2), C).within(100),
        seq(A, B, C).within(100).where(lambda parts: parts["A"].us != 0),
    ],
    ids=repr,
)
def test_event_at_the_bound_is_taken_and_one_above_it_refused(expression: Expression) -> None:
    found = [Occurrence(name, us, {}) for us, name in enumerate("AAABBBC")]
    made, refused = fed(expression, found, 1_000)
    assert not refused
    most = len(made)
    assert most > 1
    assert fed_in_columns(expression, found, most) == (made, set())
    assert fed_in_columns(expression, found, most - 1) == ([], {6})


@pytest.mark.long
def test_by_default_the_bound_is_that_of_a_detector() -> None:
    names = "A" * 101 + "B" * 100 + "C"
    found = [Occurrence(name, us, {}) for us, name in enumerate(names)]
    columns = EventColumns.of_occurrences(found)
    with pytest.raises(MatchesExceeded, match="more than 10000 matches of SEQ") as refused:
        ColumnarDetector(seq(A, B, C).within(1_000)).feed(columns)
    detector = Detector(seq(A, B, C).within(1_000))
    with pytest.raises(MatchesExceeded) as one_by_one:
        for o in found:
            detector.feed(o)
    assert str(refused.value) == str(one_by_one.value)
    free = ColumnarDetector(seq(A, B, C).within(1_000), matches_max=None)
    assert len(free.feed(columns)) == 10_100


@pytest.mark.parametrize("most", [0, True, "many"])
def test_matches_max_that_has_no_meaning_is_refused(most: Any) -> None:
    with pytest.raises(PatternError, match="whole number from 1"):
        ColumnarDetector(seq(A, B).within(1), matches_max=most)
