"""Choices that uncertain order leaves open in rules of programs: told, and made as a rule says."""

from __future__ import annotations

from typing import Any

import pytest

from activedb.errors import DefinitionError, UncertainOrder
from activedb.events import AccuracyInterval, Occurrence, event, seq
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
    """What was noted."""
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
