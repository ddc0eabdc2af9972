"""Events that a rule listens to and their roles, over every kind of expression."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

import activedb as adb
from activedb.analysis import (
    PropertyVerdict,
    analyze,
    draw_svg,
    draw_text,
    explain,
    explained,
    profile_named,
    rule_as_dict,
    rule_text,
)
from activedb.analysis._profile import is_timed, listening_of
from activedb.errors import DefinitionError
from activedb.events import (
    aborted,
    all_of,
    any_of,
    aperiodic,
    at,
    began,
    called,
    committing,
    cron,
    event,
    every,
    late,
    many,
    optional,
    periodic,
    query,
    returned,
    seq,
    some_of,
    updated,
)
from activedb.language import CreateRule, parse
from tests.analysis.sources import accounts, log
from tests.analysis.test_findings import SVG, E, opaque, rule

if TYPE_CHECKING:
    from activedb.events import Expression

A, B, C, D, N = (event(name) for name in "ABCDN")
MINUTE = every(60)


def roles(on: Expression) -> dict[str, str]:
    """Each event with its roles, in their order: c(ompletes), l(ater), p(art), f(orbids)."""
    letters = {"completes": "c", "later": "l", "contributes": "p", "forbids": "f"}
    found: dict[str, str] = {}
    for part in listening_of(on):
        found[part.event] = found.get(part.event, "") + letters[part.role]
    return found


@pytest.mark.parametrize(
    ("on", "expected"),
    [
        (A, "A=c"),
        (updated(accounts, "balance", "owner"), "update accounts.balance, owner=c"),
        (late("ward"), "late ward=c"),
        (A | B, "A=c B=c"),
        (all_of(A, B), "A=c B=c"),
        (some_of(2, A, B, C), "A=c B=c C=c"),
        (seq(A, B, C), "A=p B=p C=c"),
        (seq(A, ~N, B), "A=p N=f B=c"),
        (seq(~N, A, B).within(5), "N=f A=p B=c"),
        (seq(A, ~any_of(N, D), B), "A=p N=f D=f B=c"),
        (seq(A, many(B), C).within(5), "A=p B=p C=c"),
        (seq(A, many(B, 2, 3)), "A=p B=c"),
        (seq(A, B, optional(C)), "A=p B=c C=c"),
        (seq(A, many(any_of(B, C), 0, 2).named("x"), D), "A=p B=p C=p D=c"),
        (seq(A, all_of(B, C)), "A=p B=c C=c"),
        (all_of(seq(A, ~N, B), C), "A=p N=f B=c C=c"),
        (seq(A, B) | seq(C, D), "A=p B=c C=p D=c"),
        (query("Q", seq(A, ~N, B)), "A=p N=f B=c"),
        (aperiodic(A, B, C), "A=p C=f B=c"),
        (aperiodic(A, B, C, collected=True), "A=p B=p C=c"),
        # by time
        (MINUTE, "EVERY 60s=c time=c"),
        (at(100), "AT '1970-01-01T00:01:40+00:00'=c time=c"),
        (cron("0 * * * *"), "CRON '0 * * * *'=c time=c"),
        (A | MINUTE, "A=c EVERY 60s=c time=c"),
        (A.after(5), "A=l time=c"),
        (seq(A, B).after(5), "A=p B=l time=c"),
        (seq(A, ~N).within(5), "A=l N=f time=c"),
        (seq(A, B, ~N).within(5), "A=p B=l N=f time=c"),
        (seq(A, optional(B), ~N).within(5), "A=l B=l N=f time=c"),
        (seq(A, ~N, optional(B)).within(5), "A=l N=f B=c time=c"),
        (seq(A, optional(B), ~N, optional(C)).within(5), "A=l B=l N=f C=c time=c"),
        (seq(A, ~N, optional(B), ~D).within(5), "A=l N=f B=l D=f time=c"),
        (seq(A, MINUTE), "A=l EVERY 60s=c time=c"),
        (seq(MINUTE, A), "EVERY 60s=p A=c"),
        (seq(A, ~MINUTE, B), "A=p EVERY 60s=f B=c"),
        (all_of(A, MINUTE), "A=cl EVERY 60s=c time=c"),
        (some_of(1, A, MINUTE), "A=c EVERY 60s=c time=c"),
        (seq(A, all_of(B, MINUTE)), "A=p B=cl EVERY 60s=c time=c"),
        (seq(A, MINUTE, cron("0 * * * *")), "A=l EVERY 60s=l CRON '0 * * * *'=c time=c"),
        (seq(A, B.after(5)), "A=p B=l time=c"),
        (all_of(A, B.after(5)), "A=cl B=l time=c"),
        (seq(A, B, C).within(5).timed_out(), "A=l B=p C=f time=c"),
        (seq(~N, A, ~D, B).within(5).timed_out(), "N=f A=l D=p B=f time=c"),
        (seq(A, B, optional(C)).within(5).timed_out(), "A=l B=pf C=f time=c"),
        (periodic(A, 60, B), "A=l B=f time=c"),
        (periodic(A, 60, seq(B, ~N, C)), "A=l B=f N=p C=f time=c"),
        (periodic(A, 60, B, collected=True), "A=p B=c"),
        (periodic(A, 60, MINUTE, collected=True), "A=l EVERY 60s=c time=c"),
        (seq(A.after(5), B), "A=p B=c"),
        (seq(A.after(5), ~N, B.after(5)), "A=p N=f B=l time=c"),
        (seq(A, ~N, B.after(1)).within(9).timed_out(), "A=l N=p B=f time=c"),
    ],
    ids=lambda value: repr(value) if not isinstance(value, str) else "",
)
def test_event_in_an_expression_has_the_role_of_its_place(on: Expression, expected: str) -> None:
    # An event's text may have blanks; each entry ends with "=" and its roles.
    found = roles(on)
    assert " ".join(f"{name}={letters}" for name, letters in found.items()) == expected
    assert is_timed(on) is (found.get("time") == "c")


def test_edge_into_a_pattern_tells_each_role() -> None:
    pattern = seq(event("A"), ~event("N"), event("B")).within(5).timed_out()
    sources = [rule(name, event("E"), raises=[name]) for name in ("A", "B", "N")]
    edges = analyze([*sources, rule("pattern", pattern)]).edges
    assert [(edge.source, edge.triggers, edge.triggers_later) for edge in edges] == [
        ("A", False, True),
        ("B", False, False),
        ("N", False, False),
    ]
    assert [edge.reason for edge in edges] == [
        "raises A, after which time completes the pattern",
        "raises B, which the pattern forbids",
        "raises N, another part of the pattern",
    ]


def test_edge_into_a_conjunction_triggers_by_any_of_its_parts() -> None:
    rules = [
        rule("raises", event("E"), raises=["A"]),
        rule("writes", event("E"), writes=["accounts.balance"]),
        rule("elsewhere", event("E"), writes=["accounts.owner"]),
        rule("both", all_of(event("A"), updated(accounts, "balance"))),
    ]
    edges = analyze(rules).edges
    assert [(edge.source, edge.triggers) for edge in edges] == [("raises", True), ("writes", True)]


@pytest.mark.parametrize("on", [A.after(5), seq(A, ~N).within(5), periodic(A, 60, N)], ids=repr)
def test_cycle_through_time_is_bounded_by_nothing(on: Expression) -> None:
    (cycle,) = analyze([rule("again", on, raises=["A"])]).cycles
    assert (cycle.is_bounded, cycle.is_certain, cycle.delayed) == (False, True, ("again",))
    assert cycle.ending == "nothing bounds it: time triggers again each time"
    assert analyze([rule("again", on, raises=["B"])]).terminates is PropertyVerdict.SURE


def test_cycle_of_which_one_edge_goes_through_time_names_the_rule_it_triggers() -> None:
    rules = [rule("now", A, raises=["B"]), rule("then", B.after(5), raises=["A"])]
    (cycle,) = analyze(rules).cycles
    assert (cycle.rules, cycle.delayed) == (("now", "then"), ("then",))
    assert "now ┄┄▶ then: raises B" in draw_text(analyze(rules))


@pytest.mark.parametrize("on", [MINUTE, cron("0 * * * *"), late("ward"), at(1)], ids=repr)
def test_opaque_rule_on_what_no_rule_raises_is_in_no_cycle(on: Expression) -> None:
    assert analyze([opaque("dark", on)]).terminates is PropertyVerdict.SURE
    mixed = analyze([opaque("dark", on | A)])
    assert (mixed.terminates, mixed.cycles[0].rules) == (PropertyVerdict.UNKNOWN, ("dark",))


def test_opaque_rule_that_may_start_a_delay_has_no_bound() -> None:
    (cycle,) = analyze([opaque("dark", A.after(5))]).cycles
    assert (cycle.is_certain, cycle.is_bounded, cycle.delayed) == (False, False, ("dark",))


def test_pair_of_rules_that_time_triggers_meets_at_one_time() -> None:
    writes: dict[str, Any] = {"writes": ["accounts.balance"]}
    different = [rule("minutes", MINUTE, **writes), rule("silence", seq(A, ~N).within(5), **writes)]
    (pair,) = analyze(different).pairs
    assert pair.together == "immediate, at one event: time"
    same = [rule("one", MINUTE, **writes), rule("two", MINUTE, **writes)]
    assert analyze(same).pairs[0].together == "immediate, at one event: EVERY 60s"
    apart = [rule("minutes", MINUTE, **writes), rule("event", A, **writes)]
    assert analyze(apart).pairs == ()


def test_rule_that_time_triggers_does_not_run_inside_of_the_one_that_began_it() -> None:
    rules = [
        rule("begins", A, raises=["B"]),
        rule("later", B.after(5), writes=["accounts.balance"]),
        rule("reads", A, reads=["accounts.balance"]),
    ]
    assert analyze(rules).pairs == ()
    at_once = [rules[0], rule("later", B, writes=["accounts.balance"]), rules[2]]
    assert [(p.first, p.second) for p in analyze(at_once).pairs] == [("begins", "reads")]


def test_event_is_explained_with_what_time_triggers_after_it() -> None:
    rules = [
        rule("silence", seq(A, ~N).within(5), raises=["B"]),
        rule("follows", B),
        rule("each minute", MINUTE),
        rule("stragglers", late("ward")),
    ]
    analysis = analyze(rules)
    started = explain(analysis, "A")
    assert (started.steps, started.later) == ((), ("silence",))
    assert "time may trigger after it: silence" in explained(started)
    assert started.as_dict()["later"] == ["silence"]
    by_time = explain(analysis, "time")
    assert [step.rule for step in by_time.steps] == ["silence", "each minute"]
    assert [step.rule for step in by_time.steps[0].then] == ["follows"]
    clock = explain(analysis, "EVERY 60s")
    assert (clock.event, [step.rule for step in clock.steps]) == ("EVERY 60s", ["each minute"])
    for spelling in ("late ward", "late:ward"):
        assert [step.rule for step in explain(analysis, spelling).steps] == ["stragglers"]
    assert explain(analysis, "N").forbids == ("silence",)


def test_time_is_no_event_of_rules_that_it_does_not_trigger() -> None:
    with pytest.raises(DefinitionError, match="'time'"):
        explain(analyze([rule("plain", A)]), "time")
    # A signal of that name comes first.
    named = analyze([rule("signal", event("time")), rule("minutes", MINUTE)])
    assert [step.rule for step in explain(named, "time").steps] == ["signal"]


def test_rule_is_told_and_drawn_with_its_events_by_role() -> None:
    pattern = query("Exposed", seq(A, ~N, B, ~C).within(5))
    analysis = analyze([rule("r", pattern), rule("plain", A)])
    text = rule_text(analysis, profile_named(analysis, "r"))
    assert "r [immediate, by time]" in text
    for line in ("with: A", "unless: N, C", "by time, after: B", "triggered by: time"):
        assert line in text
    assert rule_as_dict(analysis.rules[0])["listens"] == [
        {"event": "A", "role": "contributes"},
        {"event": "N", "role": "forbids"},
        {"event": "B", "role": "later"},
        {"event": "C", "role": "forbids"},
        {"event": "time", "role": "completes"},
    ]


def test_svg_has_a_clock_for_rules_that_time_triggers_and_a_line_of_its_own() -> None:
    rules = [rule("r", A.after(5)), rule("source", event("E"), raises=["A"])]
    root = ElementTree.fromstring(draw_svg(analyze(rules)))
    assert len(root.findall(f".//{SVG}circle")) == 1
    (arrow,) = [p for p in root.findall(f"{SVG}path") if p.get("class") is not None]
    assert arrow.get("class") == "later"


# -- methods and transactions ------------------------------------------------------------------


def test_rule_that_calls_a_function_whose_calls_are_events_triggers_rules_on_them() -> None:
    with adb.connect("memory://") as db:

        @db.emits
        def pay(t: Any, amount: int) -> int:
            t.insert(log, {"id": amount})
            return amount

        def work(t: Any, o: Any) -> None:
            pay(t, 5)

        def handed_on(t: Any, o: Any) -> None:
            print(pay)

        db.rule(on=E, name="works")(work)
        db.rule(on=E, name="hands on")(handed_on)
        db.rule(on=E, name="is one")(db.emits(lambda t, o: None))
        db.rule(on=called(pay), name="before")(lambda t, o: None)
        db.rule(on=returned(pay), name="after")(lambda t, o: None)
        analysis = db.rules.analyze()
    name = pay.__qualname__
    edges = {(edge.source, edge.target): edge.reason for edge in analysis.edges}
    assert set(edges) == {
        (source, target) for source in ("works", "hands on") for target in ("before", "after")
    }
    assert f"calls {name} (test_listening.py:" in edges["works", "before"]
    assert f"returns from {name} (" in edges["works", "after"]
    works = profile_named(analysis, "works").effects
    assert [(c.kind, c.table) for c in works.changes] == [("insert", "log")]  # it is followed
    assert not works.is_opaque
    is_one = profile_named(analysis, "is one").effects
    assert [signal.kind for signal in is_one.signals] == ["call", "return"]
    triggered = explain(analysis, f"call {name}").steps
    assert [step.rule for step in triggered] == ["before"]


def test_call_that_a_rule_makes_and_none_listens_to_is_no_event_of_its_function() -> None:
    with adb.connect("memory://") as db:

        @db.emits
        def pay(t: Any, o: Any) -> None: ...

        db.rule(on=E, name="pays")(pay)
        analysis = db.rules.analyze()
    for event_name in (f"call {pay.__qualname__}", f"return {pay.__qualname__}"):
        told = explain(analysis, event_name)
        assert (told.event, told.steps) == (event_name, ())
    with pytest.raises(DefinitionError, match="no rule listens to an event"):
        explain(analysis, pay.__qualname__)


def test_rules_on_transactions_of_the_application_are_triggered_by_no_rule() -> None:
    rules = [
        rule("begin", began(), raises=["A"]),
        rule("commit", committing()),
        opaque("abort", aborted()),
    ]
    analysis = analyze(rules)
    assert (analysis.edges, analysis.terminates) == ((), PropertyVerdict.SURE)
    assert [step.rule for step in explain(analysis, "transaction commit").steps] == ["commit"]


# -- predicates that read ----------------------------------------------------------------------


def rich(t: Any, o: Any) -> bool:
    """Read the store when the event is raised."""
    row = t.get(accounts, o.params["id"])
    return bool(row["balance"] > 5)


def test_pair_of_which_one_writes_what_the_others_event_makes_a_pattern_read() -> None:
    watching = rule("watching", event("A", reading=rich))
    raises = rule("raises", E, raises=["A"])
    writes = rule("writes", E, writes=["accounts.balance"])
    (pair,) = [p for p in analyze([raises, writes, watching]).pairs if p.second == "writes"]
    assert [str(conflict) for conflict in pair.conflicts] == [
        "raises reads accounts (in the event of watching), writes updates accounts.balance"
    ]
    blind = rule("watching", A)
    assert analyze([raises, writes, blind]).pairs == ()


def test_reads_of_a_pattern_in_the_rule_language_are_those_of_its_subqueries() -> None:
    (created,) = parse(
        "CREATE RULE r ON (SEQ(A, B) WHERE 'safe' = (SELECT status FROM staff WHERE id = B.id) "
        "WITHIN 5s) SIGNAL C"
    )
    assert isinstance(created, CreateRule)
    profile = analyze([created.rule]).rules[0]
    # Columns are known of tables that are declared.
    assert [(read.table, read.column) for read in profile.watches] == [("staff", None)]
    assert not profile.effects.is_opaque


def test_predicate_of_which_nobody_knows_what_it_reads_makes_the_rule_opaque() -> None:
    dark = rule("dark", seq(A, B).within(5).reading(lambda t, parts: parts["A"].params["f"](t)))
    (profile,) = analyze([dark]).rules
    assert [each.kinds for each in profile.effects.unresolved] == [frozenset({"reads"})]
    assert not profile.effects.may_raise_anything
