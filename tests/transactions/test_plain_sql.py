"""Transactions in memory beside plain SQL, which no lock keeps out there."""

from __future__ import annotations

import threading
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    Column,
    ForeignKey,
    Integer,
    Table,
    delete,
    func,
    insert,
    select,
    text,
    update,
)

from activedb.errors import ConfigurationError, SelfDeadlock, SerializationConflict
from tests.databases import PATIENCE_S, in_thread, place
from tests.drawing import Worlds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import activedb as adb
    from tests.databases import Place


def declared(db: adb.Database) -> tuple[Table, Table]:
    """Declare two tables, with the rows 1 to 3 each."""
    tables = tuple(
        Table(name, db.metadata, Column("id", Integer, primary_key=True), Column("n", Integer))
        for name in ("read", "other one")
    )
    db.create_all()
    with db.transaction() as t:
        for table in tables:
            t.execute(insert(table), [{"id": n, "n": n} for n in (1, 2, 3)])
    return tables[0], tables[1]


def plain(db: adb.Database, statements: Sequence[Any]) -> None:
    with db.connection() as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def reads(table: Table) -> list[Callable[[adb.Transaction], object]]:
    """Return ways to read rows of a table."""
    c = table.c
    return [
        lambda t: t.get(table, 1),
        lambda t: t.get(table, 9),
        lambda t: list(t.get_many(table, [1, 2]).values()),
        lambda t: t.query(select(c.n).where(c.id == 2)),
        lambda t: t.query(select(func.count(), func.sum(c.n)).where(c.n >= 2)),
        lambda t: t.query(select(table).order_by(c.id)),
        lambda t: t.query(text(f'SELECT max(n) FROM "{table.name}"')),
    ]


def writes(table: Table, world: Random) -> list[Any]:
    """Return statements of plain SQL that write a table."""
    c, number = table.c, world.randrange(100)
    return [
        update(table).values(n=c.n + number),
        insert(table).values(id=9, n=number),
        delete(table).where(c.id == 1),
        text(f'INSERT INTO main."{table.name}" (id, n) VALUES (9, {number})'),
        text(f'Update  "{table.name}" SET n = {number}'),
        text(f"REPLACE INTO [{table.name}] (id, n) VALUES (1, {number})"),
        text(f'update or ignore "{table.name}" set n = {number} where id = 2'),
    ]


def test_drawn_transaction_that_commits_has_read_what_is_there_then() -> None:
    worlds = Worlds(40, "plain SQL", conflict=3, deadlock=3, committed=3, beside=3)
    for world in worlds:
        with place(None) as where:
            worlds.met[outcome(where.open(), world)] += 1


def outcome(db: adb.Database, world: Random) -> str:
    """Run a transaction, with plain SQL after its first read or before; return what happened."""
    read, other = declared(db)
    asked = world.sample(reads(read), 2)
    target = world.choice((read, other))
    by_plain = world.choice(writes(target, world))
    is_beside, is_late = world.random() < 0.5, world.random() < 0.7
    refused: Exception | None = None
    seen: list[object] = []
    try:
        with db.transaction() as t:
            if is_late:
                seen.append(asked[0](t))
            if is_beside:
                in_thread(plain, db, [by_plain]).result(PATIENCE_S)
            else:
                plain(db, [by_plain])
            seen += [ask(t) for ask in asked[len(seen) :]]
            t.update(other, 3, n=77)
    except (SerializationConflict, SelfDeadlock) as error:
        refused = error
    assert (refused is not None) is (is_late and target is read)
    last = db.run(lambda t: t.get(other, 3))
    assert (last == {"id": 3, "n": 77}) is (refused is None)
    if refused is None:
        assert db.run(lambda t: [ask(t) for ask in asked]) == seen
        return "beside" if target is other else "committed"
    assert isinstance(refused, SerializationConflict if is_beside else SelfDeadlock)
    return "conflict" if is_beside else "deadlock"


@pytest.mark.parametrize("number", [1, 3])
def test_absent_key_that_plain_sql_inserts_is_told_of_as_a_row_that_it_changes(number: int) -> None:
    with place(None) as where:
        db = where.open()
        read, other = declared(db)
        statement = writes(read, Random(1))[number]
        with pytest.raises(SerializationConflict, match="plain SQL"), db.transaction() as t:
            assert t.get(read, 9) is None
            in_thread(plain, db, [statement]).result(PATIENCE_S)
            t.update(other, 3, n=77)
        plain(db, [delete(read).where(read.c.id == 9)])
        with pytest.raises(SelfDeadlock, match="on this same thread"), db.transaction() as t:
            assert t.get(read, 9) is None
            plain(db, [statement])
            t.update(other, 3, n=77)


def test_plain_sql_and_transactions_of_many_threads_lose_nothing(db: adb.Database) -> None:
    table, _ = declared(db)

    def work() -> None:
        for _ in range(5):
            plain(db, [update(table).where(table.c.id == 1).values(n=table.c.n + 1)])
            db.run(lambda t: t.update(table, 1, n=t.get(table, 1)["n"] + 1))  # type: ignore[index]

    threads = [in_thread(work) for _ in range(4)]
    for thread in threads:
        thread.result(PATIENCE_S)
    with db.transaction() as t:
        assert t.get(table, 1) == {"id": 1, "n": 1 + 4 * 5 * 2}


def test_rows_that_plain_sql_deletes_by_a_cascade_have_been_read_in_vain() -> None:
    with place(None) as where:
        db = where.open()
        parents, _ = declared(db)
        children = Table(
            "children",
            db.metadata,
            Column("id", Integer, primary_key=True),
            Column("parent", ForeignKey("read.id", ondelete="CASCADE")),
        )
        db.create_all()
        with db.transaction() as t:
            t.insert(children, {"id": 1, "parent": 1})
        with pytest.raises(SerializationConflict, match="children"), db.transaction() as t:
            assert t.get(children, 1) is not None
            in_thread(plain, db, [delete(parents).where(parents.c.id == 1)]).result(PATIENCE_S)
            t.update(parents, 2, n=5)


def test_writes_of_blocks_are_no_plain_sql(db: adb.Database) -> None:
    table, _ = declared(db)
    has_read, is_over = threading.Event(), threading.Event()

    def beside() -> None:
        with db.transaction() as t:
            t.get(table, 1)
            has_read.set()
            assert is_over.wait(PATIENCE_S)
            t.update(table, 1, n=5)

    thread = in_thread(beside)
    assert has_read.wait(PATIENCE_S)
    with db.connection() as connection:
        with db.transaction(connection=connection) as t:
            t.update(table, 2, n=6)
        connection.commit()
    is_over.set()
    thread.result(PATIENCE_S)
    with db.transaction() as t:
        assert t.query(select(table.c.n).order_by(table.c.id)) == [(5,), (6,), (3,)]


def test_connection_that_commits_each_statement_commits_each(where: Place) -> None:
    db = where.open()
    table, _ = declared(db)
    with db.connection() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        connection.execute(update(table).values(n=7))
        connection.rollback()
        connection.execute(insert(table).values(id=4, n=7))
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            db.transaction(connection=connection).__enter__()
    with db.connection() as connection:  # the next one has transactions again
        connection.execute(delete(table))
    with db.transaction() as t:
        assert t.query(select(table.c.n)) == [(7,)] * 4
        t.update(table, 1, n=8)
    with db.transaction() as t:
        assert t.get(table, 1) == {"id": 1, "n": 8}
