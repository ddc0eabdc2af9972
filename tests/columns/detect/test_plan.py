"""Expressions that can be detected in columns, and the reasons against the others."""

from __future__ import annotations

from typing import Any

import pytest

from activedb.columns.detect._plan import supports
from activedb.errors import PatternError
from activedb.events import Expression, Primitive, at, event, many, query, seq
from activedb.events.terms import attr, part

A, B, C, N = (event(name) for name in "ABCN")


def _any(parts: Any) -> bool:
    return True


@pytest.mark.parametrize(
    "expression",
    [
        seq(A, ~N, B, C).same("k").within(5).gap(2),
        seq(~(N | C), A, B).within(5),
        seq(A, B).selecting("next").context("recent"),
        seq(A, many(B | C).named("many"), C).within(5),
        seq(A, B).within(5).where(part("A").x < part("B").x),
        seq(event("A", attr("x").is_null()), B),
        seq(event("A", lambda o: True), event("B", attr("x").like("a%"))),
        seq(A, B).where(_any),
        query("Q", seq(A, B), {"x": part("A").x}),
    ],
)
def test_supports_of_a_sequence_of_primitive_events_has_no_reason_against_it(
    expression: Expression,
) -> None:
    assert supports(expression) is None


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (A, "not a sequence"),
        (A & B, "not a sequence"),
        (query("Q", A | B), "not a sequence"),
        (seq(A, ~N).within(5), "may end with a negation"),
        (seq(A, ~N, many(B, 0)).within(5), "may end with a negation"),
        (seq(A, B).selecting("strict"), "strictly"),
        (seq(A, B).skipping("to_next"), "skips"),
        (seq(A, B).reading(lambda t, parts: True), "reads the shared store"),
        (seq(event("A", reading=lambda t, o: True), B), "reads the shared store"),
        (seq(A, seq(B, C)), "not a primitive event"),
        (seq(A, Primitive(("insert", "t"))), "not an event of a stream"),
        (seq(A, at(5)), "clock event"),
        (seq(A, many(B, 1, 3), C), "no window"),
        (seq(many(A, 0), B).within(5), "may be empty"),
        (seq(A, many(B), C).within(5).context("recent"), "most recent"),
        (seq(~N, A, B).within(5).selecting("next"), "starts with a negation"),
        (seq(A, B).where(part("A").x < part("B").x), "no window"),
        (seq(A, B).where(_any).selecting("next"), "'_any' is a function, and it chooses"),
        (
            seq(A, B).where(part("A").x / part("B").x > 1).context("chronicle"),
            "cannot be compiled, and it chooses",
        ),
        (
            seq(A, many(B, 0), C).within(5).where(part("A").x < part("C").x),
            "conditions and a part that may be empty",
        ),
    ],
)
def test_supports_of_what_cannot_be_compiled_tells_why(expression: Expression, reason: str) -> None:
    assert reason in (supports(expression) or "")


def test_supports_of_what_has_no_meaning_raises_as_a_detector_does() -> None:
    with pytest.raises(PatternError, match="a detector takes an event expression"):
        supports("A")  # type: ignore[arg-type]
    with pytest.raises(PatternError, match="never decided without a window"):
        supports(seq(~N, A))
