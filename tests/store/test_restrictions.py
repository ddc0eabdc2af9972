"""Primary keys to which the text of a SELECT restricts tables."""

from __future__ import annotations

from datetime import date, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from sqlalchemy import (
    CHAR,
    NCHAR,
    Column,
    Date,
    Enum,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    Uuid,
)
from sqlalchemy.dialects import postgresql

from activedb.store.sql import TableSpec, restricted_keys
from activedb.store.sql._restrictions import form_of, mentions_of
from activedb.store.sql._sql_text import PlainText, analyse_select

if TYPE_CHECKING:
    from collections.abc import Iterable

METADATA = MetaData()


def spec(name: str, *columns: Column[Any]) -> TableSpec:
    return TableSpec(Table(name, METADATA, *columns))


SPECS = {
    each.name: each
    for each in (
        spec("a", Column("id", Integer, primary_key=True), Column("b_id", Integer)),
        spec("b", Column("id", Integer, primary_key=True), Column("y", Numeric)),
        spec("Odd", Column("Id", Integer, primary_key=True)),
        spec("words", Column("word", String(9), primary_key=True), Column("fixed", CHAR(5))),
        spec("days", Column("day", Date, primary_key=True)),
        spec("names", Column("name", Uuid, primary_key=True)),
    )
}
ROWS: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {
    "a": {(1,): {"id": 1, "b_id": 7}, (2,): {"id": 2, "b_id": None}},
    "b": {(7,): {"id": 7, "y": 1}, (1,): {"id": 1, "y": 2}},
    "words": {("x",): {"word": "x", "fixed": "x    "}},
}


def keys_of(sql: str, dialect: str, parameters: Any) -> dict[str, list[Any] | None]:
    """Return the keys by table, those of one column bare."""
    plain = PlainText(sql, dialect)
    specs = [SPECS[reference.name] for reference in analyse_select(plain).references]

    def read(table: TableSpec, keys: list[tuple[Any, ...]]) -> Iterable[Any]:
        return [ROWS.get(table.name, {}).get(key) for key in keys]

    def find(
        table: TableSpec, names: tuple[str, ...], values: list[tuple[Any, ...]]
    ) -> list[Any] | None:
        rows = ROWS.get(table.name, {}).items()
        keys = {tuple(row[name] for name in names): key for key, row in rows}
        return [keys[each] for each in values] if keys.keys() >= set(values) else None

    def ask(table: TableSpec, predicate: object, is_last: bool) -> None:
        return None

    found = restricted_keys(mentions_of(plain, specs, parameters), read, find, ask)
    return {
        each.name: None if keys is None else [key[0] for key in keys]
        for each, keys in found.items()
    }


