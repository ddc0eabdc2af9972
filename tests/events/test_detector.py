from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table

from activedb.errors import BadEvent
from activedb.events import (
    Detector,
    Expression,
    Occurrence,
    event,
    inserted,
    many,
    occurrence,
    seq,
    updated,
)
from activedb.events.detection._sequence import SequenceNode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from activedb.events.detection._group import Groups

A, B, C, D, N = (event(name) for name in "ABCDN")
# Wang, Rundensteiner, Ellison 2011, section 2.
Q1 = seq(event("EXIT"), ~event("SANITIZE"), event("ENTER")).same("worker").within(45)
Q2 = seq(event("MASK"), event("EXIT")).same("worker").within(5)


def at(name: str, timestamp: float, **params: Any) -> Occurrence:
    return occurrence(name, timestamp=timestamp, **params)


def groups_of(detector: Detector) -> Groups:
    assert isinstance(detector._root, SequenceNode)
    return detector._root.groups


def run(expression: Expression, script: str) -> list[list[str]]:
    """Feed "A1 B2.5 …" (name, time) in the order written; return the parts of all matches."""
    detector = Detector(expression)
    fed: dict[Occurrence, str] = {}
    found = []
    for text in script.split():
        o = at(text[0], float(text[1:]), x=1)
        fed[o] = text
        found += [[fed[part] for part in match.parts.values()] for match in detector.feed(o)]
    return found


def test_paper_example_1_exit_enter_exit_matches_once_at_the_enter() -> None:
    q1, q2 = Detector(Q1, name="Q1"), Detector(Q2)
    exit_2, enter_10 = at("EXIT", 2, worker=7, location=1), at("ENTER", 10, worker=7, location=2)
    exit_15 = at("EXIT", 15, worker=7, location=2)
    assert q1.feed(exit_2) == []
    [match] = q1.feed(enter_10)
    assert q1.feed(exit_15) == []
    assert [q2.feed(o) for o in (exit_2, exit_15)] == [[], []]
    assert (match.name, match.timestamp, match.us) == ("Q1", 10, 10_000_000)
    assert match.key == ("composite", "Q1")
    assert dict(match.parts) == {"EXIT": exit_2, "ENTER": enter_10}
    assert match.params == {"worker": 7, "location": 2}
    assert (match.id, match.old, match.new) == (None, None, None)


def test_paper_examples_2_and_3_events_fed_late_take_their_place() -> None:
    # Example 2: exit 2 comes after enter 10, which is why disordered input is sorted first.
    late = Detector(Q1)
    assert late.feed(at("ENTER", 10, worker=7)) == []
    assert late.feed(at("EXIT", 2, worker=7)) == []
    assert len(late.feed(at("ENTER", 12, worker=7))) == 1
    # Example 3: exit 15 comes before enter 10 and has no part in its match.
    q1 = Detector(Q1)
    exit_2 = at("EXIT", 2, worker=7)
    q1.feed(exit_2)
    q1.feed(at("EXIT", 15, worker=7))
    [match] = q1.feed(at("ENTER", 10, worker=7))
    assert match.parts["EXIT"] is exit_2


def test_paper_query_with_a_sanitize_in_between_does_not_match() -> None:
    detector = Detector(Q1)
    detector.feed(at("EXIT", 2, worker=7))
    detector.feed(at("SANITIZE", 3, worker=8))
    assert len(detector.feed(at("ENTER", 4, worker=7))) == 1
    detector.feed(at("SANITIZE", 5, worker=7))
    assert detector.feed(at("ENTER", 6, worker=7)) == []
    assert detector.feed(at("ENTER", 7, worker=8)) == []


def test_composite_without_a_given_name_has_that_of_its_expression() -> None:
    detector = Detector(seq(A, B))
    detector.feed(at("A", 1))
    assert detector.feed(at("B", 2))[0].name == "SEQ(A, B)"


def test_composite_has_the_timestamp_exactly_as_its_last_part() -> None:
    detector = Detector(seq(A, B))
    detector.feed(at("A", 0))
    when = datetime(2026, 1, 1, tzinfo=UTC)
    [match] = detector.feed(occurrence("B", timestamp=when))
    assert match.timestamp is when


def test_composite_params_are_merged_in_time_order() -> None:
    detector = Detector(seq(A, B, C))
    detector.feed(at("A", 1, p="a", q="a", r="a"))
    detector.feed(at("B", 2, q="b", r="b"))
    assert detector.feed(at("C", 3, r="c"))[0].params == {"p": "a", "q": "b", "r": "c"}


