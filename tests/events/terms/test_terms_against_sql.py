"""Terms over integers, texts and NULL have the values that SQLite computes for their text."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activedb.events import attr, occurrence
from activedb.events.terms import (
    And,
    Arithmetic,
    Between,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
    Term,
)

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
NUMBERS = st.one_of(st.none(), st.integers(-4, 4))
TEXTS = st.one_of(st.none(), st.text("ab%_", max_size=3))
COMPARISONS = st.sampled_from(["=", "!=", "<", "<=", ">", ">="])


def numeric(depth: int) -> st.SearchStrategy[Term]:
    plain = st.one_of(st.sampled_from([attr("a"), attr("b"), attr("c")]), NUMBERS.map(Literal))
    if depth == 0:
        return plain
    inner = numeric(depth - 1)
    # A divisor is a literal other than zero: SQLite makes NULL of a division by zero.
    divisors = st.integers(-3, 3).filter(bool).map(Literal)
    return st.one_of(
        plain,
        st.builds(Arithmetic, st.sampled_from("+-*"), inner, inner),
        st.builds(Arithmetic, st.sampled_from("/%"), inner, divisors),
        st.builds(Negative, inner),
    )


def condition(depth: int) -> st.SearchStrategy[Term]:
    number = numeric(1)
    plain = st.one_of(
        st.builds(Comparison, COMPARISONS, number, number),
        st.builds(IsNull, number),
        st.builds(In, number, st.lists(number, min_size=1, max_size=3).map(tuple)),
        st.builds(Between, number, number, number),
        st.builds(Like, st.just(attr("s")), TEXTS.map(Literal)),
        st.sampled_from([Literal(True), Literal(False)]),
    )
    if depth == 0:
        return plain
    inner = condition(depth - 1)
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(plain, st.builds(And, several), st.builds(Or, several), st.builds(Not, inner))


ROWS = st.fixed_dictionaries({"a": NUMBERS, "b": NUMBERS, "c": NUMBERS, "s": TEXTS})


def in_sqlite(term: Term, row: dict[str, Any]) -> Any:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("PRAGMA case_sensitive_like = ON")
        columns = ", ".join(f":{name} AS {name}" for name in row)
        # repr() is the text, and SQLite reads it.
        (found,) = connection.execute(f"SELECT {term!r} FROM (SELECT {columns})", row).fetchone()
    connection.close()
    return found


@settings(max_examples=300 * SCALE, deadline=None)
@given(numeric(3), ROWS)
def test_number_as_sqlite_computes_it(term: Term, row: dict[str, Any]) -> None:
    o = occurrence("E", timestamp=1, **row)
    assert term.evaluate({}, o) == in_sqlite(term, row)


@pytest.mark.long
@settings(max_examples=300 * SCALE, deadline=None)
@given(condition(3), ROWS)
def test_condition_as_sqlite_judges_it(term: Term, row: dict[str, Any]) -> None:
    o = occurrence("E", timestamp=1, **row)
    expected = in_sqlite(term, row)
    assert term.evaluate({}, o) is (None if expected is None else bool(expected))
    assert term(o) is bool(expected)
