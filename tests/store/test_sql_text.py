"""Tables that the text of a SELECT reads: none is overlooked, nothing is taken on trust."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from activedb.errors import UnsupportedStatement
from activedb.store.sql._sql_text import Edit, PlainText, analyse_select


def read(sql: str, dialect: str = "postgresql") -> list[str]:
    """Names of what a text reads, in order."""
    found = analyse_select(PlainText(sql, dialect)).references
    return sorted(r.name if r.schema is None else f"{r.schema}.{r.name}" for r in found)


READS = {
    "SELECT 1": [],
    "SELECT * FROM a": ["a"],
    "TABLE a": ["a"],
    "TABLE a INTERSECT SELECT 1": ["a"],
    "SELECT (TABLE a), x = ANY(TABLE b) FROM (TABLE c) AS q": ["a", "b", "c"],
    "SELECT x - INTERVAL '30' FROM a": ["a"],
    'SELECT * FROM A, "A"': ["A", "a"],
    "SELECT * FROM s.a AS x JOIN s.b USING (id) NATURAL JOIN c": ["c", "s.a", "s.b"],
    "SELECT * FROM (a CROSS JOIN b) LEFT JOIN c ON true": ["a", "b", "c"],
    "SELECT (SELECT max(x) FROM a), ARRAY(SELECT x FROM b) FROM c": ["a", "b", "c"],
    "SELECT 1 WHERE EXISTS (SELECT FROM a) AND 1 IN (TABLE b)": ["a", "b"],
    "SELECT 1 UNION (SELECT 2 FROM a EXCEPT ALL TABLE b)": ["a", "b"],
    "WITH x AS (SELECT * FROM a) SELECT * FROM x": ["a"],
    "WITH a AS (SELECT * FROM a) SELECT * FROM a": ["a"],
    "WITH RECURSIVE a AS (SELECT 1 UNION SELECT * FROM a) SELECT * FROM a": [],
    "WITH x AS (SELECT * FROM y), y AS (SELECT * FROM x) SELECT * FROM x, y": ["y"],
    "WITH x AS (SELECT 1) SELECT * FROM s.x": ["s.x"],
    "SELECT * FROM (WITH x AS (SELECT * FROM a) SELECT * FROM x) q, x": ["a", "x"],
    "SELECT * FROM a WHERE y IN (WITH a AS (SELECT 1 y) SELECT y FROM a)": ["a"],
    "WITH x AS (WITH y AS (SELECT * FROM a) SELECT * FROM y) SELECT * FROM x, y": ["a", "y"],
    "SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.x = a.x) q": ["a", "b"],
    "SELECT * FROM generate_series(1, 2) g, unnest(ARRAY[1]) u, f(3) WITH ORDINALITY": [],
    "SELECT * FROM ROWS FROM (generate_series(1, 2), f((SELECT max(x) FROM a))) r": ["a"],
    "SELECT count(*) FILTER (WHERE EXISTS (TABLE a)) OVER w FROM b WINDOW w AS (ORDER BY x)": [
        "a",
        "b",
    ],
    "SELECT 'FROM x', $$ FROM y $$, E'\\' FROM z', $t$ it's $t$, \"FROM\" FROM a -- FROM b": ["a"],
    "SELECT /* /* FROM a */ FROM b */ 1 FROM c": ["c"],
    "SELECT x::timestamp with time zone AT TIME ZONE 'UTC' FROM a FETCH FIRST 2 ROWS ONLY": ["a"],
    "SELECT x @> y, x ? 'k', x #>> '{a}', x && y, x ~* 'z', x -> 'a' ->> 'b', x << y FROM a": ["a"],
    "SELECT x OPERATOR(pg_catalog.+) 1, x IS DISTINCT FROM y, extract(year FROM z) FROM a": ["a"],
    "SELECT a FROM a GROUP BY GROUPING SETS ((a), ()), ROLLUP (a) HAVING bool_or(true)": ["a"],
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x), x[1:2] FROM a": ["a"],
    "SELECT * FROM json_to_recordset('[]') AS r(x int), xmltable('/' PASSING '' COLUMNS b int)": [],
    "SELECT DISTINCT ON (x) x FROM a ORDER BY x DESC NULLS LAST LIMIT ALL OFFSET 1": ["a"],
    "SELECT * FROM pg_catalog.pg_class, information_schema.tables": [
        "information_schema.tables",
        "pg_catalog.pg_class",
    ],
}


@pytest.mark.parametrize("sql", READS)
def test_understand_of_postgres_text_finds_every_table_it_reads(sql: str) -> None:
    assert read(sql) == READS[sql]


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ('SELECT * FROM [a b], `c`, "D"', ["a b", "c", "d"]),
        ("SELECT a == 1, b GLOB 'x', x'ab', c -> '$.x' FROM main.t LIMIT 1, 2", ["main.t"]),
        ("WITH a AS (SELECT * FROM a) SELECT * FROM a", ["a"]),
        ("SELECT * FROM json_each('[1]'), t WHERE x = ? AND y IN (?, ?)", ["t"]),
    ],
)
def test_understand_of_sqlite_text_finds_every_table_it_reads(sql: str, tables: list[str]) -> None:
    assert read(sql, "sqlite") == tables


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("", "one SELECT"),
        (";", "one SELECT"),
        ("-- SELECT 1", "one SELECT"),
        ("SELECT 1; SELECT 2", "one SELECT"),
        ("INSERT INTO a VALUES (1)", "one SELECT"),
        ("UPDATE a SET x = 1", "one SELECT"),
        ("VALUES (1)", "one SELECT"),
        ("EXPLAIN SELECT 1", "one SELECT"),
        ("COPY a TO STDOUT", "one SELECT"),
        ("DO $$ BEGIN END $$", "one SELECT"),
        ("SET search_path = x", "one SELECT"),
        ("WITH x AS (SELECT 1) DELETE FROM a", "one SELECT|writes"),
        ("SELECT * INTO b FROM a", "INTO"),
        ("SELECT 1; DROP TABLE a", "one SELECT"),
        ("WITH x AS (DELETE FROM a RETURNING *) SELECT * FROM x", "writes"),
        ("WITH x AS (INSERT INTO a VALUES (1) RETURNING *) SELECT * FROM x", "writes"),
        ("WITH x AS (UPDATE a SET x = 1 RETURNING *) SELECT * FROM x", "writes"),
        (
            "WITH x AS (MERGE INTO a USING b ON true WHEN MATCHED THEN DELETE) SELECT 1",
            "writes|und",
        ),
        ("SELECT * FROM a FOR UPDATE", "with_for_update"),
        ("SELECT * FROM (SELECT * FROM a FOR SHARE) x", "with_for_update"),
        ("SELECT * FROM a TABLESAMPLE SYSTEM (10)", "TABLESAMPLE|not supported"),
        ("SELECT * FROM ONLY a", "not supported"),
        ("SELECT * FROM elsewhere.s.a.b", "database|supported"),
        ("SELECT * FROM elsewhere.s.a", "not supported"),
        ("SELECT * FROM a *", "leave out"),
        ("SELECT $1", "as :name"),
        ('SELECT * FROM U&"a"', "understood"),
        ("SELECT query_to_xml('SELECT * FROM a', true, true, '')", "query_to_xml"),
        ("SELECT pg_catalog.table_to_xml('a', true, true, '')", "table_to_xml"),
        ("SELECT * FROM dblink('x', 'SELECT 1') AS r(x int)", "dblink"),
        ("SELECT set_config('search_path', 'x', false)", "set_config"),
        ("SELECT lo_unlink(5)", "lo_unlink"),
        ("SELECT * FROM", "understood"),
        ("SELECT ((1)", "understood"),
        ("SELECT 'open", "understood"),
        ("SELECT * FROM a WHERE" + " (" * 4_000 + "1" + ")" * 4_000, "understood"),
    ],
)
def test_understand_of_anything_but_one_select_refuses(sql: str, reason: str) -> None:
    with pytest.raises(UnsupportedStatement, match=reason):
        read(sql)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT 1 WHERE 1 IN a", "IN"),
        ("SELECT * FROM a INDEXED BY i", "not supported"),
        ("PRAGMA table_info(a)", "one SELECT"),
        ("REPLACE INTO a VALUES (1)", "one SELECT"),
        ("ATTACH 'x' AS y", "one SELECT"),
        ("SELECT load_extension('x')", "load_extension"),
    ],
)
def test_understand_of_what_only_sqlite_has_refuses(sql: str, reason: str) -> None:
    with pytest.raises(UnsupportedStatement, match=reason):
        read(sql, "sqlite")


def test_plain_text_edited_keeps_everything_else() -> None:
    sql = "SELECT %(a)s::INTEGER, x %% 2, '%%(b)s' FROM t -- %% %(c)s"
    plain = PlainText(sql, "postgresql")
    assert plain.text == "SELECT $1::INTEGER, x % 2, '%(b)s' FROM t -- % $1"
    assert plain.edited([]) == sql
    place = plain.text.index("FROM t") + 5
    assert plain.edited([Edit(place, place + 1, "u AS t")]) == sql.replace("FROM t", "FROM u AS t")


def test_understand_takes_comments_away() -> None:
    plain = PlainText("/* a */ SELECT 1 /* b -- */ + /* /* c */ */ 2 -- d", "postgresql")
    edited = plain.edited(analyse_select(plain).comments)
    assert edited.split() == ["SELECT", "1", "+", "2"]


def test_plain_text_of_in_lists_of_any_length_is_the_same() -> None:
    def sql(count: int) -> str:
        values = ", ".join(f"%(x_{i})s::INTEGER" for i in range(count))
        return f"SELECT %(y)s FROM t WHERE a IN ({values}) AND b IN ({values}, 1)"

    texts = {PlainText(sql(count), "postgresql").text for count in (8, 9, 500)}
    assert texts == {"SELECT $1 FROM t WHERE a IN ($1::INTEGER) AND b IN ($1::INTEGER, 1)"}
    assert PlainText(sql(500), "postgresql").edited([]) == sql(500)


def test_understand_knows_the_tables_that_the_servers_plan_reads(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA s"))
        for name in ("a", "b", "c", "s.a", "s.b", '"A"', "y", "x", "s.x"):
            connection.execute(text(f"CREATE TABLE {name} (id int, x int, y int, z date, a int)"))
        connection.execute(text("CREATE FUNCTION f(int) RETURNS int LANGUAGE sql AS 'SELECT 1'"))
        planned = 0
        for sql, tables in READS.items():
            if "pg_catalog.pg_class" in sql:
                continue
            try:
                with connection.begin_nested():
                    plan = connection.exec_driver_sql(
                        f"EXPLAIN (VERBOSE, FORMAT JSON) {sql.replace('%', '%%')}", {}
                    ).scalar_one()
            except DBAPIError:
                continue  # types that do not fit
            planned += 1
            names = set(_relations(plan))
            known = {name if "." in name else f"public.{name}" for name in tables}
            assert names <= known, sql
    engine.dispose()
    assert planned > 15


def _relations(plan: object) -> list[str]:
    found: list[str] = []
    if isinstance(plan, list):
        for part in plan:
            found += _relations(part)
    elif isinstance(plan, dict):
        if "Relation Name" in plan:
            found.append(f"{plan['Schema']}.{plan['Relation Name']}")
        for part in plan.values():
            found += _relations(part)
    return found


def test_relations_of_a_plan_are_found() -> None:
    plan = json.loads('[{"Plan": {"Plans": [{"Schema": "s", "Relation Name": "a"}]}}]')
    assert _relations(plan) == ["s.a"]