@pytest.mark.parametrize(
    ("expression", "script", "matches"),
    [
        # Every combination, ordered by first parts, then second parts.
        (seq(A, B), "A1 A2 B3 B4", ["A1 B3", "A2 B3", "A1 B4", "A2 B4"]),
        (seq(A, B, C), "A1 B2 A3 B4 C5", ["A1 B2 C5", "A1 B4 C5", "A3 B4 C5"]),
        (seq(A), "A1 B2 A3", ["A1", "A3"]),
        (seq(A, B), "B1 A2", []),
        (seq(A, event("A", alias="again")), "A1 A2 A3", ["A1 A2", "A1 A3", "A2 A3"]),
        # Ties form no sequence.
        (seq(A, B), "A1 B1", []),
        (seq(A, event("A", alias="again")), "A1 A1", []),
        (seq(A, B, C), "A1 B1 B2 C2 C3", ["A1 B2 C3"]),
        # The window is inclusive and spans the positive parts.
        (seq(A, B).within(5), "A0.999999 A1 B6", ["A1 B6"]),
        (seq(A, B, C).within(5), "A1 B2 A2 B3 C7", ["A2 B3 C7"]),
        (seq(A, N, B).within(1e-6), "A1 N1 B1", []),
        # A negated event between positive parts counts strictly between them.
        (seq(A, ~N, B), "A1 N2 B3", []),
        (seq(A, ~N, B), "A1 N1 N3 B3", ["A1 B3"]),
        (seq(A, ~N, B), "A1 N2 A2 A3 B4", ["A2 B4", "A3 B4"]),
        (seq(A, ~N, B, C), "A1 B2 N3 B4 C5", ["A1 B2 C5"]),
        (seq(A, B, ~N, C), "A1 B2 N3 B4 C5", ["A1 B4 C5"]),
        (seq(A, ~N, B, ~N, C), "A1 B2 N3 A4 B5 C6", ["A4 B5 C6"]),
        (seq(A, ~N, ~D, B), "A1 D2 A3 B4 N5 A6 B7", ["A3 B4", "A6 B7"]),
        (seq(A, ~A, B), "A1 A2 B3", ["A2 B3"]),
        (seq(A, ~B, B), "A1 B2 B3", ["A1 B2"]),
        # At the start it counts from the window's beginning, inclusive, up to the first part.
        (seq(~N, A, B).within(5), "N1 A2 B6", []),
        (seq(~N, A, B).within(5), "N0.999999 A2 B6", ["A2 B6"]),
        (seq(~N, A, B).within(5), "N2 A2 N3 B4", ["A2 B4"]),
        (seq(~N, A, B).within(5), "A1 N2 A3 B4", ["A1 B4"]),
        (seq(~N, A).within(5), "N1 A6 A6.000001", ["A6.000001"]),
        (seq(~N, A).within(5), "N6 A6", ["A6"]),
        (seq(~A, A).within(5), "A1 A3 A9", ["A1", "A9"]),
        (seq(~N, A, ~N, B).within(5), "A1 N2 A3 B4 N5 A9 B10", []),
        # What is fed late takes its place, and changes nothing that was found before.
        (seq(A, B), "B3 A1 B2", ["A1 B2"]),
        (seq(A, ~N, B), "A1 B3 N2 B4", ["A1 B3"]),
        (seq(A, B, C), "B3 B2 A1 C4", ["A1 B2 C4", "A1 B3 C4"]),
    ],
)
def test_sequence_matches_by_definition(
    expression: Expression, script: str, matches: list[str]
) -> None:
    assert run(expression, script) == [match.split() for match in matches]


def test_matches_of_equal_times_are_ordered_by_id_then_arrival() -> None:
    detector = Detector(seq(A, B))
    ids = ["b", None, "a", "b"]
    fed = [occurrence("A", timestamp=1, id=id_) for id_ in ids]
    for o in fed:
        detector.feed(o)
    matches = detector.feed(at("B", 2))
    assert [match.parts["A"] for match in matches] == [fed[1], fed[2], fed[0], fed[3]]


def test_same_relates_all_parts_and_several_attributes() -> None:
    detector = Detector(seq(A, ~N, B).same("x", "y"))
    for name, timestamp, x, y in [("A", 1, 1, 1), ("A", 2, 1, 2), ("N", 3, 1, 2), ("N", 3, 2, 1)]:
        detector.feed(at(name, timestamp, x=x, y=y))
    assert len(detector.feed(at("B", 4, x=1, y=1))) == 1
    assert detector.feed(at("B", 4, x=1, y=2)) == []
    assert detector.feed(at("B", 4, x=2, y=2)) == []


@pytest.mark.parametrize("name", ["A", "N", "B"])
def test_same_attribute_missing_in_any_part_is_refused_by_name(name: str) -> None:
    detector = Detector(seq(A, ~N, B).same("worker"))
    with pytest.raises(BadEvent, match=f"{name} at 1 .* has no parameter 'worker'"):
        detector.feed(at(name, 1, room=3))
    assert detector.partials == 0


