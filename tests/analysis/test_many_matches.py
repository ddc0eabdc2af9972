"""Patterns of which one event may complete very many matches, held against detectors."""

from __future__ import annotations

from typing import Any

import pytest

from activedb.analysis import analyze, draw_text, rule_text
from activedb.errors import MatchesExceeded
from activedb.events import (
    MATCHES_MAX,
    Detector,
    Expression,
    Occurrence,
    all_of,
    event,
    many,
    query,
    seq,
    some_of,
)
from activedb.rules import Rule
from tests.analysis.test_findings import rule

pytestmark = pytest.mark.long

A, B, C, D = (event(name) for name in "ABCD")
RUN = seq(A, many(B), C).within(1_000)
ROW = seq(A, B, C)
MANY: dict[str, Expression] = {
    "Kleene": RUN,
    "none or more": seq(A, many(B, 0), C).within(1_000),
    "last": seq(A, many(B)).within(1_000),
    "large maximum": seq(A, many(B, 1, 20), C).within(1_000),
    "chain of optional parts": seq(
        A, *(many(event("B", alias=f"b{n}"), 0, 2) for n in range(8)), C
    ).within(1_000),
    "no window": ROW,
    "no window, optional": seq(A, many(B, 1, 2), C),
    "no window, all": all_of(A, B, C),
    "no window, some": some_of(3, A, B, C, D),
    "no window, recent, all": all_of(A, B, C).context("recent"),
    "ends with a negation": seq(A, many(B), ~event("E")).within(1_000),
    "recent": RUN.context("recent"),
    "cumulative": RUN.context("cumulative"),
    "cumulative with a skip": RUN.context("cumulative").skipping("to_next"),
    "part": seq(RUN, D),
    "query": query("Q", RUN),
    "one of several": RUN | D,
    "as long as in time": seq(RUN, D).within(2_000).timed_out(),
}
FEW: dict[str, Expression] = {
    "single": A,
    "pair": seq(A, B),
    "pair in any order": A & B,
    "window": ROW.within(1_000),
    "window, all": all_of(A, B, C).within(1_000),
    "next": RUN.selecting("next"),
    "next without a window": seq(A, many(B), C).selecting("next"),
    "strict": RUN.selecting("strict"),
    "chronicle": RUN.context("chronicle"),
    "continuous": RUN.context("continuous"),
    "chronicle without a window": ROW.context("chronicle"),
    "recent without a window": ROW.context("recent"),
    "cumulative without a window": ROW.context("cumulative"),
    "chronicle, all": all_of(A, B, C).context("chronicle"),
    "bounded Kleene": seq(A, many(B, 1, 2), C).within(1_000),
    "optional": seq(A, many(B, 0, 1), C).within(1_000),
    "skip to next": RUN.skipping("to_next"),
    "skip past last": RUN.skipping("past_last"),
    "skip to first": RUN.skipping("to_first", "B"),
    "timed out": RUN.timed_out(),
    "query": query("Q", RUN.selecting("next")),
}


def warned(*rules: Rule) -> list[str]:
    return [profile.name for profile in analyze(rules).many_matches]


def completed(detector: Detector, names: str) -> int:
    """Return the most matches that one event completes; raise if there are too many."""
    most = 0
    for us, name in enumerate(names):
        o = Occurrence(name, us, {})
        most = max(most, len(detector.advance(o.us)), len(detector.feed(o)))
    return max(most, len(detector.advance(10_000 * 1_000_000)))


@pytest.mark.parametrize("name", MANY)
def test_pattern_of_which_one_event_completes_very_many_matches_is_warned_of(name: str) -> None:
    assert warned(rule("explodes", MANY[name])) == ["explodes"]
    detector = Detector(MANY[name])
    try:
        # Without a window it is the product that counts, else the power of two.
        parts = "A" * 110 + "B" * 110 if name.startswith("no window") else "A" + "B" * 20
        completed(detector, parts + "CCD")
    except MatchesExceeded:
        return
    assert detector.truncated  # time completes it, and cannot be refused


@pytest.mark.parametrize("name", FEW)
def test_pattern_of_which_one_event_completes_few_matches_is_not_warned_of(name: str) -> None:
    assert warned(rule("fine", FEW[name])) == []
    assert completed(Detector(FEW[name]), "A" * 14 + "B" * 14 + "CCDD") <= MATCHES_MAX


@pytest.mark.parametrize(
    "own", [{"matches_max": 50}, {"matches_max": None}, {"on_many": "truncate"}], ids=str
)
def test_rule_with_a_bound_of_its_own_is_not_warned_of(own: dict[str, Any]) -> None:
    assert warned(rule("bounded", RUN, **own), rule("not", RUN)) == ["not"]


def test_warning_names_the_rule_why_and_what_to_do_in_text_and_as_plain_values() -> None:
    analysis = analyze([rule("explodes", RUN), rule("fine", A)])
    assert analysis.has_findings
    (told,) = analysis.as_dict()["many_matches"]
    assert told["rule"] == "explodes"
    assert "(B)+ in SEQ(A, (B)+, C) WITHIN 1000s takes any" in told["why"]
    for advice in ('.selecting("next")', '.context("chronicle")', "matches_max=", "on_many="):
        assert advice in told["why"]
    text = draw_text(analysis)
    assert f"explodes: {told['why']}\n" in text
    assert told["why"] in rule_text(analysis, analysis.rules[0])
    assert "many matches" not in draw_text(analyze([rule("fine", A)]))
    assert not analyze([rule("fine", A)]).has_findings


def test_warning_of_a_pattern_without_a_window_names_the_window() -> None:
    (told,) = analyze([rule("endless", ROW)]).as_dict()["many_matches"]
    assert ".within(seconds)" in told["why"]
