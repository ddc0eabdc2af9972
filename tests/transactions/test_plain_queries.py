"""SELECTs of plain columns by key or by equations: answered from locked rows, or by the server.

Whichever it is, the answer is that of a list of dictionaries, whatever the transaction has written,
and whatever clauses the statement has besides.
"""

from __future__ import annotations

import operator
from datetime import date
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from sqlalchemy import (
    LABEL_STYLE_TABLENAME_PLUS_COL,
    Boolean,
    Column,
    Computed,
    Date,
    Integer,
    MetaData,
    String,
    Table,
    and_,
    bindparam,
    func,
    insert,
    literal,
    select,
    text,
)

import activedb as adb
from activedb.errors import DefinitionError, UnsupportedStatement
from tests.drawing import SCALE, Worlds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from tests.databases import Place

    Rows = dict[int, dict[str, Any]]

KEYS = range(1, 10)
VALUES: dict[str, list[Any]] = {
    "number": [0, 1, 2, None],
    "text": ["a", "A", "a ", "", "it's %s :x", None],
    "truth": [True, False, None],
    "day": [date(2026, 1, 1), date(2026, 1, 2), None],
}


OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def things_of(db: adb.Database) -> Table:
    things = Table(
        "things",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("number", Integer),
        Column("text", String(12)),
        Column("truth", Boolean),
        Column("day", Date),
        Column("code", Integer, unique=True),
        Column("double", Integer, Computed("number * 2")),
    )
    db.create_all()
    return things


def a_row(chance: Random, key: int) -> dict[str, Any]:
    return {"id": key, **{name: chance.choice(all_) for name, all_ in VALUES.items()}, "code": key}


def an_equation(chance: Random, things: Table) -> tuple[Any, Callable[[dict[str, Any]], bool]]:
    name = chance.choice([*VALUES, "id", "code", "double"])
    kept = VALUES.get(name) or ([0, 2, 4] if name == "double" else list(KEYS))
    values = [value for value in kept if value is not None]
    chosen = chance.sample(values, min(len(values), chance.choice([1, 1, 2, 3])))
    column = things.c[name]
    kind = chance.random()
    if kind < 0.15:
        return column.is_(None), lambda row: row[name] is None
    if kind < 0.3:
        return column.is_not(None), lambda row: row[name] is not None
    if kind < 0.6 and name != "truth" and name != "text":
        told, compare = chance.choice(list(OPERATORS.items()))
        return (
            column.bool_op(told)(chosen[0])
            if chance.random() < 0.2
            else compare(column, chosen[0]),
            lambda row: row[name] is not None and bool(compare(row[name], chosen[0])),
        )
    condition = column == chosen[0] if len(chosen) == 1 else column.in_(chosen)
    if chance.random() < 0.1:
        condition = literal(chosen[0], column.type) == column if len(chosen) == 1 else condition
    return condition, lambda row: row[name] in chosen and row[name] is not None


def shown(rows: Rows) -> Iterator[dict[str, Any]]:
    for row in rows.values():
        number = row["number"]
        yield {**row, "double": None if number is None else 2 * number}


def write(t: adb.Transaction, things: Table, rows: Rows, chance: Random) -> None:
    """Change a row, here and in the model."""
    key = chance.choice(KEYS)
    if key not in rows:
        rows[key] = a_row(chance, key)
        t.insert(things, rows[key])
    elif chance.random() < 0.3:
        del rows[key]
        t.delete(things, key)
    else:
        changed = a_row(chance, key)
        rows[key] = changed
        t.update(things, key, **{name: changed[name] for name in VALUES})


@pytest.mark.long
def test_answer_is_that_of_a_list_of_rows(where: Place) -> None:
    db = where.open()
    things = things_of(db)
    worlds = Worlds(60 * SCALE, "plain queries", some=60, none=20, dirty=60)
    for chance in worlds:
        rows: Rows = {key: a_row(chance, key) for key in KEYS if chance.random() < 0.8}
        with db.connection() as connection:
            connection.execute(things.delete())
            if rows:
                connection.execute(insert(things), list(rows.values()))
            connection.commit()
        with db.transaction() as t:
            for _ in range(6):
                if chance.random() < 0.4:
                    write(t, things, rows, chance)
                    worlds.met["dirty"] += 1
                equations = [an_equation(chance, things) for _ in range(chance.choice([1, 1, 2]))]
                columns = chance.sample(list(things.c), chance.choice([1, 3, 7]))
                statement = select(*columns).where(*(condition for condition, _ in equations))
                if chance.random() < 0.2:
                    statement = statement.with_for_update()
                names = [column.name for column in columns]
                wanted = [
                    tuple(row[name] for name in names)
                    for row in shown(rows)
                    if all(holds(row) for _, holds in equations)
                ]
                found = t.query(statement)
                assert sorted(map(repr, found)) == sorted(map(repr, wanted)), str(statement)
                assert all(row._fields == tuple(names) for row in found)
                worlds.met["some" if found else "none"] += 1
            t.abort()


