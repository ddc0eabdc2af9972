"""Any SELECT over the sphere gives what it gives on plain tables that have the visible rows."""

from __future__ import annotations

import contextlib
import os
import random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Connection,
    MetaData,
    Table,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.schema import CreateSchema, DropSchema

from activedb.errors import ActiveDBError
from tests.transactions.selects import LETTERS, Selects, tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    import activedb as adb
    from tests.databases import Place

pytestmark = [
    pytest.mark.filterwarnings("ignore:SELECT statement has a cartesian product"),
]

PROGRAMS = 6
QUERIES = 14
Rows = dict[Table, dict[Any, dict[str, Any]]]


class Stop(Exception):
    """Error that ends a subtransaction that is to abort."""


@contextlib.contextmanager
def plain_tables(place: Place, url: str) -> Iterator[tuple[Connection, str | None]]:
    """Yield a connection without activedb, and the schema in which it may make tables."""
    if place.is_memory:
        engine, schema = create_engine("sqlite://"), "main"
    else:
        schema = f"plain{random.randrange(10**9)}"
        options = {"options": f"-c search_path={schema}"}
        engine = create_engine(
            url.replace("postgresql:", "postgresql+psycopg:"), connect_args=options
        )
    with contextlib.ExitStack() as stack:
        stack.callback(engine.dispose)
        connection = stack.enter_context(engine.connect())
        if not place.is_memory:
            connection.execute(CreateSchema(schema))
        try:
            yield connection, schema
        finally:
            connection.rollback()
            if not place.is_memory:
                connection.execute(DropSchema(schema, cascade=True, if_exists=True))
                connection.commit()


def write(t: adb.Transaction, chance: random.Random, rows: Rows) -> None:
    """Insert, update or delete at random, in the database and in `rows`."""
    table = chance.choice(list(rows))
    there = rows[table]
    key: Any = chance.randint(0, 6)
    row: dict[str, Any] = {c.name: chance.choice([None, *range(6)]) for c in table.columns}
    if "s" in row:
        row["s"] = chance.choice([None, *LETTERS])
    if len(table.primary_key.columns) == 2:
        key = (key % 3, chance.choice("pq"))
        row |= {"x": key[0], "y": key[1]}
    else:
        row["id"] = key
    if key not in there:
        there[key] = row
        t.insert(table, row)
    elif chance.random() < 0.4:
        del there[key]
        t.delete(table, key)
    else:
        there[key] = row
        t.update(table, key, **{n: v for n, v in row.items() if n not in table.primary_key.columns})


def descend(t: adb.Transaction, chance: random.Random, rows: Rows, depth: int, look: Any) -> None:
    """Write at each of a few depths, look at the rows in the deepest, and abort some."""
    for _ in range(chance.randint(1, 4)):
        if chance.random() < 0.2:
            before = {table: dict(there) for table, there in rows.items()}
            with contextlib.suppress(Stop), t.subtransaction() as s:
                write(s, chance, rows)
                raise Stop
            rows.update(before)
        write(t, chance, rows)
    if depth == 0:
        look(t)
    else:
        with t.subtransaction() as s:
            descend(s, chance, rows, depth - 1, look)


def shown(rows: Any) -> list[str]:
    return sorted(repr(tuple(row)) for row in rows)


@pytest.mark.long
def test_query_of_any_select_equals_the_select_over_plain_rows(
    where: Place, postgres_url: str, scale: int
) -> None:
    base = int(os.environ["ACTIVEDB_TEST_SEED"])
    db = where.open()
    schema = "main" if where.is_memory else where._schema
    declared = tables(db.metadata, schema)
    db.create_all()
    rows: Rows = {table: {} for table in declared}
    with plain_tables(where, postgres_url) as (connection, plain_schema):
        plain = tables(MetaData(), plain_schema)
        for table in plain:
            table.create(connection)
        connection.commit()
        for program in range(PROGRAMS * scale):
            seed = f"{base}.{program}"
            with db.transaction() as t:
                for _ in range(8):
                    write(t, random.Random(f"{seed}.{_}"), rows)

            def look(t: adb.Transaction, seed: str = seed) -> None:
                for there, table in zip(rows.values(), plain, strict=True):
                    connection.execute(table.delete())
                    if there:
                        connection.execute(insert(table), list(there.values()))
                for number in range(QUERIES):
                    compare(t, connection, declared, plain, f"{seed}/{number}")
                connection.rollback()

            before = {table: dict(there) for table, there in rows.items()}
            with contextlib.suppress(Stop), db.transaction() as t:
                chance = random.Random(seed)
                descend(t, chance, rows, chance.randint(0, 3), look)
                if chance.random() < 0.5:
                    raise Stop
                before = rows
            rows.update(before)


def compare(
    t: adb.Transaction, connection: Connection, declared: Any, plain: Any, seed: str
) -> None:
    """Draw the same statement over both kinds of tables; also as text."""
    is_sqlite = connection.dialect.name == "sqlite"
    statement = Selects(random.Random(seed), declared, is_sqlite=is_sqlite).draw()
    over_plain = Selects(random.Random(seed), plain, is_sqlite=is_sqlite).draw()
    written = str(
        statement.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
    )
    if connection.dialect.name == "postgresql":
        written = written.replace("%%", "%")
    as_text = text(written.replace(":", r"\:"))
    expected = shown(connection.execute(over_plain))
    try:
        assert shown(t.query(statement)) == expected, "as objects"
        assert shown(t.query(as_text)) == expected, "as text"
        if not written.startswith("WITH"):
            fragment = select(text("count(*)")).select_from(text(f"({as_text.text}) AS f"))
            assert t.query(fragment) == [(len(expected),)], "as a fragment"
    except (AssertionError, ActiveDBError) as error:
        error.add_note(f"seed {seed}\n{written}")
        raise
