"""Any one of several events, against the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activedb.errors import PatternError
from activedb.events import (
    Detector,
    Disjunction,
    Occurrence,
    any_of,
    deleted,
    detect,
    event,
    inserted,
    occurrence,
    seq,
    updated,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Accounts:
    fullname = "accounts"


A, B = event("A"), event("B")


def test_any_of_matches_each_of_its_events_once_and_keeps_nothing() -> None:
    detector = Detector(A | B | event("A", where=lambda o: True))
    first, second = occurrence("A", timestamp=2), occurrence("B", timestamp=1)
    assert detector.feed(first) == [first]
    assert detector.feed(second) == [second]
    assert detector.feed(occurrence("C", timestamp=3)) == []
    assert (detector.partials, detector.horizon_us) == (0, 0)
    detector.withdraw(first)
    detector.trim(10)


def test_any_of_and_the_operator_make_the_same() -> None:
    assert any_of(A, B) == A | B
    assert any_of(A, A | B, B) == A | B
    assert any_of(A) == Disjunction((A,))
    assert (A | B).keys == {("event", "A"), ("event", "B")}
    assert repr(any_of(A, inserted(Accounts))) == "ANY(A, INSERT accounts)"


def test_any_of_data_changes_gives_the_change_itself() -> None:
    detector = Detector(inserted(Accounts) | updated(Accounts, "n") | deleted(Accounts))
    changes = [
        Occurrence("accounts", 1, new={"n": 1}),
        Occurrence("accounts", 2, old={"n": 1, "m": 1}, new={"n": 1, "m": 2}),
        Occurrence("accounts", 3, old={"n": 1}, new={"n": 2}),
        Occurrence("accounts", 4, old={"n": 2}),
    ]
    assert [detector.feed(o) for o in changes] == [[changes[0]], [], [changes[2]], [changes[3]]]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: any_of(), "any_of.. needs events"),
        (lambda: any_of("A"), "any_of.. and . take primitive events.*not 'A'"),  # type: ignore[arg-type]
        (lambda: A | "B", "take primitive events"),
        (lambda: A | seq(B), "take primitive events.*define a rule for each"),
        (lambda: seq(A) | B, "take primitive events"),
        (lambda: A | ~B, "take primitive events"),
        (lambda: ~A | B, "take primitive events"),
        (lambda: ~(A | B), "negates a primitive event"),
        (lambda: seq(A | B), "cannot be a part of a sequence"),
        (lambda: (A | B).within(3), "bounds the parts of a sequence"),
        (lambda: (A | B).same("x"), "relates the parts of a sequence"),
        (lambda: (A | B).where(lambda parts: True), "takes the parts of a sequence"),
    ],
)
def test_any_of_what_has_no_meaning_is_refused(write: Callable[[], Any], message: str) -> None:
    with pytest.raises(PatternError, match=message):
        write()


parts = st.tuples(st.sampled_from("ABC"), st.none() | st.integers(0, 2))
events = st.tuples(st.sampled_from("ABCD"), st.integers(0, 2), st.integers(0, 5))


@given(st.lists(parts, min_size=1, max_size=5), st.lists(events, max_size=12))
def test_any_of_takes_what_some_part_takes(
    chosen: list[tuple[str, int | None]], raised: list[tuple[str, int, int]]
) -> None:
    def part(name: str, least: int | None) -> Any:
        return event(name, where=None if least is None else lambda o: o.params["x"] >= least)

    expression = any_of(*(part(name, least) for name, least in chosen))
    given = [
        Occurrence(name, us / 1e6, {"x": x}, id=f"{number:02}")
        for number, (name, x, us) in enumerate(raised)
    ]
    expected = [
        o
        for o in sorted(given, key=lambda o: (o.us, o.id))
        if any(o.name == n and (least is None or o.params["x"] >= least) for n, least in chosen)
    ]
    assert detect(expression, given) == expected
