"""Any text is either read, or refused by a RuleSyntaxError with its place."""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import MetaData

from activedb.errors import RuleSyntaxError
from activedb.events.terms import Literal
from activedb.language import parse, parse_term, text
from tests.language.tables import declare

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
TABLES = declare(MetaData()).tables
WARD = (Path(__file__).resolve().parents[2] / "examples" / "ward.rules").read_text("utf-8")
SCRIPT = (
    WARD.split("CREATE RULE R2")[0]
    + """
CREATE RULE R3 ON UPDATE(note) ON log REFERENCING NEW AS n OLD AS o FOR EACH EVENT
COUPLING deferred PRIORITY -3 AFTER R1 ON ABORT rule WHEN n.note != o.note
BEGIN INSERT INTO log (id, note) VALUES (n.id + 1, CASE WHEN 1 = 1 THEN 'x' END);
SIGNAL s(a = n.id, "b" = SUM(x.y)); DELETE FROM log WHERE id IN (SELECT max(id) FROM log) END;
CREATE OR REPLACE QUERY Q PATTERN SEQ(A AS a, (B WHERE x BETWEEN 1 AND 2){2,5}?, !C, D+)
WHERE PREV(B.x) < B.x WITHIN 1.5 min GAP 3 ms SELECT next SKIP to_last D CONTEXT recent
RETURN A.x AS y, COUNT(B) AS n; ALTER RULE R3 SET PRIORITY 3; DROP QUERY IF EXISTS Q;
CREATE QUERY Q4 PATTERN PERIODIC*(A, 3 s, ANY(B, CRON '* * * * *')) AS t
"""
)
WORDS = re.findall(r"\w+|\s+|.", SCRIPT, re.DOTALL)
WHERES = st.integers(0, len(WORDS))


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The script with some words left out, moved, or put in."""
    words = list(WORDS)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(WHERES)
        how = draw(st.sampled_from(["cut", "copy", "put", "end"]))
        if how == "cut":
            del words[at : at + draw(st.integers(1, 6))]
        elif how == "copy":
            other = draw(WHERES)
            words[at:at] = WORDS[other : other + draw(st.integers(1, 6))]
        elif how == "put":
            words.insert(at, draw(st.one_of(st.text(max_size=3), st.sampled_from("'\"()[];$-/*"))))
        else:
            del words[at:]
    return "".join(words)


def read(script: str) -> None:
    refused = None
    try:
        statements = parse(script, tables=TABLES)
    except RuleSyntaxError as error:
        refused = error
    if refused is None:
        printed = ";\n".join(map(text, statements))
        assert parse(printed, tables=TABLES) == statements
        return
    lines = script.split("\n")
    assert 1 <= refused.line <= len(lines)
    assert 1 <= refused.column <= len(lines[refused.line - 1]) + 1
    assert refused.excerpt


@pytest.mark.long
@settings(max_examples=200 * SCALE, deadline=None)
@given(damaged())
@example(SCRIPT)
def test_damaged_text_is_read_or_refused_with_its_place(script: str) -> None:
    read(script)


@settings(max_examples=100 * SCALE, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_its_place(script: str) -> None:
    read(script)


NUMBERS = st.one_of(
    st.from_regex(r"\A[0-9]{1,9}(\.[0-9]{1,9})?([eE][+-]?[0-9]{1,15})?\Z"),
    st.builds(
        "{}{}{}".format,
        st.sampled_from(["", "1.", "1e", "1e-"]),
        st.sampled_from("0159").map(lambda digit: digit * 5_000),  # more than Python converts
        st.sampled_from(["", "1"]),
    ),
)


@pytest.mark.parametrize(
    "script",
    [
        "CREATE QUERY Q PATTERN SOME({}, A, B)",
        "CREATE QUERY Q PATTERN SEQ(A, B{{{}}}, C) WITHIN 1 s",
        "CREATE QUERY Q PATTERN SEQ(A, B{{0,{}}}, C) WITHIN 1 s",
        "CREATE QUERY Q PATTERN SEQ(A, B) WITHIN {}s",
        "CREATE QUERY Q PATTERN EVERY 1 s OFFSET {} days",
        "CREATE QUERY Q PATTERN CRON '{} * * * *'",
        "CREATE QUERY Q PATTERN CRON '*/{} 1-{} * * *'",
        "CREATE QUERY Q PATTERN A WHERE x IN ({}, -{}, DECIMAL '{}', FLOAT '{}')",
        "CREATE QUERY Q PATTERN A WHERE x = INTERVAL '{} us'",
        "CREATE RULE R ON A PRIORITY -{} SIGNAL s",
        "CREATE RULE R ON A PARTIALS {} SIGNAL s",
        "CREATE RULE R ON A MATCHES {} SIGNAL s",
        "CREATE RULE R ON A WHEN 1 IN (SELECT id FROM log WHERE id = {}) SIGNAL s",
        "CREATE RULE R ON A BEGIN UPDATE log SET weight = {} WHERE id = {} END",
    ],
)
@settings(max_examples=20 * SCALE, deadline=None)
@given(st.data())
def test_any_number_is_read_or_refused_with_its_place(script: str, data: st.DataObject) -> None:
    count = script.replace("{{", "").count("{}")
    read(script.format(*(data.draw(NUMBERS) for _ in range(count))))


@pytest.mark.parametrize("written", ["{}", "FLOAT '{}'", "DECIMAL '{}'"])
@settings(max_examples=50 * SCALE, deadline=None)
@given(NUMBERS)
def test_any_number_that_is_read_is_a_number(written: str, number: str) -> None:
    with suppress(RuleSyntaxError):
        term: Any = parse_term(f"x = {written.format(number)}")
        assert isinstance(term.right, Literal)
        assert math.isfinite(term.right.value) or term.right.value.is_finite()


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "9" * 5_000]
)
def test_any_moment_is_read_or_refused_with_its_place(moment: str) -> None:
    read(f"CREATE QUERY Q PATTERN AT '{moment}'")
    read(f"CREATE QUERY Q PATTERN A WHERE x = TIMESTAMP '{moment}'")


@pytest.mark.long
@pytest.mark.parametrize(
    "script",
    [
        "CREATE QUERY Q PATTERN " + "(" * 5_000 + "A" + ")" * 5_000,
        "CREATE QUERY Q PATTERN A WHERE " + "NOT " * 5_000 + "x",
        "CREATE QUERY Q PATTERN A WHERE 1 = (SELECT " + "(" * 5_000 + "1" + ")" * 5_000 + ")",
        "CREATE QUERY Q PATTERN A WHERE x = 1" + " + 1" * 5_000,
        "CREATE QUERY Q PATTERN A WHERE x = " + "9" * 5_000,
        "CREATE QUERY Q PATTERN A WHERE x = INTERVAL '" + "9" * 30 + " days'",
        "CREATE QUERY Q PATTERN SEQ(A, B) WITHIN " + "9" * 30 + " days",
        "CREATE QUERY Q PATTERN SEQ(A, B) WITHIN 0 s",
        "CREATE QUERY Q PATTERN CRON '* * * * *' ZONE '../etc'",
        "CREATE RULE R ON A PRIORITY " + "9" * 30 + " SIGNAL s",
        "CREATE RULE R ON A BEGIN UPDATE log SET note = 'x' WHERE 1 = 1; END END",
    ],
)
def test_text_out_of_all_bounds_is_refused(script: str) -> None:
    with pytest.raises(RuleSyntaxError):
        parse(script, tables=TABLES)
