"""Objects that are printed are read again as equal objects."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import MetaData

from activedb.errors import DefinitionError
from activedb.events import Expression, Query, any_of, attr, event, name_text, part, query, seq
from activedb.events.terms import Attribute, Term
from activedb.language import (
    Body,
    CreateQuery,
    CreateRule,
    Signal,
    SqlWrite,
    parse,
    parse_pattern,
    parse_term,
    text,
)
from activedb.rules import Rule
from tests.language.strategies import NAMES, expressions, queries, terms
from tests.language.tables import declare

SCALE = int(os.environ.get("ACTIVEDB_TEST_SCALE", "1"))
TABLES = declare(MetaData()).tables


@settings(max_examples=200 * SCALE, deadline=None)
@given(terms(NAMES))
def test_term_printed_is_read_as_an_equal_one(term: Term) -> None:
    assert parse_term(text(term)).same_as(term)


@settings(max_examples=200 * SCALE, deadline=None)
@given(terms((), of_one=True))
def test_term_of_one_event_printed_is_read_as_an_equal_one(term: Term) -> None:
    assert parse_term(text(term)).same_as(term)


@pytest.mark.long
@settings(max_examples=100 * SCALE, deadline=None)
@given(expressions())
def test_expression_printed_is_read_as_an_equal_one(expression: Expression) -> None:
    assert text(expression) == repr(expression)
    assert parse_pattern(text(expression)) == expression


@pytest.mark.long
@settings(max_examples=50 * SCALE, deadline=None)
@given(queries(), st.booleans())
def test_query_printed_is_read_as_an_equal_one(made: Query, replacing: bool) -> None:
    (statement,) = parse(text(made))
    assert isinstance(statement, CreateQuery)
    assert statement.query == made
    (again,) = parse(text(statement))
    assert again == statement
    assert parse_pattern(repr(made), queries={made.name: made}) == made


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    on: Expression = event(draw(NAMES))
    given_terms = terms((), of_one=True, depth=2)
    if draw(st.booleans()):
        on = seq(*map(event, draw(st.lists(NAMES, min_size=2, max_size=3, unique=True))))
        given_terms = terms(on.names, depth=2)
    steps = tuple(
        Signal(draw(NAMES), tuple(draw(st.dictionaries(NAMES, given_terms, max_size=2)).items()))
        for _ in range(draw(st.integers(1, 3)))
    )
    coupling = draw(st.sampled_from(["immediate", "deferred", "detached", "sequential"]))
    is_child = coupling in ("immediate", "deferred")
    when = draw(st.one_of(st.none(), given_terms))
    return Rule.define(
        Body(steps, draw(st.sampled_from(["NEW", "the new", "n"]))),
        on=on,
        when=when,
        coupling=coupling,
        priority=draw(st.one_of(st.none(), st.integers(-5, 5))),
        on_abort=draw(st.sampled_from(["rule", "triggering"])),
        name=draw(NAMES),
        condition_action="immediate"
        if when is None
        else draw(st.sampled_from(["immediate", "deferred", "detached"])),
        after=draw(st.lists(NAMES, max_size=2)) if is_child else (),
        partials_max=draw(st.one_of(st.none(), st.integers(1, 9))),
        on_full=draw(st.sampled_from(["drop_oldest", "refuse"])),
        matches_max=draw(st.sampled_from([None, 1, 9, 10_000])),
        on_many=draw(st.sampled_from(["refuse", "truncate"])),
        on_uncertain=draw(st.sampled_from(["raise", "certain", "possible", "reading"])),
    )


@pytest.mark.long
@settings(max_examples=60 * SCALE, deadline=None)
@given(rules())
def test_rule_printed_is_read_as_an_equal_one(rule: Rule) -> None:
    (statement,) = parse(text(rule))
    assert statement == CreateRule(rule)


@settings(max_examples=60 * SCALE, deadline=None)
@given(NAMES, st.sampled_from([".", " .", ". ", ". /* of it */ "]))
def test_any_name_may_follow_a_dot_in_the_sql_of_a_block(name: str, dot: str) -> None:
    of_it = f"NEW{dot}{name_text(name, after_dot=True)}"
    (statement,) = parse(
        f"CREATE RULE R ON A WHEN NEW.x IN (SELECT id FROM log WHERE note = {of_it}) BEGIN "
        f"UPDATE log SET note = CASE WHEN id-CASE WHEN {of_it} > 1. THEN 1. END > {of_it} "
        f"THEN {of_it} END WHERE id = {of_it}; SIGNAL s(a = {of_it}) END",
        tables=TABLES,
    )
    assert isinstance(statement, CreateRule)
    body = statement.rule.action
    assert isinstance(body, Body)
    write, signal = body.steps
    assert isinstance(write, SqlWrite)
    assert write.references == (Attribute(None, name),)
    assert signal == Signal("s", (("a", Attribute(None, name)),))
    assert parse(text(statement), tables=TABLES) == [statement]


SINGLE = st.sampled_from([event("A"), event("A").named("b"), any_of(event("A"), event("B"))])


@settings(max_examples=60 * SCALE, deadline=None)
@given(
    st.one_of(SINGLE, SINGLE.map(lambda pattern: query("P", pattern))),
    st.dictionaries(NAMES, terms((), of_one=True, depth=2), max_size=3),
)
def test_query_over_single_events_returns_their_attributes(
    pattern: Expression, returns: dict[str, Term]
) -> None:
    made = query("Q", pattern, returns)
    (statement,) = parse(text(made), queries={"P": pattern} if isinstance(pattern, Query) else {})
    assert statement == CreateQuery(made)


def test_query_over_several_events_has_no_text_without_their_parts() -> None:
    made = query("Q", seq(event("A"), event("B")), {"y": attr("y") + 1})
    with pytest.raises(DefinitionError, match=r"'y' is returned by y \+ 1, .* name the part"):
        text(made)


SCRIPTS = [
    "CREATE RULE R ON INSERT ON log BEGIN UPDATE workerStatus SET status = NEW.note END",
    "CREATE RULE R ON UPDATE(note) ON log REFERENCING NEW AS n OLD AS o "
    "WHEN n.note != o.note AND n.worker IN (SELECT workerID FROM workerStatus -- all\n) "
    "BEGIN DELETE FROM log WHERE id = n.id -- this\n; /* and */ SIGNAL s; END",
    "CREATE RULE R ON E FOR EACH STATEMENT COUPLING deferred BEGIN "
    "INSERT INTO log (id, note) VALUES (1, 'a;END''b'), (2, CASE WHEN 1 > 0 THEN 'x' END) END",
    "CREATE OR REPLACE QUERY Q PATTERN SEQ(A, B WHERE EXISTS (SELECT 1 FROM log "
    "WHERE log.id = B.id AND worker = NEW.x)) WHERE A.x < (SELECT max(weight) FROM log)",
    "CREATE RULE R ON UPDATE(note) ON log BEGIN UPDATE workerStatus SET status = "
    "workerStatus.workerID-CASE WHEN workerStatus.workerID-case\nworkerStatus.status WHEN 1 "
    "THEN 2 END > 1 THEN OLD.id ELSE NEW.id END WHERE workerID BETWEEN OLD.id AND NEW.id END",
    'DROP RULE IF EXISTS "a b"; DROP QUERY Q; ALTER RULE R SET COUPLING deferred; '
    "ALTER RULE R SET CONDITION ACTION immediate; ALTER RULE R SET PRIORITY NULL; "
    "ALTER RULE R SET ON ABORT rule; ALTER RULE R DISABLE; ALTER RULE R ENABLE",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_printed_is_read_as_equal_statements(script: str) -> None:
    statements = parse(script, tables=TABLES)
    printed = ";\n".join(map(text, statements))
    assert parse(printed, tables=TABLES) == statements
    assert ";\n".join(map(text, parse(printed, tables=TABLES))) == printed


def named(_: Any, o: Any = None) -> bool:
    return True


@pytest.mark.parametrize(
    "thing",
    [
        event("A", where=named),
        seq(event("A"), event("B", reading=named)),
        seq(event("A"), event("B")).where(named),
        query("Q", seq(event("A"), event("B")).where(named)),
        object(),
        "CREATE",
    ],
)
def test_function_has_no_text_and_is_refused(thing: Any) -> None:
    with pytest.raises(DefinitionError, match="no text"):
        text(thing)


def test_rule_of_functions_has_no_text_and_is_refused() -> None:
    fields: dict[str, Any] = {
        "on": event("A"),
        "coupling": "immediate",
        "priority": None,
        "on_abort": "rule",
        "name": "R",
    }
    body = Body((Signal("s"),))
    for rule in (
        Rule.define(named, when=None, **fields),
        Rule.define(body, when=named, **fields),
        Rule.define(body, when=None, on_uncertain=lambda u: (), **fields),
    ):
        with pytest.raises(DefinitionError, match="no text"):
            text(rule)
    assert text(Rule.define(body, when=part("A").x > 3, **fields)).endswith("SIGNAL s")
