"""Choices that uncertain order leaves open in rules of programs: told, and made as a rule says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from activedb.clock import moment_of as at
from activedb.errors import DefinitionError, UncertainOrder
from activedb.events import AccuracyInterval, Detector, Occurrence, Undecided, all_of, event, seq
from activedb.scheduling import Program, ProgramRun, SerialOrder, SharedTable

LOG = SharedTable("log", key=str, initial="")


def about(name: str, us: int, node: str) -> Occurrence:
    """An event at `us`, give or take ten microseconds."""
    stamp = AccuracyInterval(us, us - 10, us + 10, node=node)
    return Occurrence(name, stamp, {"node": node}, id=f"{name}{us}")


def pairs(on_uncertain: Any = None) -> Program:
    """A program that notes each A that a B follows."""
    program = Program("pairs", [LOG])
    given = {} if on_uncertain is None else {"on_uncertain": on_uncertain}

    @program.rule(seq(event("A"), event("B")), writes=lambda o: [LOG["pairs"]], **given)
    def pair(t: Any, o: Any) -> None:
        t.write(LOG["pairs"], t.read(LOG["pairs"]) + f"{o.parts['A'].id}-{o.parts['B'].id} ")

    return program


def read(run: ProgramRun) -> Any:
    """Return what was noted."""
    return run.state.of(LOG).newest().get("pairs", "")


OVERLAPPING = [about("A", 100, "p"), about("B", 105, "q")]


def test_choice_that_is_left_open_is_told_once() -> None:
    run = ProgramRun(pairs(), SerialOrder())
    found = run.feed(OVERLAPPING, 200)
    ((rule, undecided),) = found.undecided
    assert rule == "pair"
    assert [o.id for o in undecided.candidates[0].values()] == ["A100", "B105"]
    assert read(run) == ""
    assert run.feed([], 300).undecided == []
    assert [each.rule for each in run.undecided] == ["pair"], "it is open as before"


def test_certain_match_leaves_nothing_open() -> None:
    run = ProgramRun(pairs(), SerialOrder())
    found = run.feed([about("A", 100, "p"), about("B", 150, "q")], 200)
    assert found.undecided == []
    assert run.undecided == ()
    assert read(run) == "A100-B150 "


def test_step_that_was_interrupted_tells_the_choice_when_it_is_done_again() -> None:
    run = ProgramRun(pairs(), SerialOrder())

    class Interrupted(SerialOrder):
        def run(self, state: Any) -> None:
            raise KeyboardInterrupt

    scheduler, run.scheduler = run.scheduler, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run.feed(OVERLAPPING, 200)
    assert run.undecided == ()
    run.scheduler = scheduler
    assert len(run.feed(OVERLAPPING, 200).undecided) == 1


@pytest.mark.parametrize(
    "policy", ["possible", "reading", lambda error: error.candidates], ids=["p", "r", "function"]
)
def test_policy_of_a_rule_is_honoured(policy: Any) -> None:
    run = ProgramRun(pairs(policy), SerialOrder())
    assert run.feed(OVERLAPPING, 200).undecided == []
    assert read(run) == "A100-B105 "


def test_function_is_asked_with_the_candidates_and_may_choose_none() -> None:
    asked: list[UncertainOrder] = []

    def none(error: UncertainOrder) -> list[Any]:
        asked.append(error)
        return []

    run = ProgramRun(pairs(none), SerialOrder())
    assert run.feed(OVERLAPPING, 200).undecided == []
    assert [len(error.candidates) for error in asked] == [1]
    assert read(run) == ""


@pytest.mark.parametrize("policy", ["raise", "sometimes", 1])
def test_policy_that_a_program_cannot_have_is_refused(policy: Any) -> None:
    with pytest.raises(DefinitionError, match="rule pair: on_uncertain"):
        pairs(policy)


CHOICE = all_of(event("A"), event("B")).context("chronicle")


def matched(run: ProgramRun) -> list[str]:
    return str(read(run)).split()


def of_pairs(on: Any) -> Program:
    """A program that notes each pair of an A and a B."""
    program = Program("pairs", [LOG])

    @program.rule(on, writes=lambda o: [LOG["pairs"]])
    def pair(t: Any, o: Any) -> None:
        t.write(LOG["pairs"], t.read(LOG["pairs"]) + f"{o.parts['A'].id}-{o.parts['B'].id} ")

    return program


@pytest.mark.parametrize("cuts", [[], [60], [100], [112], [60, 108]], ids=str)
def test_events_that_overlap_are_known_to_each_other_however_they_are_passed(
    cuts: list[int],
) -> None:
    run = ProgramRun(of_pairs(CHOICE), SerialOrder())
    run.feed([Occurrence("A", at(50), id="A50"), about("B", 100, "p"), about("B", 106, "q")])
    for punctuation_us in [*cuts, 200]:
        run.feed([], punctuation_us)
    assert matched(run) == []
    found = [list(u.candidates[0].values())[1].id for _, u in run.undecided]
    assert found == ["B100", "B106"]


def test_event_waits_while_others_may_come_before_it() -> None:
    run = ProgramRun(of_pairs(CHOICE), SerialOrder())
    run.feed([Occurrence("A", at(50), id="A50"), about("B", 100, "p")], 105)
    assert list(run.undecided) == [], "what ends at 110 was not passed"
    late = run.feed([about("B", 107, "q")], 106)
    assert "came too late" in late.refused[0].reason, "it may have been before 105"
    run.feed([about("B", 116, "r")], 200)
    assert [u.event.id for _, u in run.undecided if u.event] == ["B100", "B116"]


@pytest.mark.parametrize("number", range(20))
def test_rule_makes_what_a_detector_makes_that_knows_all_that_may_come_before(number: int) -> None:
    seed = f"{os.environ['ACTIVEDB_TEST_SEED']} {number}"
    random = Random(seed)
    for on in (CHOICE, seq(event("A"), event("B")).context("recent")):
        events = []
        begin_us: set[int] = set()
        for place in range(12):
            us = width = 0
            # Of those that begin at one time either may be taken first, and decides what is open.
            while us == 0 or us - width in begin_us:
                us, width = random.randrange(50, 500), random.choice([0, 0, 5, 20])
            begin_us.add(us - width)
            stamp = AccuracyInterval(us, us - width, us + width)
            events.append(Occurrence(random.choice("AB"), stamp, id=f"{place}"))
        events.sort(key=lambda o: o.low_us)
        detector, expected = Detector(on), []
        for place, o in enumerate(events):
            later = [x for x in events[place + 1 :] if x.low_us < o.high_us]
            found = detector.feed(o, None, later if o.high_us > o.low_us else [])
            expected += [f"{m.parts['A'].id}-{m.parts['B'].id}" for m in found]
        run = ProgramRun(of_pairs(on), SerialOrder())
        left = list(events)
        while left:
            count = random.randint(1, len(left))
            fed, left = left[:count], left[count:]
            run.feed(fed, left[0].low_us if left else None)
        run.feed([], 1_000)
        assert sorted(matched(run)) == sorted(expected), seed
        assert open_pairs(u.undecided for u in run.undecided) == open_pairs(detector.undecided), (
            seed
        )


def open_pairs(undecided: Iterable[Undecided]) -> list[str]:
    """Return the candidates of all open choices."""
    candidates = [candidate for each in undecided for candidate in each.candidates]
    return sorted(f"{c['A'].id}-{c['B'].id}" for c in candidates)
