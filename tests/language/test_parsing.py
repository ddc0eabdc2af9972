"""Meaning of each form of the language, in the constructors of Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import MetaData

from activedb.events import (
    Expression,
    aborted,
    all_of,
    any_of,
    aperiodic,
    at,
    attr,
    began,
    called,
    cron,
    deleted,
    event,
    every,
    inserted,
    late,
    many,
    optional,
    part,
    periodic,
    query,
    returned,
    seq,
    some_of,
    updated,
)
from activedb.events.terms import And, Literal, Term
from activedb.language import CreateQuery, Drop, parse, parse_pattern, parse_term
from tests.language.tables import declare

TABLES = declare(MetaData()).tables
LOG = TABLES["log"]
A, B, C, D = map(event, "ABCD")
QUERY = query("Q", seq(A, B))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A", A),
        ('"an event" AS first', event("an event", alias="first")),
        ("A WHERE x > 1 AND y = 'b'", event("A", where=(attr("x") > 1) & (attr("y") == "b"))),
        ("A WHERE NEW.HCW-ID = A.other", event("A", where=attr("HCW-ID") == attr("other"))),
        ("seq(A, !B, C)", seq(A, ~B, C)),
        ("SEQ(A, NOT B AS n WHERE x = 1, C)", seq(A, ~event("B", attr("x") == 1, "n"), C)),
        ("SEQ(A, !ANY(B, C), D)", seq(A, ~any_of(B, C), D)),
        ("SEQ(A, B+, C)", seq(A, many(B), C)),
        ("SEQ(A, B*?, C)", seq(A, many(B, 0, greedy=False), C)),
        ("SEQ(A, (B WHERE x = 1)? AS b, C)",
         seq(A, optional(event("B", where=attr("x") == 1)).named("b"), C)),
        ("SEQ(A, B{2,5}, C{3}, D{2,}?)",
         seq(A, many(B, 2, 5), many(C, 3, 3), many(D, 2, greedy=False))),
        ("SEQ(A, ANY(B, C)+ AS k, D)", seq(A, many(any_of(B, C)).named("k"), D)),
        ("OR(A, ANY(B, C))", any_of(A, B, C)),
        ("AND(A, B) WITHIN 3 s", all_of(A, B).within(3)),
        ("SOME(2, A, B, C)", some_of(2, A, B, C)),
        ("AFTER(1.5 min, A)", A.after(90)),
        ("PERIODIC(A, 10 s, B)", periodic(A, 10, B)),
        ("PERIODIC*(A, 10 s, B) AS t CONTEXT recent",
         periodic(A, 10, B, collected=True, alias="t").context("recent")),
        ("APERIODIC(A, B, C)", aperiodic(A, B, C)),
        ("APERIODIC*(A, B, C)", aperiodic(A, B, C, collected=True)),
        ("TIMEOUT(SEQ(A, B) WITHIN 5 s)", seq(A, B).within(5).timed_out()),
        ("AT '2026-01-31T12:00:00+00:00'", at(datetime(2026, 1, 31, 12, tzinfo=UTC))),
        ("EVERY 1 h OFFSET 5 min AS e", every(3600, 300, alias="e")),
        ("CRON '0 6  * * *' ZONE 'Europe/Berlin'", cron("0 6 * * *", "Europe/Berlin")),
        ("INSERT ON log", inserted(LOG)),
        ("INSERT LOG WHERE id = 1", inserted(LOG, where=attr("id") == 1)),
        ("UPDATE(note, Worker) ON log AS l", updated(LOG, "note", "worker", alias="l")),
        ("UPDATE log(note) WHERE OLD.note != note",
         updated(LOG, "note", where=attr("note", old=True) != attr("note"))),
        ("DELETE log", deleted(LOG)),
        ("LATE estream", late("estream")),
        ("CALL Account.withdraw", called("Account.withdraw")),
        ("RETURN f", returned("f")),
        ("TRANSACTION BEGIN", began()),
        ("TRANSACTION abort", aborted()),
        ("SEQ(OUTPUT Q, C)", seq(QUERY, C)),
        ("SEQ(A, (SEQ(B, C) SAME x), D) SAME (x, y)",
         seq(A, seq(B, C).same("x"), D).same("x", "y")),
        ("SEQ(A, SEQ(B, C) SAME x, D)", seq(A, seq(B, C).same("x"), D)),
        ("SEQ(A, B) WHERE [HCW-ID, x] AND A.x < B.y AND (A.x = 1 OR B.y = 2)",
         seq(A, B).same("HCW-ID", "x").where(part("A").x < part("B").y)
         .where((part("A").x == 1) | (part("B").y == 2))),
        ("SEQ(A, B) GAP 2 s SELECT strict SKIP past_last CONTEXT chronicle WITHIN 1 d",
         seq(A, B).gap(2).selecting("strict").skipping("past_last").context("chronicle")
         .within(86400)),
        ("SEQ(A, B) select ANY skip TO_FIRST B", seq(A, B).skipping("to_first", "B")),
    ],
)  # fmt: skip
def test_pattern_means_what_python_builds(text: str, expected: Expression) -> None:
    assert parse_pattern(text, tables=TABLES, queries={"Q": QUERY}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b * 2 - 1", attr("a") + attr("b") * 2 - 1),
        ("a - (b - c)", attr("a") - (attr("b") - attr("c"))),
        ("-a / -2", -attr("a") / -2),
        ("a -1 > 3", attr("a") - 1 > 3),
        ("A.x-1", part("A").x - 1),
        ("A.x-y - A.z", part("A")["x-y"] - part("A").z),
        ("A . x", part("A").x),
        ("NOT a = 1 OR b <> 2 AND c", ~(attr("a") == 1) | (attr("b") != 2) & attr("c")),
        ("a NOT IN (1, 'x', NULL)", ~attr("a").in_([1, "x", None])),
        ("a BETWEEN 1 AND 2 AND TRUE", attr("a").between(1, 2) & True),
        ("a NOT BETWEEN 1 AND 2", ~attr("a").between(1, 2)),
        ("a NOT LIKE 'x%'", ~attr("a").like("x%")),
        ("a IS NOT NULL", ~attr("a").is_null()),
        ("count > 1 AND sum < date", (attr("count") > 1) & (attr("sum") < attr("date"))),
        ("Count(B) > SUM(B.x)", part("B").count() > part("B").x.sum()),
        ("FIRST(B.HCW-ID) = PREV(B.x)", part("B")["HCW-ID"].first() == part("B").x.prev()),
        ("MAX(OLD(B.x)) > OLD(y)", part("B").old("x").max() > attr("y", old=True)),
        ("priority = 1 /* not -- a */ -- keyword", attr("priority") == 1),
        ("1e3", Literal(1000.0)),
        ("INTERVAL '-1.5 h'", Literal(timedelta(hours=-1.5))),
        ("x'00FF'", Literal(b"\x00\xff")),
        ("'it''s -- no comment'", Literal("it's -- no comment")),
        ('"select"."from"', part("select")["from"]),
    ],
)
def test_term_means_what_python_builds(text: str, expected: Term) -> None:
    assert parse_term(text).same_as(expected)


def test_query_means_what_python_builds_wherever_its_stream_is_named() -> None:
    expected = query(
        "Q",
        seq(A, B).within(5),
        {"x": part("A").x, "rise": part("B").y - part("A").y},
        stream="estream",
    )
    for text in (
        "CREATE QUERY Q ON estream PATTERN SEQ(A, B) WITHIN 5 s RETURN A.x, B.y - A.y AS rise",
        "create query Q pattern SEQ(A, B) on estream within 5 s return A.x, B.y - A.y as rise;",
    ):
        assert parse(text) == [CreateQuery(expected)]


def test_qualification_of_several_conditions_is_judged_each_as_early_as_it_can_be() -> None:
    made: Any = parse_pattern("SEQ(A, B) WHERE A.x = 1 AND B.x = 2 AND (A.y = 1 AND B.y = 2)")
    first, second, third = made.predicates
    assert (first.part_names, second.part_names) == ({"A"}, {"B"})
    assert isinstance(third, And)


def test_condition_with_a_subquery_is_a_reading() -> None:
    made: Any = parse_pattern(
        "SEQ(A WHERE x = 1 AND note = (SELECT note FROM log WHERE id = NEW.id), B) "
        "WHERE A.x < B.x AND EXISTS (SELECT * FROM log l WHERE l.id = B.HCW-ID)",
        tables=TABLES,
    )
    assert [term.part_names for term in made.predicates] == [{"A", "B"}]
    (reading,) = made.readings
    assert reading.is_reading
    (subquery,) = reading.operands
    assert subquery.statement == 'SELECT * FROM "log" AS l WHERE l."id" = :ref_1'
    assert subquery.reads == {("log", None), ("log", "id")}
    (first, _) = made.parts
    assert not first.predicate.is_reading
    assert first.reading.is_reading


def test_script_without_statements_is_empty() -> None:
    assert parse("") == parse(" ; ;; -- nothing\n /* at all */ ; ") == []
    assert parse(";DROP RULE R;;") == [Drop("rule", "R")]


@pytest.mark.parametrize(
    ("sql", "statement"),
    [
        ("SELECT max(NOTE) FROM Log", 'SELECT MAX("note") FROM "log"'),
        ("SELECT log.note FROM log WHERE log.id = A.x",
         'SELECT "log"."note" FROM "log" WHERE "log"."id" = :ref_1'),
        ("SELECT LOG.note FROM log", 'SELECT "log"."note" FROM "log"'),
        ("SELECT x.n FROM (SELECT note AS n FROM log) x WHERE x.n = A.n",
         'SELECT x.n FROM (SELECT "note" AS n FROM "log") AS x WHERE x.n = :ref_1'),
        ("WITH l AS (SELECT id FROM log) SELECT count(*) FROM l WHERE l.id = A.i",
         'WITH l AS (SELECT "id" FROM "log") SELECT COUNT(*) FROM l WHERE l.id = :ref_1'),
        ("SELECT id FROM log WHERE note = 'A.x :y' AND A.x = 1 AND worker = A.x",
         'SELECT "id" FROM "log" WHERE "note" = \'A.x \\:y\' AND :ref_1 = 1 AND "worker" = :ref_1'),
        ("SELECT id FROM log UNION SELECT workerID FROM workerStatus",
         'SELECT "id" FROM "log" UNION SELECT "workerID" FROM "workerStatus"'),
        ("SELECT w.status FROM log JOIN workerStatus w ON w.workerID = worker",
         'SELECT w."status" FROM "log" JOIN "workerStatus" AS w ON w."workerID" = "worker"'),
        ("SELECT note AS n FROM log GROUP BY n ORDER BY n",
         'SELECT "note" AS n FROM "log" GROUP BY n ORDER BY n'),
        ("SELECT id FROM log WHERE EXISTS (SELECT 1 FROM workerStatus WHERE workerID = worker)",
         'SELECT "id" FROM "log" WHERE EXISTS(SELECT 1 FROM "workerStatus" '
         'WHERE "workerID" = "worker")'),
        ('SELECT id FROM log WHERE note = "A"."x" -- A.y',
         'SELECT "id" FROM "log" WHERE "note" = :ref_1 /* A.y */'),
    ],
)  # fmt: skip
def test_subquery_is_sent_with_declared_names_and_parameters(sql: str, statement: str) -> None:
    term: Any = parse_term(f"({sql}\n) = 1", parts=["A"], tables=TABLES)
    assert term.left.statement == statement
