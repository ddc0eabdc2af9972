"""Graph, termination, confluence, explanation and drawings of small rule sets."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from activedb.analysis import (
    Analysis,
    PropertyVerdict,
    analyze,
    draw_svg,
    draw_text,
    explain,
    explained,
    profile_named,
    rule_text,
)
from activedb.errors import DefinitionError
from activedb.events import deleted, event, inserted, seq, updated
from activedb.rules import Rule
from tests.analysis.ruleset import random_specs
from tests.analysis.sources import Person, accounts, log

if TYPE_CHECKING:
    from activedb.events import Expression

SVG = "{http://www.w3.org/2000/svg}"


def rule(name: str, on: Expression, *, coupling: str = "immediate", **options: Any) -> Rule:
    """A rule that does what is declared, and nothing else."""
    declared = {"reads": [], "writes": [], "raises": [], "when": None} | options
    return Rule.define(
        lambda t, o: None,
        on=on,
        coupling=coupling,
        priority=declared.pop("priority", None),
        on_abort="rule",
        name=name,
        **declared,
    )


def opaque(name: str, on: Expression) -> Rule:
    """Return a rule with unknown effects."""
    return Rule.define(
        lambda t, o: o.params["do"](t),
        on=on,
        when=None,
        coupling="immediate",
        priority=None,
        on_abort="rule",
        name=name,
    )


def pairs(*rules: Rule) -> list[tuple[str, str]]:
    return [(pair.first, pair.second) for pair in analyze(rules).pairs]


E, F = event("E"), event("F")


# -- triggering --------------------------------------------------------------------------------


def test_edge_respects_the_columns_of_an_update() -> None:
    writes = [updated(accounts, "balance")]
    rules = [
        rule("writer", E, writes=writes),
        rule("same", updated(accounts, "owner", "balance")),
        rule("other", updated(accounts, "owner")),
        rule("any", updated(accounts)),
        rule("gone", deleted(accounts)),
    ]
    edges = analyze(rules).edges
    assert [(edge.target, edge.reason) for edge in edges] == [
        ("same", "updates accounts.balance"),
        ("any", "updates accounts.balance"),
    ]


def test_edge_into_a_sequence_triggers_only_by_its_last_part() -> None:
    pattern = seq(event("A"), ~event("B"), event("C")).within(5)
    sources = [rule(name, E, raises=[name]) for name in ("A", "B", "C")]
    edges = analyze([*sources, rule("pattern", pattern)]).edges
    assert [(edge.source, edge.triggers) for edge in edges] == [
        ("A", False),
        ("B", False),
        ("C", True),
    ]
    assert "another part of the pattern" in edges[0].reason
    assert "forbids" in edges[1].reason


# -- termination -------------------------------------------------------------------------------


def test_rules_that_trigger_each_other_are_one_cycle_with_its_edges() -> None:
    rules = [
        rule("first", updated(accounts, "balance"), writes=[inserted(log)]),
        rule("second", inserted(log), writes=["accounts.balance"]),
        rule("after", inserted(log)),
    ]
    analysis = analyze(rules)
    (cycle,) = analysis.cycles
    assert cycle.rules == ("first", "second")
    assert [(edge.source, edge.target) for edge in cycle.edges] == [
        ("first", "second"),
        ("second", "first"),
    ]
    assert (cycle.bounds, cycle.is_bounded, cycle.is_certain) == (("cascade_max",), True, True)
    assert analysis.terminates is PropertyVerdict.UNSURE


def test_cycle_through_a_detached_rule_is_bounded_by_nothing() -> None:
    rules = [rule("a", E, raises=["F"]), rule("b", F, raises=["E"], coupling="detached")]
    (cycle,) = analyze(rules).cycles
    assert (cycle.is_bounded, cycle.restarts) == (False, ("b",))
    assert "nothing bounds it: b" in cycle.ending


def test_cycle_of_deferred_and_immediate_rules_names_the_bounds_of_its_runs() -> None:
    mixed = [
        rule("a", E, raises=["F"], coupling="deferred"),
        rule("b", F, raises=["E"]),
    ]
    assert analyze(mixed).cycles[0].bounds == ("cascade_max",)
    both = [rule("a", E, raises=["E", "F"], coupling="deferred"), mixed[1]]
    assert analyze(both).cycles[0].bounds == ("cascade_max", "cycles_max")


def test_cycle_that_needs_an_event_from_outside_is_none() -> None:
    pattern = seq(event("A"), event("OUTSIDE"))
    assert analyze([rule("a", pattern, raises=["A"])]).terminates is PropertyVerdict.SURE


def test_opaque_rule_makes_termination_unknown_and_names_who_may_lead_to_it() -> None:
    rules = [rule("leads", E, raises=["F"]), opaque("dark", F), rule("apart", E)]
    analysis = analyze(rules)
    (cycle,) = analysis.cycles
    assert (cycle.rules, cycle.is_certain) == (("leads", "dark"), False)
    assert (analysis.terminates, analysis.is_confluent) == (
        PropertyVerdict.UNKNOWN,
        PropertyVerdict.UNKNOWN,
    )
    assert [profile.name for profile in analysis.opaque] == ["dark"]
    assert "opaque, so may raise any event: dark" in draw_text(analysis)


# -- confluence --------------------------------------------------------------------------------


def test_pair_that_writes_what_the_other_reads_says_what_and_where_it_meets() -> None:
    rules = [rule("w", E, writes=["accounts.balance"]), rule("r", E, reads=[accounts])]
    (pair,) = analyze(rules).pairs
    assert (pair.first, pair.second) == ("w", "r")
    assert pair.together == "immediate, at one event: E"
    assert [str(each) for each in pair.conflicts] == [
        "w updates accounts.balance, r reads accounts"
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"reads": ["accounts.owner"]},
        {"writes": ["accounts.owner"]},
        {"reads": [log], "writes": [Person]},
        {"writes": [accounts], "priority": 1},
        {"writes": [accounts], "coupling": "deferred"},
    ],
    ids=["read column", "written column", "table", "priority", "coupling"],
)
def test_pair_apart_in_column_table_priority_or_coupling_is_none(other: dict[str, Any]) -> None:
    assert pairs(rule("w", E, writes=["accounts.balance"]), rule("o", E, **other)) == []


def test_pair_at_different_events_meets_only_at_a_commit_point() -> None:
    for coupling, expected in (("immediate", []), ("deferred", [("a", "b")]), ("detached", [])):
        rules = [rule(n, on, writes=[log], coupling=coupling) for n, on in (("a", E), ("b", F))]
        assert pairs(*rules) == expected, coupling


def test_pair_of_detached_rules_is_not_ordered_by_priority() -> None:
    rules = [
        rule(name, E, writes=[log], coupling="detached", priority=priority)
        for name, priority in (("a", 1), ("b", 2))
    ]
    assert pairs(*rules) == [("a", "b")]


def test_pair_of_which_one_triggers_the_other_gives_the_edge_as_reason() -> None:
    rules = [rule("a", E, raises=["F"]), rule("b", seq(F, E))]
    (pair,) = analyze(rules).pairs
    assert str(pair.conflicts[0]).startswith("a may trigger b: raises F")


def test_pair_meets_through_rules_that_run_inside_of_it() -> None:
    rules = [
        rule("a", E, raises=["F"]),
        rule("inner", F, writes=[log]),
        rule("b", E, reads=[log]),
    ]
    (pair,) = analyze(rules).pairs
    assert (pair.first, pair.second) == ("a", "b")
    assert {conflict.first_by for conflict in pair.conflicts} == {"inner"}


# -- explanation -------------------------------------------------------------------------------


def test_event_is_explained_by_coupling_turn_and_what_follows() -> None:
    rules = [
        rule("late", E, coupling="deferred"),
        rule("apart", E, coupling="detached", priority=7),
        rule("low", E),
        rule("high", E, priority=3, raises=["F"]),
        rule("next", F, raises=["E"]),
        rule("pattern", seq(E, F)),
    ]
    explanation = explain(analyze(rules), "E")
    assert [(step.rule, step.turn) for step in explanation.steps] == [
        ("high", 1),
        ("low", 2),
        ("late", 1),
        ("apart", 1),
    ]
    inner = explanation.steps[0].then
    assert [step.rule for step in inner] == ["next", "pattern"]
    assert inner[0].reason == "raises F"
    again = [step for step in inner[0].then if step.rule == "high"]
    assert [step.left_out for step in again] == ["shown above"]
    assert explanation.contributes == ("pattern",)
    assert "1. high [immediate, priority 3]" in explained(explanation)


@pytest.mark.parametrize(
    "event_name", ["update accounts", "update:accounts.balance", "insert log", "delete accounts"]
)
def test_data_change_is_explained_in_either_spelling(event_name: str) -> None:
    rules = [
        rule("changed", updated(accounts, "balance"), writes=[inserted(log)]),
        rule("gone", deleted(accounts)),
    ]
    steps = explain(analyze(rules), event_name).steps
    expected = {"insert log": [], "delete accounts": ["gone"]}
    assert [step.rule for step in steps] == expected.get(event_name, ["changed"])


def test_unknown_event_and_rule_are_refused_with_the_nearest_names() -> None:
    analysis = analyze([rule("overdraft", updated(accounts, "balance")), rule("b", event("EXIT"))])
    for wrong, near in (("EXT", "'EXIT'"), ("update acounts", "'update accounts'")):
        with pytest.raises(DefinitionError, match=near):
            explain(analysis, wrong)
    with pytest.raises(DefinitionError, match="'overdraft'"):
        profile_named(analysis, "overdrafts")


def test_chain_of_a_thousand_rules_is_analyzed_explained_and_drawn() -> None:
    chain = [rule(f"r{n}", event(f"E{n}"), raises=[f"E{n + 1}"]) for n in range(1000)]
    analysis = analyze(chain)
    assert (len(analysis.edges), analysis.terminates) == (999, PropertyVerdict.SURE)
    assert "too deep" in explained(explain(analysis, "E0"))
    assert draw_text(analysis).count("──▶") == 999
    ElementTree.fromstring(draw_svg(analysis))


# -- drawings ----------------------------------------------------------------------------------


def hostile() -> Analysis:
    name = '<script>alert("&")</script>\x1b[31m\x00\ud800]]>'
    return analyze([rule(name, event(name), raises=[name, "F"]), opaque("dark", F)])


def test_svg_of_hostile_names_is_well_formed_and_has_no_element_of_theirs() -> None:
    root = ElementTree.fromstring(draw_svg(hostile()))
    kinds = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert kinds == {"svg", "title", "style", "defs", "marker", "path", "g", "rect", "text"}
    titles = [element.text or "" for element in root.iter(f"{SVG}title")]
    assert any("<script>" in title for title in titles)


def test_text_of_hostile_names_has_no_control_characters() -> None:
    analysis = hostile()
    shown = draw_text(analysis) + rule_text(analysis, analysis.rules[0])
    assert all(c.isprintable() or c == "\n" for c in shown)
    shown.encode()


def test_svg_boxes_are_inside_the_picture_and_apart() -> None:
    draw = random.Random(5)
    specs = random_specs(draw, ("immediate", "deferred"), rules_max=30)
    root = ElementTree.fromstring(draw_svg(analyze(spec.rule() for spec in specs)))
    boxes = [
        tuple(int(box.attrib[name]) for name in ("x", "y", "width", "height"))
        for box in root.iter(f"{SVG}rect")
    ]
    assert len(boxes) == len(specs)
    for number, (x, y, width, height) in enumerate(boxes):
        assert x + width <= int(root.attrib["width"])
        assert y + height <= int(root.attrib["height"])
        for other_x, other_y, *_ in boxes[:number]:
            assert abs(x - other_x) >= width or abs(y - other_y) >= height


def test_drawings_of_one_rule_set_are_the_same_each_time() -> None:
    specs = random_specs(random.Random(7), ("immediate", "deferred", "detached"), rules_max=20)
    first, second = (analyze(spec.rule() for spec in specs) for _ in range(2))
    assert first == second
    assert draw_svg(first) == draw_svg(second)
    assert draw_text(first) == draw_text(second)


def test_svg_without_rules_is_well_formed() -> None:
    ElementTree.fromstring(draw_svg(analyze([])))


# -- declarations ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"reads": accounts},
        {"reads": [3]},
        {"reads": ["accounts."]},
        {"reads": [inserted(accounts)]},
        {"writes": [event("E")]},
        {"writes": "accounts"},
        {"raises": [accounts]},
        {"raises": [""]},
    ],
    ids=str,
)
def test_declaration_without_meaning_is_refused_with_the_rules_name(
    options: dict[str, Any],
) -> None:
    with pytest.raises(DefinitionError, match=r"rule named: .*="):
        rule("named", E, **options)


def acting(name: str, on: Expression, mode: str, **options: Any) -> Rule:
    """A rule with a condition, whose action is coupled to that."""
    return rule(name, on, when=lambda t, o: True, condition_action=mode, **options)


def test_cycle_through_an_action_of_its_own_is_bounded_as_that_runs() -> None:
    for mode, bounds, restarts in (
        ("immediate", ("cascade_max",), ()),
        ("sequential", ("cascade_max",), ()),
        ("deferred", ("cycles_max",), ()),
        ("detached", (), ("loop",)),
    ):
        (cycle,) = analyze([acting("loop", event("E"), mode, raises=["E"])]).cycles
        assert (cycle.bounds, cycle.restarts) == (bounds, restarts), mode


def test_pair_meets_in_the_mode_of_an_action_of_its_own() -> None:
    late = acting("late", event("E"), "deferred", writes=["log"])
    other = rule("other", event("E"), coupling="deferred", writes=["log"])
    (pair,) = analyze([late, other]).pairs
    assert (pair.first, pair.second, pair.together) == (
        "late",
        "other",
        "deferred, at one commit point",
    )
    # Detached actions know no priorities.
    apart = [
        acting(name, event("E"), "detached", writes=["log"], priority=priority)
        for name, priority in (("a", 1), ("b", 2))
    ]
    assert [pair.together for pair in analyze(apart).pairs] == ["detached, at one event: E"]


def test_pair_of_which_one_comes_after_the_other_is_none() -> None:
    first = rule("first", event("E"), writes=["log"])
    second = rule("second", event("E"), writes=["log"], after=["first"])
    assert analyze([first, second]).pairs == ()
    assert len(analyze([first, rule("third", event("E"), writes=["log"])]).pairs) == 1


def test_event_is_explained_in_the_order_of_after() -> None:
    rules = [
        rule("last", event("E"), priority=9, after=["first"]),
        rule("first", event("E")),
        acting("alone", event("E"), "deferred", priority=1),
    ]
    analysis = analyze(rules)
    steps = explain(analysis, "E").steps
    assert [(step.rule, step.turn) for step in steps] == [("first", 1), ("last", 2), ("alone", 3)]
    assert "after first" in rule_text(analysis, profile_named(analysis, "last"))
    assert "action deferred" in rule_text(analysis, profile_named(analysis, "alone"))


def test_rule_on_any_of_several_events_is_triggered_by_each() -> None:
    analysis = analyze(
        [
            rule("listens", event("A") | updated(accounts, "balance") | deleted(log)),
            rule("raises", event("E"), raises=["A"]),
            rule("updates", event("E"), writes=["accounts.balance"]),
            rule("elsewhere", event("E"), writes=["accounts.owner"]),
        ]
    )
    assert [edge.source for edge in analysis.edges] == ["raises", "updates"]
    assert all(edge.triggers for edge in analysis.edges)


def test_rule_that_was_too_deep_at_first_is_explained_where_there_is_room() -> None:
    chain = [rule(f"r{n:02}", event(f"E{n}"), raises=[f"E{n + 1}"]) for n in range(70)]
    chain[0] = rule("r00", event("E0"), raises=["E1", "E64"], priority=1)
    found = explain(analyze(chain), "E0")

    def named(steps: Any) -> set[str]:
        return {s.rule for s in steps}.union(*(named(s.then) for s in steps))

    assert named(found.steps) == {f"r{n:02}" for n in range(70)}
