"""Each operator in each context, by hand (scenarios/), against the definition and the detector."""

from __future__ import annotations

import pytest

from activedb.events import Context, Detector
from activedb.language import parse_pattern

from .reference import Reference
from .scenario_files import FOLDER, Scenario, Shown, expression_of, scenarios

SCENARIOS = list(scenarios())
OPERATORS = [
    "and",
    "any_of_n",
    "aperiodic",
    "aperiodic_star",
    "clock",
    "kleene_greedy",
    "kleene_reluctant",
    "not",
    "or",
    "periodic",
    "periodic_star",
    "plus",
    "sequence",
    "time_out",
]


def check(scenario: Scenario, shown: Shown) -> None:
    for step in scenario.steps:
        assert shown.perform(step.text) == step.matches, f"{scenario}: {step.text}"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_scenario_by_hand_equals_the_definition(scenario: Scenario) -> None:
    check(scenario, Shown(Reference(expression_of(scenario.pattern))))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_scenario_by_hand_equals_the_detector(scenario: Scenario) -> None:
    check(scenario, Shown(Detector(expression_of(scenario.pattern))))


@pytest.mark.parametrize(
    "pattern", sorted({s.pattern for s in SCENARIOS if not s.path.startswith("query/")})
)
def test_scenario_pattern_written_in_the_rule_language_is_the_same(pattern: str) -> None:
    expression = expression_of(pattern)
    assert parse_pattern(repr(expression)) == expression


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("context", list(Context))
def test_scenario_files_have_every_operator_in_every_context(
    operator: str, context: Context
) -> None:
    path = FOLDER / operator / f"{context.value}.txt"
    assert "\n=> " in path.read_text(), f"{path} shows no match"