@pytest.mark.parametrize("value", [[7], {}, float("nan"), Decimal("sNaN")])
def test_same_attribute_that_cannot_be_compared_is_refused_by_name(value: Any) -> None:
    with pytest.raises(BadEvent, match=r"parameter 'worker' .* cannot be compared"):
        Detector(seq(A, B).same("worker")).feed(at("A", 1, worker=value))


def test_same_attribute_of_an_event_that_no_part_takes_is_not_needed() -> None:
    detector = Detector(seq(event("A", where=lambda o: False), B).same("worker"))
    assert detector.feed(at("A", 1)) == []
    assert detector.feed(at("C", 1)) == []


def test_same_attribute_of_data_changes_is_a_column() -> None:
    table = Table("t", MetaData(), Column("id", Integer), Column("v", Integer))
    detector = Detector(seq(inserted(table), updated(table, "v", alias="then")).same("id"))
    insert = Occurrence("t", 1, new={"id": 1, "v": 1})
    detector.feed(insert)
    assert detector.feed(Occurrence("t", 2, old={"id": 1, "v": 1}, new={"id": 1, "v": 1})) == []
    assert detector.feed(Occurrence("t", 2, old={"id": 2, "v": 1}, new={"id": 2, "v": 2})) == []
    [match] = detector.feed(Occurrence("t", 2, old={"id": 1, "v": 1}, new={"id": 1, "v": 2}))
    assert match.parts["t"] is insert
    assert match.params == {"id": 1, "v": 2}


def test_where_sees_the_positive_parts_read_only_and_chooses() -> None:
    seen = []

    def moved(parts: Mapping[str, Occurrence]) -> bool:
        seen.append(list(parts))
        with pytest.raises(TypeError):
            parts["first"] = parts["B"]  # type: ignore[index]  # the mistake under test
        return bool(parts["first"].params["x"] != parts["B"].params["x"])

    detector = Detector(seq(event("A", alias="first"), ~N, B).where(moved))
    detector.feed(at("A", 1, x=1))
    detector.feed(at("A", 2, x=2))
    [match] = detector.feed(at("B", 3, x=2))
    assert match.parts["first"].us == 1_000_000
    assert seen == [["first", "B"]] * 2


def test_where_given_twice_demands_both() -> None:
    expression = seq(A, B).where(lambda parts: parts["A"].params["x"] > 1)
    detector = Detector(expression.where(lambda parts: parts["A"].params["x"] < 3))
    for x in (1, 2, 3):
        detector.feed(at("A", x, x=x))
    assert [match.params["x"] for match in detector.feed(at("B", 9))] == [2]


def test_event_predicates_apply_to_positive_and_negated_parts() -> None:
    big = event("A", where=lambda o: o.params["x"] > 1)
    bad = event("N", where=lambda o: o.params["x"] > 1)
    detector = Detector(seq(big, ~bad, B))
    detector.feed(at("A", 1, x=1))
    detector.feed(at("A", 2, x=2))
    detector.feed(at("N", 3, x=1))
    assert [match.parts["A"].us for match in detector.feed(at("B", 4))] == [2_000_000]
    detector.feed(at("N", 5, x=2))
    assert detector.feed(at("B", 6)) == []


@pytest.mark.parametrize("place", ["event", "sequence"])
def test_feed_with_a_raising_predicate_changes_nothing(place: str) -> None:
    def fails(_: object) -> bool:
        raise ZeroDivisionError

    again = event("A", alias="again", where=fails if place == "event" else None)
    expression = seq(A, again) if place == "event" else seq(A, again).where(fails)
    detector = Detector(expression)
    if place == "sequence":
        detector.feed(at("A", 1))
    before = detector.partials
    with pytest.raises(ZeroDivisionError):
        detector.feed(at("A", 2))
    assert detector.partials == before


def test_primitive_detector_returns_the_occurrence_itself_and_retains_nothing() -> None:
    detector = Detector(event("A", where=lambda o: o.params["x"] > 1))
    o = at("A", 1, x=2)
    assert detector.feed(o) == [o]
    assert detector.feed(at("A", 1, x=1)) == []
    assert (detector.partials, detector.horizon_us) == (0, 0)
    detector.withdraw(o)
    detector.trim(10)
    assert detector.feed(o) == [o]


def test_accepts_only_events_that_the_expression_listens_to() -> None:
    detector = Detector(seq(A, ~N, B))
    assert [detector.accepts(at(name, 1)) for name in "ANBC"] == [True, True, True, False]
    assert not detector.accepts(Occurrence("A", 1, new={}))


def test_horizon_is_the_window() -> None:
    assert Detector(seq(A, B)).horizon_us is None
    assert Detector(seq(A, B).within(1.5)).horizon_us == 1_500_000