@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM a WHERE id = 1", {"a": [1]}),
        ("SELECT * FROM a WHERE (1 = a.id) AND b_id > 2", {"a": [1]}),
        ("SELECT * FROM a AS x WHERE x.id IN (1, 3)", {"a": [1, 3]}),
        ("SELECT * FROM a WHERE id = 1 AND id IN (2, 1)", {"a": [1]}),
        ("SELECT * FROM a WHERE id = 1 AND id = 2", {"a": []}),
        ("SELECT * FROM a WHERE id IN (1, 2, 3) AND id > 1", {"a": [1, 2, 3]}),
        ("SELECT * FROM a WHERE id = 1 AND 1 > id", {"a": []}),
        ("SELECT * FROM a WHERE id = 1 OR id = 2", {"a": None}),
        ("SELECT * FROM a WHERE NOT id = 1", {"a": None}),
        ("SELECT * FROM a WHERE id <> 1", {"a": None}),
        ("SELECT * FROM a WHERE id IN (1, id + 1)", {"a": None}),
        ("SELECT * FROM a WHERE id NOT IN (1, 2)", {"a": None}),
        ("SELECT * FROM a WHERE id + 0 = 1", {"a": None}),
        ("SELECT * FROM a WHERE id = 1.0", {"a": None}),
        ("SELECT * FROM a WHERE id = '1'", {"a": None}),
        ("SELECT * FROM a WHERE id = -1", {"a": None}),
        ("SELECT * FROM a WHERE id = id", {"a": None}),
        ("SELECT * FROM a WHERE id = (SELECT 1)", {"a": None}),
        ("SELECT * FROM a HAVING a.id = 1", {"a": None}),
        ("SELECT id FROM a WHERE id = 1 UNION SELECT id FROM b", {"a": [1], "b": None}),
        ("SELECT id FROM a WHERE id = 1 UNION SELECT id FROM a WHERE id = 2", {"a": [1, 2]}),
        ("SELECT id FROM a WHERE id = 1 UNION SELECT id FROM a", {"a": None}),
        ("SELECT * FROM a b, b a WHERE a.id = 1", {"a": None, "b": [1]}),
        ("SELECT * FROM a, b WHERE id = 1", {"a": None, "b": None}),
        ("SELECT * FROM a, b WHERE a.id = 1 AND b.id = a.b_id", {"a": [1], "b": [7]}),
        ("SELECT * FROM a, b WHERE a.id = 2 AND b.id = a.b_id", {"a": [2], "b": []}),
        ("SELECT * FROM a, b WHERE a.id = b.id AND b.id = 1", {"a": [1], "b": [1]}),
        ("SELECT * FROM a, b WHERE b.id = 1 AND a.id = b.y", {"a": None, "b": [1]}),
        ("SELECT * FROM a, b WHERE b.id = 1 AND a.id = b.gone", {"a": None, "b": [1]}),
        ("SELECT * FROM a LEFT JOIN b ON b.id = a.b_id WHERE a.id = 1", {"a": [1], "b": [7]}),
        ("SELECT * FROM a LEFT JOIN b ON a.id = 1 AND b.id = 2", {"a": None, "b": [2]}),
        ("SELECT * FROM a RIGHT JOIN b ON a.id = 1 AND b.id = 2", {"a": [1], "b": None}),
        ("SELECT * FROM a FULL JOIN b ON a.id = 1 AND b.id = 2", {"a": None, "b": None}),
        ("SELECT * FROM a JOIN b USING (id) WHERE a.id = 1", {"a": [1], "b": None}),
        ("SELECT * FROM a NATURAL JOIN b WHERE a.id = 1", {"a": [1], "b": None}),
        ("SELECT * FROM a WHERE id = 1 AND EXISTS (SELECT 1 FROM b WHERE id = 7)",
         {"a": [1], "b": [7]}),
        ("SELECT * FROM a WHERE id = 1 AND EXISTS (SELECT 1 FROM b WHERE b.id = a.b_id)",
         {"a": [1], "b": [7]}),
        ("SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.id = 1)", {"a": None, "b": None}),
        ("SELECT (SELECT y FROM b WHERE b.id = 7)", {"b": [7]}),
        ("SELECT * FROM (SELECT * FROM a WHERE id = 1) AS part", {"a": [1]}),
        ("SELECT * FROM (SELECT id AS i FROM a) AS part WHERE part.i = 1", {"a": None}),
        ("WITH a AS (SELECT * FROM b WHERE id = 1) SELECT * FROM a WHERE id = 2", {"b": [1]}),
        ("WITH c AS (SELECT * FROM a) SELECT * FROM c WHERE c.id = 1", {"a": None}),
        ("SELECT * FROM b JOIN (a JOIN b AS c ON a.id = 1) ON c.id = 2 WHERE b.id = 3",
         {"a": [1], "b": [2, 3]}),
        # Names that parentheses with an alias hide, on Postgres, and do not hide, in SQLite.
        ("SELECT * FROM a WHERE a.id = 1 AND EXISTS"
         " (SELECT 1 FROM (a JOIN b ON b.id = 7) AS j WHERE a.id = 2)", {"a": None, "b": None}),
        ("SELECT * FROM a WHERE a.id = 1 AND EXISTS (SELECT 1 FROM b,"
         " (a JOIN words ON true) AS j WHERE b.id = a.b_id)",
         {"a": None, "b": None, "words": None}),
        # Neither a subquery in FROM nor a CTE sees its neighbours: x is the one outside.
        ("SELECT * FROM a x WHERE x.id = 1 AND EXISTS (SELECT 1 FROM a x,"
         " (SELECT b.id FROM b WHERE b.id = x.b_id) s WHERE x.id = 2)", {"a": [1, 2], "b": None}),
        ("SELECT * FROM a x WHERE x.id = 1 AND EXISTS (WITH s AS (SELECT b.id FROM b"
         " WHERE b.id = x.b_id) SELECT 1 FROM a x, s WHERE x.id = 2)", {"a": [1, 2], "b": None}),
        ("SELECT * FROM a AS f WHERE f.id = 1 AND EXISTS (SELECT 1 FROM b, f('[7]')"
         " WHERE b.id = f.b_id)", {"a": [1], "b": None}),
        ("SELECT * FROM words WHERE word = CAST('0123' AS INTEGER)", {"words": None}),
        ("SELECT * FROM a WHERE id = 99999999999", {"a": None}),
        ("SELECT * FROM a WHERE id = 99999999999999999999", {"a": None}),
        ("SELECT * FROM words WHERE word = 'it''s'", {"words": ["it's"]}),
        ("SELECT * FROM words WHERE word = 'a\\b'", {"words": None}),
        ("SELECT * FROM words WHERE word = 1", {"words": None}),
        ("SELECT * FROM words, a WHERE words.word = 'x' AND a.id = words.fixed",
         {"words": ["x"], "a": None}),
        ("SELECT * FROM a WHERE ID = 1 /* AND id = 2 */ -- OR id = 3", {"a": [1]}),
    ],
)  # fmt: skip
def test_restricted_keys_of_text(sql: str, expected: Any, dialect: str) -> None:
    assert keys_of(sql, dialect, {} if dialect == "postgresql" else ()) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM a AS x (b_id, id) WHERE x.id = 1", {"a": None}),
        ("SELECT * FROM a AS x (b_id, id) WHERE id = 1", {"a": None}),
        ("SELECT * FROM words WHERE word = E'a\\x41'", {"words": None}),
        ("SELECT * FROM words WHERE word = E'a\\n'", {"words": None}),
        ('SELECT * FROM "Odd" WHERE "Odd"."Id" = 1', {"Odd": [1]}),
        ('SELECT * FROM "Odd" WHERE id = 1', {"Odd": None}),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.id = a.b_id) q WHERE a.id = 1",
         {"a": [1], "b": None}),
        ("SELECT * FROM a WHERE id = 1::BIGINT", {"a": None}),
        ("SELECT * FROM a WHERE id = ANY (ARRAY[1, 2])", {"a": None}),
        ("SELECT * FROM a WHERE id IS NOT DISTINCT FROM 1", {"a": [1]}),
    ],
)  # fmt: skip
def test_restricted_keys_of_text_for_postgres(sql: str, expected: Any) -> None:
    assert keys_of(sql, "postgresql", {}) == expected


