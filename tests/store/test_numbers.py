"""Numbers that the database generates: in memory the same as on Postgres, whoever inserts rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Identity, Integer, Sequence, Table, Text, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import activedb as adb
from activedb.errors import InvalidRow
from tests.databases import place
from tests.drawing import Worlds

if TYPE_CHECKING:
    from random import Random

    from tests.databases import Place


def declared(db: adb.Database) -> dict[str, Table]:
    """Declare tables with numbers of all kinds."""
    m = db.metadata
    numbered = Sequence("numbers_of_sequenced", start=10, increment=5, metadata=m)
    return {
        "plain": Table("plain", m, Column("id", Integer, primary_key=True), Column("x", Integer)),
        "identity": Table(
            "identified",
            m,
            Column("id", Integer, Identity(always=True, start=3), primary_key=True),
            Column("x", Integer),
        ),
        "sequence": Table(
            "sequenced",
            m,
            Column("id", Integer, numbered, primary_key=True),
            Column("x", Integer),
        ),
        "composite": Table(
            "composite",
            m,
            Column("k", Text, primary_key=True, default="k"),
            Column("id", Integer, Identity(), primary_key=True),
            Column("x", Integer),
        ),
        "beside": Table(
            "beside",
            m,
            Column("id", Integer, primary_key=True),
            Column("no", Integer, Identity(always=True, start=-1, increment=-1)),
            Column("of", Integer, Sequence("numbers_beside", metadata=m)),
            Column("x", Integer),
        ),
    }


def program(db: adb.Database, world: Random) -> list[Any]:
    """Insert rows in drawn ways into drawn tables; return all rows."""
    tables = declared(db)
    db.create_all()
    for _ in range(8):
        name = world.choice([*tables, "plain", "plain"])
        table = tables[name]
        # SQLite itself numbers single keys only, from 1 on.
        if name == "plain" and world.random() < 0.5:
            with db.connection() as connection:
                connection.execute(insert(table).values(x=world.randrange(9)))
                if world.random() < 0.5:
                    with db.transaction(connection=connection) as t:
                        t.insert(table, {"x": world.randrange(9)})
                connection.execute(insert(table).values(x=world.randrange(9)))
                connection.commit()
            continue
        with db.transaction() as t:
            for _ in range(world.randrange(1, 4)):
                if world.random() < 0.5:
                    t.insert(table, {"x": world.randrange(9)})
                else:
                    t.execute(insert(table), [{"x": world.randrange(9)} for _ in range(2)])
    with db.transaction() as t:
        return [sorted(map(tuple, t.query(select(table)))) for table in tables.values()]


def test_drawn_numbers_are_those_of_postgres(there: Place) -> None:
    for world in Worlds(4, "numbers"):
        seed = world.getrandbits(64)
        with place(None) as memory, there.another() as server:
            assert program(memory.open(), type(world)(seed)) == program(
                server.open(), type(world)(seed)
            )


def test_numbers_of_rules_and_of_a_watched_session_are_one_sequence(db: adb.Database) -> None:
    class Base(DeclarativeBase):
        metadata = db.metadata

    class Line(Base):
        __tablename__ = "lines"
        id: Mapped[int] = mapped_column(primary_key=True)
        x: Mapped[str]

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        x: Mapped[str]

    class Watched(Session):
        pass

    db.create_all()

    @db.rule(on=adb.inserted(Order))
    def log(t: adb.Transaction, o: Any) -> None:
        t.insert(Line, {"x": f"rule {o.new['x']}"})

    db.watch(Watched)
    with db.connection() as connection, Watched(bind=connection) as session:
        for made in (Order(x="a"), Line(x="own"), Order(x="b")):
            session.add(made)
            session.commit()
        lines = session.execute(select(Line.id, Line.x).order_by(Line.id)).all()
    assert lines == [(1, "rule a"), (2, "own"), (3, "rule b")]


@pytest.mark.parametrize("how", ["insert", "execute"])
def test_number_of_a_column_without_a_sequence_is_an_invalid_row(there: Place, how: str) -> None:
    db = there.open()
    with db.connection() as connection:
        connection.execute(text("CREATE TABLE a (id integer PRIMARY KEY, n integer)"))
        connection.commit()
    a = Table("a", db.metadata, Column("id", Integer, primary_key=True), Column("n", Integer))
    with db.transaction() as t:
        t.insert(a, {"id": 1, "n": 2})
    with (
        db.transaction() as t,
        pytest.raises(InvalidRow, match="no sequence that numbers column id; give it a value"),
    ):
        t.insert(a, {"n": 2}) if how == "insert" else t.execute(insert(a), [{"n": 2}, {"n": 3}])


def test_tables_with_identities_beside_the_key_are_declared_from_the_server(there: Place) -> None:
    db = there.open()
    with db.connection() as connection:
        connection.execute(
            text(
                "CREATE TABLE found (id serial PRIMARY KEY, "
                "no integer GENERATED ALWAYS AS IDENTITY, other serial, n integer)"
            )
        )
        connection.execute(
            text(
                "CREATE TABLE pairs (k integer, "
                "id integer GENERATED ALWAYS AS IDENTITY, n integer, PRIMARY KEY (k, id))"
            )
        )
        connection.commit()
    db.admin.declare_existing()
    found, pairs = db.metadata.tables["found"], db.metadata.tables["pairs"]
    with db.transaction() as t:
        assert t.insert(found, {"n": 1}) == {"id": 1, "no": 1, "other": 1, "n": 1}
        assert t.insert(pairs, {"k": 7, "n": 1}) == {"k": 7, "id": 1, "n": 1}
        t.execute(insert(found), [{"n": n} for n in range(100)])  # all at once
    with db.transaction() as t:
        t.update(found, 1, n=2)
        t.update(pairs, (7, 1), n=2)
    with db.transaction() as t:
        assert t.get(found, 1) == {"id": 1, "no": 1, "other": 1, "n": 2}
        assert t.query(select(found.c.no).where(found.c.id == 101)) == [(101,)]