CLAUSES: dict[str, Callable[[Any, Any], Any]] = {
    "limit": lambda s, c: s.limit(1),
    "limit of none": lambda s, c: s.limit(0),
    "offset": lambda s, c: s.offset(1),
    "order": lambda s, c: s.order_by(c.id.desc()),
    "distinct": lambda s, c: s.distinct(),
    "group": lambda s, c: s.group_by(c.id, c.number, c.text),
    "having": lambda s, c: s.group_by(c.id, c.number, c.text).having(func.count() > 1),
    "prefix": lambda s, c: s.prefix_with("ALL"),
    "from": lambda s, c: s.select_from(c.id.table),
    "join": lambda s, c: s.join(c.id.table.alias("o"), literal(True)),
    "correlate": lambda s, c: s.correlate(None),
    "options": lambda s, c: s.execution_options(x=1),
    "label style": lambda s, c: s.set_label_style(LABEL_STYLE_TABLENAME_PLUS_COL),
    "more columns": lambda s, c: s.add_columns(c.day, literal(1).label("one")),
    "aggregate": lambda s, c: s.with_only_columns(func.count()),
    "and": lambda s, c: s.where(and_(c.id > 0, c.number.is_not(None))),
    "parameter": lambda s, c: s.where(c.id.in_(bindparam("keys", [1, 2, 3], expanding=True))),
    "cte": lambda s, c: s.add_cte(select(literal(1)).cte("other", nesting=True)),
}


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("by", ["id", "ids", "number", "numbers", "code"])
def test_further_clauses_are_left_to_the_server(where: Place, clause: str, by: str) -> None:
    db = where.open()
    things = things_of(db)
    c: Any = things.c
    conditions = {
        "id": c.id == 2,
        "ids": c.id.in_([1, 2, 3]),
        "number": c.number == 1,
        "numbers": c.number.in_([1, 2]),
        "code": c.code == 2,
    }
    statement = CLAUSES[clause](select(c.id, c.number, c.text).where(conditions[by]), c)
    with db.connection() as connection:
        rows = [{"id": n, "number": 1 + n % 2, "text": "x", "code": n} for n in range(1, 7)]
        connection.execute(insert(things), rows)
        connection.commit()
        wanted = connection.execute(statement).all()
        connection.rollback()
    with db.transaction() as t:
        found = t.query(statement)
        assert len(found) == len(wanted)
        if clause not in ("limit", "offset"):
            assert sorted(map(repr, found)) == sorted(map(repr, wanted))
        t.insert(things, {"id": 7, "number": 1, "text": "x", "code": 7})
        t.query(statement)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a.id FROM wards a LEFT JOIN beds b ON b.id = a.n WHERE b.ward IS NULL",
        "SELECT a.id FROM beds b RIGHT JOIN wards a ON b.id = a.n WHERE b.ward IS NULL",
        "SELECT a.id FROM wards a LEFT JOIN beds b ON b.id = a.n JOIN wards c ON c.id = a.id AND "
        "b.ward IS NULL",
        "SELECT a.id FROM wards a LEFT JOIN (beds b JOIN wards c ON c.id = b.id) ON b.id = a.n "
        "WHERE b.ward IS NULL",
        "SELECT a.id FROM wards a LEFT JOIN beds b ON b.id = a.n AND b.ward IS NOT NULL "
        "WHERE b.id IS NULL AND a.n IS NOT NULL",
        "SELECT a.id FROM wards a WHERE NOT EXISTS "
        "(SELECT 1 FROM beds b WHERE b.id = a.n AND b.ward IS NOT NULL)",
    ],
)
def test_null_of_an_outer_join_is_no_condition_on_the_rows_that_are_joined(
    where: Place, sql: str
) -> None:
    db = where.open()
    wards, beds = wards_of(db.metadata, "wards"), wards_of(db.metadata, "beds")
    db.create_all()
    rows: list[dict[str, Any]] = [
        {"id": 1, "ward": "A", "n": 2},
        {"id": 2, "ward": None, "n": 1},
        {"id": 3, "ward": "B", "n": 9},
        {"id": 4, "ward": "C", "n": 3},
    ]
    with db.connection() as connection:
        connection.execute(insert(wards), rows)
        connection.execute(insert(beds), rows)
        connection.commit()
        wanted = sorted(map(tuple, connection.execute(text(sql))))
        connection.rollback()
    with db.transaction() as t:
        assert sorted(map(tuple, t.query(text(sql)))) == wanted != []


# -- what the server knows better ------------------------------------------------------------------


def wards_of(metadata: MetaData, name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("ward", String(5)),
        Column("n", Integer),
    )


def test_second_table_of_the_same_name_shows_what_was_written_to_the_first(where: Place) -> None:
    db = where.open()
    first, second = wards_of(db.metadata, "wards"), wards_of(MetaData(), "wards")
    db.create_all()
    db.run(lambda t: [t.insert(first, {"id": n, "ward": "A", "n": 0}) for n in (1, 2)])
    with db.transaction() as t:
        t.update(first, 1, n=7)
        assert t.query(select(second.c.n).where(second.c.id == 1)) == [(7,)]
        found = t.query(select(second.c.id, second.c.n).where(second.c.ward == "A"))
        assert sorted(found) == [(1, 7), (2, 0)]