DAY = date(2026, 11, 28)
NAME = UUID(int=7)


@pytest.mark.parametrize(
    ("table", "cast", "value", "expected"),
    [
        ("a", "", 1, [1]),
        ("a", "::INTEGER", 1, [1]),
        ("a", "::BIGINT", 1, [1]),
        ("a", "::NUMERIC(3, 1)", 1, None),
        ("a", "", 2**31 - 1, [2**31 - 1]),
        ("a", "", 2**31, None),
        ("a", "", True, None),
        ("a", "", 1.0, None),
        ("a", "", "1", None),
        ("a", "", None, None),
        ("words", "", "x", ["x"]),
        ("words", "::VARCHAR", "x", ["x"]),
        ("words", "::VARCHAR(2)", "xyz", None),
        ("words", "", 1, None),
        ("words", "", "too long for the column", ["too long for the column"]),
        ("days", "", DAY, [DAY]),
        ("days", "::DATE", datetime(2026, 11, 28, 12, 0), None),
        ("days", "", "2026-11-28", None),
        ("names", "::UUID", NAME, [NAME]),
        ("names", "", str(NAME), None),
    ],
)
def test_values_sent_restrict_if_nothing_converts_them(
    table: str, cast: str, value: Any, expected: Any
) -> None:
    column = SPECS[table].key_columns[0]
    sql = f"SELECT '%%' FROM {table} WHERE {column} = %(v)s{cast} LIMIT %(n)s"
    assert keys_of(sql, "postgresql", {"n": 3, "v": value}) == {table: expected}


@pytest.mark.parametrize("count", [1, 7, 8, 20, 128, 129])
@pytest.mark.parametrize("dialect", ["postgresql", "sqlite"])
def test_keys_in_a_list_are_few(dialect: str, count: int) -> None:
    values = list(range(count))
    marks = ", ".join("?" if dialect == "sqlite" else f"%(v_{n})s::INTEGER" for n in values)
    sql = f"SELECT {marks[: marks.find(',')] if count > 1 else marks} FROM a WHERE id IN ({marks})"
    sent: Any = {f"v_{n}": n for n in values} if dialect == "postgresql" else [0, *values]
    assert keys_of(sql, dialect, sent) == {"a": values if count <= 128 else None}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT '?, ?, ?, ?, ?, ?, ?, ?' FROM a WHERE b_id = ? AND id = ?",
        "SELECT 'it''s ?' FROM a WHERE b_id = ? AND id = ?",
        'SELECT id AS "?" FROM a WHERE b_id = ? AND id = ?',
        "SELECT id AS [?], id AS `?` FROM a WHERE b_id = ? AND id = ?",
        "SELECT id -- is it ?\nFROM a WHERE b_id = ? AND id = ?",
        "SELECT id /* ?, ? \n ? */ FROM a WHERE b_id = ? AND id = ?",
    ],
)
def test_question_marks_that_stand_for_no_value(sql: str) -> None:
    assert keys_of(sql, "sqlite", (5, 1)) == {"a": [1]}
    assert keys_of(sql, "sqlite", (5, 1, 2)) == {"a": None}  # what stands for what is unknown


@pytest.mark.parametrize(
    "kind",
    [
        NCHAR(5),
        postgresql.CITEXT(),
        Uuid(as_uuid=False),
        String(5, collation="C"),
        String(5).with_variant(String(5, collation="NOCASE"), "sqlite"),
        Enum("a", "b"),
        Numeric(),
    ],
    ids=str,
)
def test_types_whose_values_may_be_equal_at_the_server_alone_restrict_nothing(kind: Any) -> None:
    assert form_of(kind) is None