def test_partials_count_each_retained_event_once() -> None:
    detector = Detector(seq(A, event("A", alias="again"), ~A, B))
    detector.feed(at("A", 1))
    detector.feed(at("B", 2))
    detector.feed(at("C", 3))
    assert detector.partials == 1


def test_withdraw_undoes_the_feeding_of_that_very_object() -> None:
    detector = Detector(seq(A, ~N, B))
    twins = [at("A", 1), at("A", 1)]
    negated = at("N", 2)
    for o in (*twins, negated):
        detector.feed(o)
    detector.withdraw(twins[0])
    detector.withdraw(negated)
    assert [match.parts["A"] for match in detector.feed(at("B", 3))] == [twins[1]]
    assert detector.partials == 1


def test_withdraw_of_an_object_fed_twice_undoes_one_feeding() -> None:
    detector = Detector(seq(A, B))
    o = at("A", 1)
    detector.feed(o)
    detector.feed(o)
    assert len(detector.feed(at("B", 2))) == 2
    detector.withdraw(o)
    assert len(detector.feed(at("B", 2))) == 1
    assert detector.partials == 1


def test_withdraw_of_what_is_not_retained_does_nothing() -> None:
    detector = Detector(seq(A, B).same("x").within(5))
    fed, accepting = at("A", 1, x=1), at("B", 2, x=1)
    detector.feed(fed)
    detector.feed(accepting)
    for o in (at("A", 1, x=1), at("A", 1), at("A", 1, x=2), at("C", 1), accepting):
        detector.withdraw(o)
    assert detector.partials == 1
    detector.trim(7_000_000)
    detector.withdraw(fed)
    assert detector.partials == 0


def test_trim_keeps_what_a_match_ending_then_can_still_need() -> None:
    detector = Detector(seq(~N, A, B).within(5))
    detector.feed(at("N", 0.5))
    detector.feed(at("N", 1))
    detector.feed(at("A", 2))
    detector.trim(6_000_000)
    assert detector.partials == 2
    assert detector.feed(at("B", 6)) == []
    assert len(detector.feed(at("B", 6.5))) == 1


def test_trim_keeps_what_keeps_an_earlier_event_from_being_the_next() -> None:
    expression = seq(~N, many(B, 0, 1), A).where(lambda parts: True).within(3)
    detector = Detector(expression.selecting("next").skipping("past_last"))
    for o in (at("N", 0), at("B", 1), at("A", 3)):
        assert detector.feed(o) == []
    detector.trim(4_000_000)
    # N at 0 is in the window that A at 3 ends, so that A at 4 is the next one after B.
    (match,) = detector.feed(at("A", 4))
    assert [o.us for o in match.constituents] == [1_000_000, 4_000_000]


def test_trim_without_a_window_forgets_nothing() -> None:
    detector = Detector(seq(A, B))
    detector.feed(at("A", 1))
    detector.trim(10**15)
    assert len(detector.feed(at("B", 10**9))) == 1


def test_trim_bounds_the_memory_of_many_keys() -> None:
    detector = Detector(seq(A, ~N, B).same("x").within(5))
    for second in range(2000):
        detector.feed(at("A" if second % 2 else "N", second, x=second))
        detector.trim(second * 1_000_000)
        assert detector.partials <= 6
        assert len(groups_of(detector).by_key) <= 6
        assert len(groups_of(detector)._expiry) <= 6


def test_trim_after_late_events_forgets_them_too() -> None:
    detector = Detector(seq(A, B).same("x").within(5))
    detector.feed(at("A", 20, x=1))
    for second in (9, 4, 3, 2, 1):
        detector.feed(at("A", second, x=1))
    detector.trim(10_000_000)
    assert detector.partials == 2
    assert len(groups_of(detector)._expiry) <= 3
    detector.trim(15_000_000)
    assert detector.partials == 1
    detector.trim(26_000_000)
    assert (detector.partials, len(groups_of(detector).by_key)) == (0, 0)


def test_feed_against_a_long_history_builds_no_combination_in_vain() -> None:
    # N parts the A that follow Z from those that do not. Going back from R through the latter
    # would try C(60, 30) combinations, none of which reaches Z.
    guarded = [part for n in range(30) for part in (~N, event("A", alias=f"a{n}"))]
    detector = Detector(seq(event("Z"), *guarded, event("R"), B))
    detector.feed(at("Z", 0))
    following = [at("A", second) for second in range(1, 31)]
    for o in following:
        detector.feed(o)
    detector.feed(at("N", 31))
    for second in range(32, 92):
        detector.feed(at("A", second))
    detector.feed(at("R", 92))
    [match] = detector.feed(at("B", 93))
    assert list(match.parts.values())[1:-2] == following