def test_second_table_of_the_same_name_with_other_columns_is_refused(where: Place) -> None:
    db = where.open()
    first = wards_of(db.metadata, "wards")
    second = Table("wards", MetaData(), Column("id", Integer, primary_key=True))
    db.create_all()
    db.run(lambda t: t.insert(first, {"id": 1, "ward": "A", "n": 0}))
    with db.transaction() as t, pytest.raises(DefinitionError, match="declare it once"):
        t.get(second, 1)


def test_relations_that_are_not_declared_are_refused_or_the_servers_own(there: Place) -> None:
    db = there.open()
    wards = wards_of(db.metadata, "wards")
    db.create_all()
    other = MetaData()
    view = wards_of(other, "seen")
    catalog = Table("pg_class", other, Column("relname", String, primary_key=True))
    catalog.schema = "pg_catalog"
    schema = Table(
        "tables",
        other,
        Column("table_name", String, primary_key=True),
        Column("table_type", String),
        schema="information_schema",
    )
    with db.connection() as connection:
        connection.execute(text("CREATE VIEW seen AS SELECT * FROM wards"))
        connection.commit()
    with db.transaction() as t:
        t.insert(wards, {"id": 1, "ward": "A", "n": 0})
        for column in (view.c.ward == "A", view.c.id == 1):
            with pytest.raises(UnsupportedStatement, match=r"not known here|not a table"):
                t.query(select(view.c.n).where(column))
        views = select(schema.c.table_name).where(schema.c.table_type == "VIEW")
        assert ("seen",) in t.query(views)
        named = select(catalog.c.relname).where(catalog.c.relname == "seen")  # in any schema
        assert ("seen",) in t.query(named)


def test_comparison_is_the_servers_if_its_type_is_another_one(there: Place) -> None:
    db = there.open()
    wards = wards_of(db.metadata, "wards")
    db.create_all()
    with db.connection() as connection:
        connection.execute(text("ALTER TABLE wards ALTER ward TYPE char(5)"))
        connection.execute(
            text("INSERT INTO wards VALUES (1, 'ab', 0), (2, 'cd', 0), (3, 'cd', 1)")
        )
        connection.commit()
    for ward, wanted in ("ab", [1]), ("cd", [2, 3]):
        for statement in (
            select(wards.c.id).where(wards.c.ward == ward),
            select(wards.c.id).where(wards.c.ward == ward).with_for_update(),
        ):
            assert sorted(n for (n,) in db.run(lambda t, s: t.query(s), statement)) == wanted


def test_rows_of_tables_that_inherit_may_have_one_key(there: Place) -> None:
    db = there.open()
    wards = wards_of(db.metadata, "wards")
    db.create_all()
    with db.connection() as connection:
        connection.execute(text("CREATE TABLE more (PRIMARY KEY (id)) INHERITS (wards)"))
        connection.execute(text("INSERT INTO wards VALUES (1, 'A', 1)"))
        connection.execute(text("INSERT INTO more VALUES (1, 'A', 2), (2, 'A', 3)"))
        connection.commit()
    with db.transaction() as t:
        found = t.query(select(wards.c.id, wards.c.n).where(wards.c.ward == "A"))
        assert sorted(found) == [(1, 1), (1, 2), (2, 3)]


def test_row_that_may_be_read_and_not_locked_is_in_the_answer(there: Place) -> None:
    """Row security: FOR SHARE shows the rows that may be updated."""
    db = there.open()
    wards = wards_of(db.metadata, "wards")
    db.create_all()
    role = f"reader_{uuid4().hex}"
    with db.connection() as connection:
        schema = connection.execute(text("SELECT current_schema()")).scalar_one()
        for sql in (
            "INSERT INTO wards VALUES (1, 'A', 1), (2, 'A', 2), (3, 'B', 3)",
            "ALTER TABLE wards ENABLE ROW LEVEL SECURITY",
            "ALTER TABLE wards FORCE ROW LEVEL SECURITY",
            "CREATE POLICY reading ON wards FOR SELECT USING (true)",
            "CREATE POLICY writing ON wards FOR UPDATE USING (n = 1)",
            f"CREATE ROLE {role} LOGIN",
            f"GRANT ALL ON SCHEMA {schema} TO {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}",
        ):
            connection.execute(text(sql))
        connection.commit()
        url = connection.engine.url.set(username=role).render_as_string(hide_password=False)
    with adb.connect(url, db_schema=schema) as reader:
        wards = wards_of(reader.metadata, "wards")
        with reader.transaction() as t:
            for ward, wanted in ("A", [1, 2]), ("B", [3]):
                found = t.query(select(wards.c.id).where(wards.c.ward == ward))
                assert sorted(n for (n,) in found) == wanted
