"""Events of which it is not known exactly when they happened."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest

from activedb.errors import BadEvent, PatternError, UncertainOrder
from activedb.events import (
    Detector,
    Expression,
    Network,
    Occurrence,
    all_of,
    decode_undecided,
    detect,
    encode_undecided,
    event,
    every,
    many,
    periodic,
    seq,
    some_of,
)
from activedb.events._accuracy import AccuracyInterval, LocalClock
from tests.drawing import Worlds

A, B, C, N = (event(name) for name in "ABCN")
FAR = 1000


def o(text: str) -> Occurrence:
    """ "A1-5": an A between 1 and 5 µs, read in the middle; "A3": one at 3 µs exactly."""
    low, _, high = text[1:].partition("-")
    ends = int(low), int(high or low)
    return Occurrence(text[0], AccuracyInterval(sum(ends) // 2, *ends), {"text": text})


def run(expression: Expression, script: str, policy: Any, waiting: str = "") -> list[str]:
    """Feed the events; the last one with `waiting` as contemporaries."""
    detector = Detector(expression, on_uncertain=policy)
    found: list[Occurrence] = []
    events = [o(text) for text in script.split()]
    for event_ in events:
        others = [o(text) for text in waiting.split()] if event_ is events[-1] else []
        found += detector.feed(event_, None, others)
    return [" ".join(part.params["text"] for part in match.constituents) for match in found]


@pytest.mark.parametrize(
    ("expression", "script", "certain", "possible"),
    [
        (seq(A, B), "A0-10 B11-15", ["A0-10 B11-15"], ["A0-10 B11-15"]),
        (seq(A, B), "A0-10 B10-15", [], ["A0-10 B10-15"]),
        (seq(A, B), "A0-10 B5-15", [], ["A0-10 B5-15"]),
        (seq(A, B), "B5-8 A0-10", [], ["A0-10 B5-8"]),
        (seq(A, B), "B0-4 A5-9", [], []),
        (seq(A, B), "A5 B5", [], []),
        (seq(A, B), "A5 B5-6", [], ["A5 B5-6"]),
        (seq(A, ~N, B), "A0-2 N5-6 B8-9", [], []),
        (seq(A, ~N, B), "A0-2 N1-6 B8-9", [], ["A0-2 B8-9"]),
        (seq(A, ~N, B), "A0-2 N9-12 B8-14", [], ["A0-2 B8-14"]),
        (seq(A, ~N, B), "N0-1 A2-3 B8-9", ["A2-3 B8-9"], ["A2-3 B8-9"]),
        (seq(~N, A).within(FAR), "N0-5 A4-9", [], ["A4-9"]),
        (seq(~N, A).within(FAR), "N0-3 A4-9", [], []),
        (
            seq(A, many(B), C).within(FAR),
            "A0-1 B3-6 B5-7 C9",
            ["A0-1 B3-6 C9", "A0-1 B5-7 C9"],
            None,
        ),
        (seq(A, B).selecting("next"), "A0-1 B2-3 B5-6", ["A0-1 B2-3"], ["A0-1 B2-3"]),
        (seq(A, B).selecting("next"), "A0-1 B2-6 B5-7", ["A0-1 B2-6"], ["A0-1 B2-6", "A0-1 B5-7"]),
    ],
)
def test_certain_and_possible_matches(
    expression: Expression, script: str, certain: list[str], possible: list[str] | None
) -> None:
    found = run(expression, script, "certain")
    assert found == certain
    if possible is not None:
        assert run(expression, script, "possible") == possible


def test_raise_keeps_the_event_and_tells_what_is_made_and_what_is_open() -> None:
    detector = Detector(seq(A, B), on_uncertain="raise")
    first, second, third = o("A0-10"), o("A1-2"), o("B5-15")
    detector.feed(first)
    detector.feed(second)
    with pytest.raises(UncertainOrder) as caught:
        detector.feed(third)
    error = caught.value
    assert [list(parts.values()) for parts in error.candidates] == [[first, third]]
    assert [list(parts.values()) for parts in error.certain] == [[second, third]]
    assert [list(match.parts.values()) for match in error.made] == [[second, third]]
    assert error.rivals[0].unordered == ((first, third),)
    assert error.undecided == detector.undecided == tuple(detector.take_undecided())
    assert detector.partials == 3
    assert len(detector.feed(o("B20-21"))) == 2


def test_callback_chooses_among_the_candidates() -> None:
    told: list[UncertainOrder] = []

    def choose(error: UncertainOrder) -> Any:
        told.append(error)
        return error.candidates[:1]

    # What is certain is made whatever it answers.
    assert run(seq(A, B), "A0-10 A1-2 B5-15", choose) == ["A1-2 B5-15", "A0-10 B5-15"]
    assert len(told) == 1
    assert run(seq(A, B), "A0-10 A1-2 B5-15", lambda error: ()) == ["A1-2 B5-15"]


def test_empty_answer_of_a_callback_decides() -> None:
    detector = Detector(seq(A, B).context("chronicle"), on_uncertain=lambda error: ())
    assert [detector.feed(o(text)) for text in ("A0-10", "B5-15")] == [[], []]
    assert detector.undecided == ()
    # A is free for certain now, as the answer says so.
    assert len(detector.feed(o("B20-21"))) == 1


def test_reading_decides_as_if_readings_were_exact() -> None:
    assert run(seq(A, B), "A0-10 B4-8", "reading") == ["A0-10 B4-8"]
    assert run(seq(A, B), "A0-10 B0-8", "reading") == []
    assert run(seq(A, ~N, B), "A0-10 N3-9 B4-12", "reading") == []


def test_reading_decides_when_a_window_ends() -> None:
    for negated, matches in (("N40-300", [115]), ("N40-100", [])):
        detector = Detector(seq(A, ~N).within(0.0001), on_uncertain="reading")
        detector.feed(o("A10-20"))
        detector.feed(o(negated))
        assert detector.due_us == 115
        assert [match.us for match in detector.advance(FAR)] == matches


def test_exact_end_before_an_interval_that_may_precede_it_is_never_forgotten_unnoticed() -> None:
    # A is exact, and nothing exact that is fed later can precede it: so it is not kept.
    exact, late = Occurrence("A", 5), Occurrence("C", AccuracyInterval(5, 4, 7_000_000))
    detector = Detector(seq(C, A), on_uncertain="raise")
    detector.feed(exact)
    assert detector.partials == 0
    with pytest.raises(UncertainOrder, match="expect_intervals"):
        detector.feed(late)
    assert len(detector.feed(Occurrence("A", 8))) == 1, "the event that it raised for is kept"
    for policy in ("certain", "reading"):
        detector = Detector(seq(C, A), on_uncertain=policy)
        assert detector.feed(exact) == detector.feed(late) == []
    detector = Detector(seq(C, A), on_uncertain="possible")
    detector.feed(exact)
    assert len(detector.feed(late)) == 1
    detector = Detector(seq(C, A), on_uncertain="raise")
    detector.expect_intervals()
    detector.feed(exact)
    with pytest.raises(UncertainOrder) as caught:
        detector.feed(late)
    assert len(caught.value.candidates) == 1
    with pytest.raises(UncertainOrder) as caught:
        detect(seq(C, A), [late, exact], on_uncertain="raise")
    assert len(caught.value.candidates) == 1


def test_chronicle_that_cannot_tell_the_oldest_is_uncertain() -> None:
    chronicle = seq(A, B).context("chronicle")
    assert run(chronicle, "A0-1 A2-3 B9", "certain") == ["A0-1 B9"]
    assert run(chronicle, "A0-4 A1-3 B9", "certain") == []
    with pytest.raises(UncertainOrder):
        run(chronicle, "A0-4 A1-3 B9", "raise")
    assert run(chronicle, "A0-4 A2-5 B9", "reading") == ["A0-4 B9"]


def test_contemporary_that_may_stand_in_between_makes_a_match_uncertain() -> None:
    assert run(seq(A, ~N, B), "A0-1 B5-8", "certain", waiting="N6-12") == []
    assert run(seq(A, ~N, B), "A0-1 B5-8", "certain", waiting="N9-12") == ["A0-1 B5-8"]
    assert run(seq(A, ~N, B), "A0-1 B5-8", "possible", waiting="N6-12") == ["A0-1 B5-8"]


def test_local_clock_orders_what_intervals_do_not() -> None:
    clock = LocalClock("boot", drift_ppb=0)

    def local(name: str, reading: int) -> Occurrence:
        stamp = AccuracyInterval(
            reading, reading - 500, reading + 500, node="n", local_us=reading, local_clock=clock
        )
        return Occurrence(name, stamp)

    detector = Detector(seq(A, B))
    detector.feed(local("A", 1000))
    assert len(detector.feed(local("B", 1010))) == 1
    assert detector.feed(local("B", 990)) == []


def test_end_of_a_window_is_uncertain_if_a_negated_event_may_follow() -> None:
    expression = seq(A, ~N).within(0.0001)
    for policy, matches in (("certain", 0), ("possible", 1)):
        detector = Detector(expression, on_uncertain=policy)
        detector.feed(o("A10-20"))
        detector.feed(o("N15-30"))
        assert len(detector.advance(FAR)) == matches


def test_uncertain_events_are_withdrawn_like_others() -> None:
    detector = Detector(seq(A, ~N, B))
    first, negated = o("A0-2"), o("N1-6")
    detector.feed(first)
    detector.feed(negated)
    detector.withdraw(negated)
    assert len(detector.feed(o("B8-9"))) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "expression",
    [
        seq(A, ~N, B, C).within(9),
        seq(A, many(B, 0, 2), C).within(9).selecting("next"),
        seq(A, B, C).within(9).selecting("strict").context("chronicle"),
        seq(~N, A, B).within(9).context("continuous").skipping("to_next"),
        seq(A, B, ~N).within(9),
        seq(A, many(B, greedy=False)).within(9).gap(3).context("recent"),
    ],
    ids=repr,
)
def test_exact_events_after_an_uncertain_one_are_matched_as_ever(expression: Expression) -> None:
    worlds = Worlds(30, expression, matches=5)
    for random in worlds:
        # Beyond the window: it only makes the detector look for what is uncertain.
        wary, usual = Detector(expression), Detector(expression)
        wary.feed(Occurrence("A", AccuracyInterval(-(10**9), -(10**9) - 10**6, 10**6 - 10**9)))
        wary.advance(0)
        second, forgets_at = 0, random.choice([0, 20, 40])
        for number in range(40):
            second += random.randrange(3)
            if number == forgets_at:
                # Nothing inexact is kept from here on.
                wary.trim(second * 1_000_000)
                assert not wary._shared.is_inexact
            event_ = Occurrence(random.choice("AABBCN"), second, id=random.choice([None, "a"]))
            expected = usual.advance(event_.us) + usual.feed(event_)
            found = wary.advance(event_.us) + wary.feed(event_)
            assert [dict(m.parts) for m in found] == [dict(m.parts) for m in expected]
            worlds.met["matches"] += len(found)


def test_policy_without_meaning_is_refused() -> None:
    with pytest.raises(PatternError, match="on_uncertain takes one of"):
        Detector(seq(A, B), on_uncertain="perhaps")


@pytest.mark.parametrize("policy", ["raise", "certain", "possible"])
def test_chronicle_takes_the_oldest_that_is_known_though_a_later_one_is_not(policy: str) -> None:
    # Liebig et al., V.B: a later a1 that overlaps b10 cannot take the place of a0.
    for expression in (all_of(A, B), seq(A, B)):
        chronicle = expression.context("chronicle")
        assert run(chronicle, "A0 B10-14", policy, waiting="A12-15") == ["A0 B10-14"]
        assert run(chronicle, "A0 B10-14", policy, waiting="C9-15") == ["A0 B10-14"]


@pytest.mark.parametrize("waiting", ["A0-3", "B12-15"])
def test_chronicle_with_a_contemporary_that_may_be_older_is_uncertain(waiting: str) -> None:
    for expression in (all_of(A, B), seq(A, B)):
        chronicle = expression.context("chronicle")
        assert run(chronicle, "A1-2 B10-14", "certain", waiting=waiting) == []
        with pytest.raises(UncertainOrder):
            run(chronicle, "A1-2 B10-14", "raise", waiting=waiting)


def test_chronicle_conjunction_compares_what_stands_for_one_part() -> None:
    # The order of A12-15 and B10-14 is unknown, and does not matter.
    chronicle = all_of(A, B).context("chronicle")
    assert run(chronicle, "A0 A12-15 B10-14", "raise") == ["A0 B10-14"]
    assert run(chronicle, "A0-3 A2-5 B10-14", "certain") == []


@pytest.mark.parametrize("expression", [all_of(A, B), seq(A, B)])
def test_what_may_be_used_up_is_part_of_no_certain_match(expression: Expression) -> None:
    detector = Detector(expression.context("chronicle"), on_uncertain="certain")
    older, younger = o("B10-14"), o("B12-20")
    assert detector.feed(o("A0")) == []
    assert detector.feed(older, None, [younger]) == []
    # It is unknown which B is older: A0 belongs to one of them, the other is free.
    assert detector.feed(younger) == []
    assert detector.feed(o("A30")) == []
    restored = Detector(expression.context("chronicle"), on_uncertain="certain")
    restored.restore(detector.state())
    for each in (detector, restored):
        found = each.feed(o("B40"))
        # In a sequence, A30 comes too late for the free one.
        texts = [part.params["text"] for match in found for part in match.constituents]
        assert texts == (["A30", "B40"] if expression == seq(A, B) else [])


def test_certain_match_of_a_context_is_the_choice_of_every_order() -> None:
    # If A0-10 is before B5-15, it is the oldest; else A1-2 is.
    assert run(seq(A, B).context("chronicle"), "A0-10 A1-2 B5-15", "certain") == []
    assert run(seq(A, B).context("chronicle"), "A0-1 A2-10 B5-15", "certain") == ["A0-1 B5-15"]
    assert run(seq(A, B).context("chronicle"), "A0-1 A2-10 B5-15", "raise") == ["A0-1 B5-15"]
    assert run(seq(A, B).context("recent"), "A0-1 A2-10 B5-15", "certain") == []
    assert run(seq(A, B).context("recent"), "A0-1 A2-3 B5-15", "raise") == ["A2-3 B5-15"]
    assert run(seq(A, B).context("continuous"), "A0-3 A2-10 B5-15", "certain") == ["A0-3 B5-15"]
    assert run(seq(A, B).context("cumulative"), "A0-3 A2-10 B5-15", "certain") == []
    assert run(seq(A, B).context("cumulative"), "A0-3 A2-4 B5-15", "raise") == ["A0-3 A2-4 B5-15"]


# -- open choices --------------------------------------------------------------------------------


def figure_3() -> tuple[Detector, list[Occurrence]]:
    """Liebig et al., figure 3: two Bs overlap, and one A is there for both."""
    events = [o("A0-10"), o("B12-22"), o("B16-28")]
    detector = Detector(all_of(A, B).context("chronicle"))
    a, first, second = events
    assert detector.feed(a) == detector.feed(first, None, [second]) == detector.feed(second) == []
    return detector, events


def test_figure_3_makes_nothing_and_lists_both_matches_with_their_rivals() -> None:
    detector, (a, first, second) = figure_3()
    one, other = detector.take_undecided()
    assert detector.take_undecided() == []
    assert [dict(each) for each in one.candidates] == [{"A": a, "B": first}]
    assert [dict(each) for each in one.rivals[0].candidates] == [{"A": a, "B": second}]
    assert [dict(each) for each in other.candidates] == [{"A": a, "B": second}]
    assert one.event is first
    assert other.event is second
    assert detector.partials == 3


@pytest.mark.parametrize("number", [0, 1])
def test_resolving_one_choice_decides_the_other_that_hung_on_it(number: int) -> None:
    detector, (a, *bs) = figure_3()
    chosen = detector.undecided[number]
    [match] = detector.resolve(chosen.identity, [0])
    assert dict(match.parts) == {"A": a, "B": bs[number]}
    assert detector.undecided == ()
    later = o("A30")
    [match] = detector.feed(later)
    assert dict(match.parts) == {"A": later, "B": bs[1 - number]}


@pytest.mark.parametrize("number", [0, 1])
def test_excluding_one_makes_the_other_certain(number: int) -> None:
    detector, (a, *bs) = figure_3()
    [match] = detector.resolve(detector.undecided[number].identity, ())
    assert dict(match.parts) == {"A": a, "B": bs[1 - number]}
    assert detector.undecided == ()


def test_open_choices_survive_their_state_with_their_identities() -> None:
    detector, _ = figure_3()
    detector.take_undecided()
    restored = Detector(all_of(A, B).context("chronicle"))
    restored.restore(json.loads(json.dumps(detector.state())))
    again, _ = figure_3()
    identities = [each.identity for each in detector.undecided]
    assert [each.identity for each in restored.undecided] == identities
    assert [each.identity for each in again.undecided] == identities
    assert restored.take_undecided() == []
    # By the content of a candidate, as one that comes from a store would be.
    stored = decode_undecided(json.loads(json.dumps(encode_undecided(detector.undecided[0]))))
    [match] = restored.resolve(identities[0], stored.candidates)
    assert match.parts["B"].params["text"] == "B12-22"
    assert restored.undecided == ()


def test_withdrawn_event_takes_its_choice_with_it() -> None:
    detector, (_, _, second) = figure_3()
    detector.withdraw(second)
    assert len(detector.undecided) == 1


def test_resolution_outlives_the_window() -> None:
    detector = Detector(seq(A, B).within(0.0001))
    detector.feed(o("A0-10"))
    detector.feed(o("B5-15"))
    detector.trim(10**9)
    [choice] = detector.undecided
    assert len(detector.resolve(choice.identity, [0])) == 1
    assert detector.undecided == ()


def test_choice_that_is_not_open_or_excludes_itself_is_refused() -> None:
    detector = Detector(seq(A, B).context("chronicle"))
    for text in ("A0-4", "A1-3", "B9"):
        detector.feed(o(text))
    [choice] = detector.undecided
    assert len(choice.candidates) == 2
    for identity, chosen in (("none", [0]), (choice.identity, [2]), (choice.identity, [0, 1])):
        with pytest.raises(BadEvent):
            detector.resolve(identity, chosen)
        assert detector.undecided == (choice,)
    assert len(detector.resolve(choice.identity, [1])) == 1


def test_two_uncertain_firsts_do_not_block_for_good_once_decided() -> None:
    detector = Detector(seq(A, B).context("chronicle"))
    for text in ("A0-4", "A1-3", "B9"):
        detector.feed(o(text))
    assert [detector.feed(o(text)) for text in ("A20", "B30")] == [[], []]
    assert len(detector.undecided) == 2
    assert len(detector.resolve(detector.undecided[0].identity, [0])) == 2
    assert detector.undecided == ()  # type: ignore[comparison-overlap]  # mypy still sees two


@pytest.mark.parametrize(
    "expression",
    [
        seq(A, B).within(0.00001),
        all_of(A, B).within(0.00001),
        seq(A, B, C).gap(0.00001),
    ],
    ids=repr,
)
def test_distance_of_intervals_is_an_interval(expression: Expression) -> None:
    script = "A0-2 B9-13" if expression != seq(A, B, C).gap(0.00001) else "A0-2 B9-13 C14"
    assert run(expression, script, "certain") == []
    assert run(expression, script, "possible") == [script]
    with pytest.raises(UncertainOrder) as caught:
        run(expression, script, "raise")
    assert len(caught.value.candidates) == 1


def test_stamps_of_width_0_keep_their_local_clock() -> None:
    clock = LocalClock("boot", drift_ppb=0)

    def at(name: str, local_us: int) -> Occurrence:
        stamp = AccuracyInterval(
            10**6, 10**6, 10**6, node="n", local_us=local_us, local_clock=clock
        )
        return Occurrence(name, stamp)

    for policy in ("certain", "raise", "possible"):
        detector = Detector(seq(A, B), on_uncertain=policy)
        detector.feed(at("A", 1))
        assert len(detector.feed(at("B", 5))) == 1
        detector = Detector(seq(A, ~N, B), on_uncertain=policy)
        for name, local_us in (("A", 1), ("N", 5)):
            detector.feed(at(name, local_us))
        assert detector.feed(at("B", 9)) == []


def test_doubtful_part_stays_doubtful_when_what_it_depends_on_is_forgotten() -> None:
    detector = Detector(seq(seq(A, ~N).within(2e-5), B))
    assert detector.feed(o("N30-50")) == detector.feed(o("A40")) == detector.advance(80) == []
    detector.trim(80)
    assert detector.feed(o("B80")) == []
    assert len(detector.undecided) == 1


def test_candidate_made_since_may_be_chosen_with_its_choice() -> None:
    detector = Detector(seq(A, B).context("continuous"))
    a1, a2 = o("A2"), o("A2-5")
    made = [match for each in (a1, o("B2-3"), a2, o("B5")) for match in detector.feed(each)]
    while detector.undecided:
        choice = detector.undecided[-1 if len(detector.undecided) == 1 else 0]
        last = [n for n, parts in enumerate(choice.candidates) if parts["B"].us == 5]
        made += detector.resolve(choice.identity, last)
    assert sorted(match.parts["A"].us for match in made) == [2, 3]
    assert {match.parts["B"].us for match in made} == {5}


def test_possible_match_keeps_order_and_window_together() -> None:
    # Either B is possible, not both: A is before 3 for the first, and not before it for the second.
    both = seq(A, many(B, 2, 2)).within(4e-6)
    assert run(both, "B1-3 A2-4 B7-10", "possible") == []
    assert run(both, "B1-4 A2-4 B7-10", "possible") == ["A2-4 B1-4 B7-10"]


def test_match_whose_rival_was_forgotten_is_not_certain() -> None:
    """A1 and A2 may be of one moment, and then make one match: not the one without the other."""
    detector = Detector(seq(A, ~N).within(3e-6).context("cumulative"))
    for first in ("A0-2", "A1-3"):
        detector.feed(o(first))
    assert detector.advance(7) == []
    [choice] = detector.undecided
    detector.trim(6)  # the first is beyond the window of what may come, the second is not
    assert detector.feed(o("A20-22")) == []
    [match] = detector.advance(100)
    assert match.parts["A"][0].params["text"] == "A20-22"
    assert detector.undecided == (choice,)


def test_event_is_within_any_window_however_wide_its_interval() -> None:
    detector = Detector(seq(C, ~B).within(1e-6).selecting("next").context("recent"))
    detector.feed(o("C3-9"))
    assert len(detector.advance(100)) == 1


def test_windows_that_end_at_one_moment_are_judged_in_one_step() -> None:
    detector = Detector(
        seq(many(B, 2), ~C).within(3e-6).skipping("to_last", "B").context("chronicle")
    )
    detector.feed(o("A0-1"))
    for text in ("B5", "B5", "B6"):
        detector.feed(o(text), None, [o("C20-21")] if text == "B6" else [])
    assert len(detector.advance(100)) == 1
    assert detector.undecided == ()


def test_uncertain_time_of_another_event_changes_nothing_for_clocks_alone() -> None:
    ticks = periodic(every(2e-6), 1e-6, every(3e-6), collected=True).context("cumulative")
    uncertain, exact = Detector(ticks), Detector(ticks)
    for detector in (uncertain, exact):
        detector.advance(0)
    uncertain.feed(o("A0-1"))
    made = [repr(detector.advance(10)) for detector in (uncertain, exact)]
    assert made[0] == made[1] != "[]"


def test_undecided_and_merged_matches_are_told_in_one_order() -> None:
    """The order is the same for some_of with a nested part in the context cumulative."""
    inner = seq(many(C, 1, 2), ~C).within(3e-6).context("cumulative")
    either = some_of(1, A.named("a"), inner | A.named("b"))
    detector = Detector(either.within(5e-6).context("cumulative"))
    for text in ("A0-1", "C3-4", "A5-7", "A6-8"):
        event_ = o(text)
        detector.advance(event_.low_us)
        detector.feed(event_)
    matches = detector.advance(100)
    assert matches or detector.undecided


@pytest.mark.parametrize("is_restored", [False, True])
def test_forgotten_event_that_decides_about_a_doubtful_one_counts_in_worlds(
    *, is_restored: bool
) -> None:
    """A that B follows in time at 3, or times out before C5 which it then takes: never C7."""
    timed_out = seq(A, B).within(timedelta(microseconds=2)).context("chronicle").timed_out()
    expression = seq(timed_out, C).context("chronicle")
    detector = Detector(expression, on_uncertain="possible")
    detector.advance(0)
    made: list[Occurrence] = []
    read_late = Occurrence("A", AccuracyInterval(3, 1, 3), {"text": "A1-3"})
    for event_ in [read_late, *map(o, ["B4", "C5", "B6", "C7", "A8-11"])]:
        made += detector.advance(event_.low_us)
        if event_.low_us == 7:
            detector.trim(7)  # forgets A and B4, but not that A may have timed out
            if is_restored:
                state = json.loads(json.dumps(detector.state()))
                detector = Detector(expression, on_uncertain="possible")
                detector.restore(state)
        made += detector.feed(event_)
    texts = [[e.params["text"] for part in m.constituents for e in _events_of(part)] for m in made]
    assert texts == [["A1-3", "C5"]]


def _events_of(part: Occurrence) -> list[Occurrence]:
    return [e for each in part.constituents for e in _events_of(each)] if part.parts else [part]


@pytest.mark.parametrize("policy", ["certain", "possible", "reading"])
def test_time_out_begins_with_what_may_begin_a_match_by_itself(policy: str) -> None:
    # N is within the window before C, though not within that before D.
    detector = Detector(seq(~N, C, event("D"), A).within(2).timed_out(), on_uncertain=policy)
    uncertain = Occurrence("A", AccuracyInterval(-9, -10, -8), {})
    detector.feed(uncertain)
    for event_ in (Occurrence("N", 1), Occurrence("C", 2), Occurrence("D", 4)):
        assert detector.feed(event_) == []
    assert detector.is_inexact
    assert detector.advance(9_000_000) == []
    assert detector.undecided == ()


@pytest.mark.parametrize(("skip", "made"), [("to_first", 2), ("to_last", 1)])
def test_skip_to_one_of_many_that_all_worlds_agree_on(skip: str, made: int) -> None:
    """A0 B2 B6 is made and skips what begins before B2, or before B6: so not, or so, A4."""
    expression = seq(A, many(B, 2, 2)).within(timedelta(microseconds=6)).skipping(skip, "B")
    script = "A0 B1-2 A3-5 B6 B7"
    for policy in ("certain", "possible"):
        assert run(expression, script, policy) == ["A0 B1-2 B6", "A3-5 B6 B7"][:made]


def test_skip_of_events_fed_with_contemporaries_is_in_the_state() -> None:
    """Restored, it knows that C1 has skipped A0 and B0, though all timestamps are exact."""
    expression = seq(all_of(A, B), C).within(9).skipping("to_first", "C")
    detector = Detector(expression, on_uncertain="possible")
    first, second, third, last = map(o, ["A0", "B0", "C1", "C4"])
    assert not detector.feed(first, None, [second])
    assert not detector.feed(second)
    assert len(detector.feed(third)) == 1
    again = Detector(expression, on_uncertain="possible")
    again.restore(json.loads(json.dumps(detector.state())))
    assert not again.feed(last)


@pytest.mark.parametrize("withdrawn", [["A1"], ["N3", "N13"]])
def test_steps_of_time_stay_apart_when_events_are_withdrawn(withdrawn: list[str]) -> None:
    """Each leaves a choice open, also if the events withdrawn had kept them from it."""
    expression = seq(A, ~N).within(timedelta(microseconds=5))
    texts = ["A0-2", "A10-12", "N4-6", "N14-16", "A40"]
    with_them, without = (Detector(expression, on_uncertain="certain") for _ in range(2))
    events = [o(text) for text in withdrawn]
    for event_ in events:
        with_them.feed(event_)
    for detector in (with_them, without):
        for event_ in map(o, texts):
            detector.feed(event_)
        for us in (9, 20):
            detector.advance(us)
    for event_ in events:
        with_them.withdraw(event_)
    choices = [[len(each.candidates) for each in d.undecided] for d in (with_them, without)]
    assert choices == [[1, 1], [1, 1]]


def test_time_told_after_a_decision_is_told_again_when_an_event_is_withdrawn() -> None:
    expression = (seq(A, B) | seq(A, ~N).within(timedelta(microseconds=50))).context("chronicle")
    detector = Detector(expression, on_uncertain="certain")
    withdrawn = o("N300")
    detector.feed(withdrawn)
    detector.feed(o("A0-10"))
    detector.feed(o("B5-15"))
    (choice,) = detector.undecided
    detector.resolve(choice.identity, choice.candidates[:1])
    made = detector.advance(100)
    detector.withdraw(withdrawn)
    assert len(made) == 1
    assert not detector.advance(101)


@pytest.mark.parametrize("policy", ["certain", "possible"])
def test_windows_of_events_that_a_clock_orders_in_one_microsecond_end_in_one_step(
    policy: str,
) -> None:
    """Both windows end at 7: the first match skips the second, as of A3 and A3 without a clock."""
    expression = seq(A, B, ~N).within(timedelta(microseconds=4)).skipping("to_last", "B")
    clock = LocalClock("started at noon")
    stamps = [AccuracyInterval(3, 3, 3, node="n", local_us=us, local_clock=clock) for us in (5, 8)]
    first, second = (Occurrence("A", stamp, {"text": str(stamp.local_us)}) for stamp in stamps)
    detector = Detector(expression, on_uncertain=policy)
    made: list[Occurrence] = []
    for event_ in (first, second, o("B5")):
        made += detector.feed(event_)
    made += detector.advance(30)
    texts = [[part.params["text"] for part in match.constituents] for match in made]
    assert texts == [["5", "B5"]]


@pytest.mark.parametrize("policy", ["certain", "raise"])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (seq(A, B).skipping("past_last").context("cumulative"), ["A0-2"]),
        (seq(A, B).skipping("to_first", "B").context("cumulative"), ["A0-2"]),
        (seq(A, B).skipping("to_next").context("cumulative"), ["A0-2", "A3-4"]),
        (seq(A, B).context("cumulative"), ["A0-2", "A3-4"]),
    ],
)
def test_what_a_preferred_match_of_the_step_skips_is_not_merged(
    policy: str, expression: Expression, expected: list[str]
) -> None:
    detector = Detector(expression, on_uncertain=policy)
    made = [match for text in ("A0-2", "A3-4", "B6-7") for match in detector.feed(o(text))]
    assert [[part.params["text"] for part in match.parts["A"]] for match in made] == [expected]


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (2, 0, 1)])
def test_event_beside_two_that_a_clock_orders_in_its_microsecond_is_not_between(
    order: tuple[int, ...],
) -> None:
    """B0-2 comes after A2 by their clock, hence at 2, as N2 does."""
    clock = LocalClock("started at noon")
    before, after = (
        Occurrence(
            name, AccuracyInterval(2, low_us, 2, node="n", local_us=local_us, local_clock=clock)
        )
        for name, low_us, local_us in (("A", 2, 4), ("B", 0, 9))
    )
    events = [before, after, o("N2")]
    fed = [events[number] for number in order]
    detector = Detector(seq(A, ~N, B), on_uncertain="certain")
    made: list[Occurrence] = []
    for number, each in enumerate(fed):
        made += detector.feed(each, None, fed[number + 1 :])
    assert len(made) == 1


@pytest.mark.parametrize("policy", ["certain", "raise"])
def test_what_may_be_skipped_by_a_match_of_the_step_is_left_open(policy: str) -> None:
    """A0-2 and A1-3: whichever was first skips the other."""
    detector = Detector(seq(A, B).skipping("past_last").context("cumulative"), on_uncertain=policy)
    detector.feed(o("A0-2"))
    detector.feed(o("A1-3"))
    with pytest.raises(UncertainOrder) if policy == "raise" else nullcontext():
        assert detector.feed(o("B6-7")) == []
    (choice,) = detector.undecided
    assert len(choice.candidates) == 2


@pytest.mark.parametrize("policy", ["certain", "possible"])
def test_event_that_only_a_clock_puts_into_the_microsecond_of_another_goes_first(
    policy: str,
) -> None:
    """The clock says that A1-3 has happened at 1, before A1: of one step, it is chosen."""
    clock = LocalClock("started at noon")
    first, second = (
        Occurrence(
            "A",
            AccuracyInterval(1, 1, high_us, node="n", local_us=local_us, local_clock=clock),
            {"text": f"A1-{high_us}"},
        )
        for high_us, local_us in ((3, 2), (1, 7))
    )
    expression = seq(A, ~N).within(timedelta(microseconds=3)).context("chronicle")
    detector = Detector(expression, on_uncertain=policy)
    made = [*detector.feed(first, None, [second]), *detector.feed(second), *detector.advance(30)]
    assert [match.parts["A"].params["text"] for match in made] in ([], ["A1-3"])


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_a_strict_sequence_keeps_is_told_apart_if_its_part_is_shared(
    *, is_shared: bool
) -> None:
    """C5-6 may come between B4-6 and C7: then A0-2 B4-6 C7 is not made."""
    network = Network()
    expression = seq(seq(A, B), C).selecting("strict")
    detectors = [
        Detector(expression, on_uncertain="certain", network=network) for _ in range(1 + is_shared)
    ]
    events = [o(text) for text in ("A0-2", "B4-6", "C5-6", "C7")]
    for detector in detectors:
        for number, event_ in enumerate(events):
            waiting = events[3:] if number == 2 else events[2:3] if number == 1 else []
            assert not detector.feed(event_, None, waiting)
        assert detector.undecided


def test_matches_of_several_keys_that_one_moment_completes_are_ordered_if_some_are_merged() -> None:
    """Two windows of one key end at 6 and are merged, and one of another key."""
    part = seq(B, ~N).same("w").within(timedelta(microseconds=5))
    expression = some_of(1, C, part).same("w").context("cumulative")
    detector = Detector(expression, on_uncertain="certain")
    events = [
        Occurrence("B", AccuracyInterval(1, 1, 1), {"w": w, "text": text})
        for w, text in ((0, "first"), (1, "other"), (0, "second"))
    ]
    for number, event_ in enumerate(events):
        detector.feed(event_, None, events[number + 1 :])
    made = [list(map(str, match.parts)) for match in detector.advance(9)]
    assert len(made) == 2


@pytest.mark.parametrize("us", [9, 11, 13, 15])
@pytest.mark.parametrize("context", ["unrestricted", "chronicle", "continuous"])
def test_event_that_may_forbid_a_match_counts_until_its_window_has_ended(
    us: int, context: str
) -> None:
    """N7 forbids A6-12 if that was at 6; the latest window ends at 15."""
    detector = Detector(seq(A, ~N).within(timedelta(microseconds=3)).context(context))
    detector.feed(o("A6-12"), None, [o("N7")])
    detector.feed(o("N7"))
    made = detector.advance(us)
    detector.trim(us)
    assert not made + detector.advance(30)
    assert detector.undecided


def test_possible_match_is_known_as_long_as_its_latest_event_may_be_in_another() -> None:
    """A20-22 and B0-4 may be a match within 18: then A20-22 is used up when B36 comes."""
    within = timedelta(microseconds=18)
    detector = Detector(all_of(A, B).within(within).context("chronicle"))
    for text in ("B0-4", "A20-22", "A32-34"):
        detector.feed(o(text))
    detector.trim(32)
    made = detector.feed(o("B36"))
    made += detector.feed(o("A90")) + detector.advance(99)
    assert not [match for match in made if match.parts["A"].params["text"] == "A20-22"]
    assert detector.undecided


TENTH_US = 100_000


def marks(script: str, *, are_exact: bool) -> list[Occurrence]:
    """Return events at tenths of a second; those with a ~ up to 10 ms later, unless exact."""
    found = []
    for text in script.split():
        low_us = int(text[1:].rstrip("~")) * TENTH_US
        high_us = low_us + (10_000 if text.endswith("~") and not are_exact else 0)
        found.append(Occurrence(text[0], AccuracyInterval(low_us, low_us, high_us), {"text": text}))
    return found


INNER = seq(A, B, ~N).within(2)


@pytest.mark.parametrize(
    ("expression", "script"),
    [
        # Windows of one event end together, and what begins with them skips nothing but itself.
        (seq(INNER, ~C).within(5).skipping("to_last", "B"), "A11~ B20 B30"),
        (seq(INNER, ~C).within(5).skipping("past_last"), "A10 B11~ B21~"),
        (seq(INNER, ~C).within(5).skipping("past_last"), "A11~ B20 B30"),
        # Windows that begin at different times end in different steps.
        (seq(INNER.context("recent"), ~C).within(5).context("recent"), "A11~ A20 B21~"),
        # What a window makes that ends with the last event is not between it and the first.
        (seq(seq(A, ~N).within(2), B).selecting("next"), "A31~ A60 B80"),
    ],
)
def test_intervals_that_leave_one_order_make_what_exact_times_make(
    expression: Expression, script: str
) -> None:
    def made(*, are_exact: bool) -> list[list[str]]:
        found = detect(expression, marks(script, are_exact=are_exact), until=20)
        return [[leaf.params["text"] for leaf in leaves_of(match)] for match in found]

    assert made(are_exact=False) == made(are_exact=True) != []


def leaves_of(o: Occurrence) -> list[Occurrence]:
    return [leaf for part in o.constituents for leaf in leaves_of(part)] or [o]
