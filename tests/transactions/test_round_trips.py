"""Round trips to the server: what a small transaction takes, and which locks go with its writes."""

from __future__ import annotations

import enum
import math
import tempfile
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Date,
    DateTime,
    Enum,
    Integer,
    LargeBinary,
    Numeric,
    String,
    Table,
    Uuid,
    insert,
    select,
    text,
)
from sqlalchemy.exc import OperationalError

import activedb as adb
from activedb.errors import SerializationConflict
from activedb.store.server import _connections, _prepared
from tests.databases import PATIENCE_S, in_thread, until
from tests.nodes import node_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.databases import Place


def beds_of(db: adb.Database, count: int = 4) -> Table:
    beds = Table(
        "beds",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("ward", Integer, index=True),
        Column("level", Integer),
    )
    db.create_all()
    with db.connection() as connection:
        rows = [{"id": n, "ward": n, "level": 0} for n in range(1, count + 1)]
        connection.execute(insert(beds), rows)
        connection.commit()
    return beds


def by_key(t: adb.Transaction, beds: Table, n: int) -> None:
    ((level,),) = t.query(select(beds.c.level).where(beds.c.id == n))
    t.update(beds, n, level=level + 1)


def by_predicate(t: adb.Transaction, beds: Table, n: int) -> None:
    ((key, level),) = t.query(select(beds.c.id, beds.c.level).where(beds.c.ward == n))
    t.update(beds, key, level=level + 1)


def by_predicate_to_write(t: adb.Transaction, beds: Table, n: int) -> None:
    ((key, level),) = t.query(
        select(beds.c.id, beds.c.level).where(beds.c.ward == n).with_for_update()
    )
    t.update(beds, key, level=level + 1)


def by_get(t: adb.Transaction, beds: Table, n: int) -> None:
    row = t.get(beds, n)
    assert row is not None
    t.update(beds, n, level=row["level"] + 1)


def by_get_to_write(t: adb.Transaction, beds: Table, n: int) -> None:
    row = t.get(beds, n, for_update=True)
    assert row is not None
    t.update(beds, n, level=row["level"] + 1)


def by_update_alone(t: adb.Transaction, beds: Table, n: int) -> None:
    t.update(beds, n, level=2)


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (by_key, 3),
        (by_predicate, 3),
        (by_predicate_to_write, 3),
        (by_get, 3),
        (by_get_to_write, 3),
        (by_update_alone, 3),
    ],
)
def test_two_rows_read_and_written_take_a_message_each_and_one_to_commit(
    there: Place, monkeypatch: pytest.MonkeyPatch, change: Callable[..., None], messages: int
) -> None:
    # However slow the machine is: plans are not dropped meanwhile, and the connection not pinged.
    monkeypatch.setattr(_prepared, "_AGE_S_MAX", math.inf)
    monkeypatch.setattr(_connections, "_IDLE_S_MAX", math.inf)
    db = there.open(threads=1)
    beds = beds_of(db, count=40)
    drivers: list[Any] = []

    def work(t: adb.Transaction, first: int) -> None:
        change(t, beds, first)
        change(t, beds, first + 1)
        drivers.append(node_of(t).hierarchy.session._driver)

    for n in range(1, 20, 2):  # statements are prepared, and the table is known to be asked
        db.run(work, n)
    assert messages_of(drivers[-1].pgconn, lambda: db.run(work, 31)) == messages
    assert drivers[-1] is drivers[-2]


def messages_of(pgconn: Any, work: Callable[[], object]) -> int:
    """Return how many messages with an answer `work` sends on a connection."""
    with tempfile.TemporaryFile() as trace:
        pgconn.trace(trace.fileno())
        work()
        pgconn.untrace()
        trace.seek(0)
        lines = [line.split(b"\t") for line in trace.read().splitlines()]
    sent = [fields[3].strip() for fields in lines if len(fields) > 3 and fields[1] == b"F"]
    return len([kind for kind in sent if kind in (b"Sync", b"Query")])


def test_query_by_key_of_a_row_that_was_read_sends_nothing_in_a_locked_table_too(
    there: Place,
) -> None:
    db = there.open(threads=1)
    beds = beds_of(db)
    of_row = select(beds.c.level).where(beds.c.id == 2)
    with db.transaction() as t:
        t.query(select(beds.c.level))
        t.update(beds, 3, level=5)
        assert t.query(of_row) == [(0,)]
        pgconn = node_of(t).hierarchy.session._driver.pgconn
        assert messages_of(pgconn, lambda: t.query(of_row)) == 0
        t.update(beds, 2, level=7)  # only the server knows how it would show this
        assert messages_of(pgconn, lambda: t.query(of_row)) > 0
        assert t.query(of_row) == [(7,)]


def plain(db: adb.Database, sql: str) -> None:
    with db.connection() as connection:
        connection.execute(text(sql))
        connection.commit()


def is_free(db: adb.Database, lock: str) -> bool:
    """Return whether another program gets a lock on the first bed."""
    with db.connection() as connection:
        try:
            connection.execute(text(f"SELECT 1 FROM beds WHERE id = 1 {lock} NOWAIT"))
        except OperationalError:
            return False
        finally:
            connection.rollback()
    return True


def test_row_that_was_read_is_locked_for_writing_by_the_commit_or_by_for_update(
    there: Place,
) -> None:
    db = there.open()
    beds = beds_of(db)
    with db.transaction() as t:
        t.get(beds, 1)
        t.update(beds, 1, level=1)
        assert is_free(db, "FOR SHARE")  # so a reader goes before
        assert not is_free(db, "FOR NO KEY UPDATE")
        t.get(beds, 1, for_update=True)
        assert is_free(db, "FOR SHARE")  # its own version is the newest already
    with db.transaction() as t:
        t.get(beds, 1)
        t.get(beds, 1, for_update=True)
        assert not is_free(db, "FOR SHARE")
    with db.transaction() as t:
        t.get(beds, 1)
        t.query(select(beds).where(beds.c.id == 1).with_for_update())
        assert not is_free(db, "FOR SHARE")
    with db.transaction() as t:
        t.query(select(beds).where(beds.c.ward == 1))
        t.query(select(beds).where(beds.c.ward == 1).with_for_update())
        assert not is_free(db, "FOR SHARE")
    with db.transaction() as t:
        t.update(beds, 1, level=2)
        assert not is_free(db, "FOR SHARE")


@pytest.mark.parametrize("count", [1, 50], ids=["one message", "several"])
def test_commit_that_waits_for_a_row_has_no_lock_on_its_table(there: Place, count: int) -> None:
    db = there.open()
    beds = beds_of(db, count)

    def work(t: adb.Transaction) -> None:
        for key in range(1, count + 1):
            t.get(beds, key)
        for key in range(1, count + 1):
            t.update(beds, key, level=7)

    def waiting(connection: Connection) -> list[str]:
        """Return the modes in which those that wait have locked the table."""
        found = connection.execute(
            text(
                "SELECT waits.pid, string_agg(has.mode, ' ') FROM pg_locks AS waits JOIN pg_locks "
                "AS has ON has.pid = waits.pid AND has.granted AND has.relation = "
                "'beds'::regclass AND has.locktype = 'relation' WHERE NOT waits.granted GROUP BY 1"
            )
        )
        return [row[1] for row in found]

    with db.connection() as connection, db.connection() as watch:
        connection.execute(text("SELECT 1 FROM beds WHERE id = 1 FOR SHARE"))
        run = in_thread(db.run, work)
        until(lambda: waiting(watch))
        assert "RowExclusiveLock" not in waiting(watch)[0]
        assert "RowShareLock" in waiting(watch)[0]
        connection.execute(text("LOCK TABLE beds IN SHARE MODE"))  # waits for no writer
        connection.rollback()
        run.result(PATIENCE_S)
    assert not {row.level for row in db.run(lambda t: t.query(select(beds)))} - {7}


def test_read_and_update_by_many_threads_loses_nothing(there: Place) -> None:
    db = there.open(threads=8)
    beds = beds_of(db)

    def work(t: adb.Transaction) -> None:
        for n in (1, 2):
            by_get(t, beds, n)

    def loop() -> None:
        for _ in range(20):
            db.run(work)

    for each in [in_thread(loop) for _ in range(6)]:
        each.result(PATIENCE_S)
    with db.transaction() as t:
        assert [row["level"] for row in t.get_many(beds, [1, 2]).values() if row] == [120, 120]


# -- the check of answers, in the message that writes and commits ---------------------------------


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


KEYS: dict[str, tuple[Any, list[Any]]] = {
    "integer": (Integer, [1, 2, 3]),
    "text": (String(20), ["it's", "100%s :x", '{"a\\b"}']),
    "uuid": (Uuid, [UUID(int=n) for n in range(3)]),
    "date": (Date, [date(2026, 1, n) for n in (1, 2, 3)]),
    "instant": (DateTime(timezone=True), [datetime(2026, 1, n, tzinfo=UTC) for n in (1, 2, 3)]),
    "number": (Numeric(9, 2), [Decimal("1.5"), Decimal("2.25"), Decimal(3)]),
    "member": (Enum(Colour), list(Colour)),
    "truth": (Boolean, [True, False]),
    "bytes": (LargeBinary, [b"\x00a", b"%s", b"\\"]),
}


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("is_double", [False, True], ids=["one column", "two columns"])
@pytest.mark.parametrize("lazily", [False, True], ids=["one message", "several"])
def test_answer_is_checked_whatever_the_keys_look_like(
    there: Place, kind: str, is_double: bool, lazily: bool
) -> None:
    type_, values = KEYS[kind]
    db = there.open()
    more = [Column("part", Integer, primary_key=True, autoincrement=False)] if is_double else []
    table = Table(
        "k: %s",
        db.metadata,
        Column("key", type_, primary_key=True, autoincrement=False),
        *more,
        Column("of%", Integer, key="of%"),
        Column("n", Integer),
    )
    db.create_all()
    part = {"part": 7} if is_double else {}
    of = table.c["of%"]

    def key_of(value: Any) -> Any:
        return (value, 7) if is_double else value

    with db.connection() as connection:
        connection.execute(insert(table), [{"key": v, **part, "of%": 1} for v in values[:-1]])
        connection.commit()
    tries: list[int] = []

    def work(t: adb.Transaction, is_changed: bool) -> int:
        node_of(t).hierarchy.run.lazily = lazily
        found = t.query(select(table).where(of == 1))
        tries.append(len(found))
        if is_changed and len(tries) == 1:
            with db.connection() as connection:
                connection.execute(insert(table), {"key": values[-1], **part, "of%": 1})
                connection.commit()
        for row in found:
            t.update(table, key_of(row.key), n=len(found))
        return len(found)

    count = len(values) - 1
    assert (db.run(work, False), tries) == (count, [count])
    tries.clear()
    assert (db.run(work, True), tries) == (count + 1, [count, count + 1])
    with db.connection() as connection:
        assert {row.n for row in connection.execute(select(table))} == {count + 1}


def test_refused_answer_writes_nothing_and_the_connection_is_used_again(there: Place) -> None:
    db = there.open(threads=1)
    beds = beds_of(db)
    drivers: list[Any] = []
    with pytest.raises(SerializationConflict, match="table beds"), db.transaction() as t:
        t.query(select(beds).where(beds.c.ward == 1))
        plain(db, "INSERT INTO beds VALUES (20, 1, 0)")
        t.update(beds, 1, level=9)
        drivers.append(node_of(t).hierarchy.session._driver)
    with db.transaction() as t:
        rows = t.query(select(beds).where(beds.c.ward == 1))
        assert sorted(rows) == [(1, 1, 0), (20, 1, 0)]
        drivers.append(node_of(t).hierarchy.session._driver)
    assert drivers[0] is drivers[1]


def test_row_that_another_program_has_locked_is_waited_for_and_not_left_out(there: Place) -> None:
    db = there.open()
    beds = beds_of(db)
    with db.connection() as connection:
        connection.execute(text("UPDATE beds SET ward = 5"))
        connection.commit()
        connection.execute(text("UPDATE beds SET level = 3 WHERE id = 1"))
        connection.execute(text("UPDATE beds SET ward = 6 WHERE id = 2"))
        connection.execute(text("UPDATE beds SET ward = NULL WHERE id = 3"))
        asked = in_thread(db.run, lambda t: t.query(select(beds).where(beds.c.ward == 5)))
        with db.connection() as watch:
            until(
                lambda: watch.execute(
                    text("SELECT count(*) FROM pg_locks WHERE NOT granted")
                ).scalar_one()
            )
        connection.commit()
    assert sorted(asked.result(PATIENCE_S)) == [(1, 5, 3), (4, 5, 0)]


@pytest.mark.parametrize("to_write", [False, True])
def test_rows_of_a_predicate_are_locked_in_the_order_of_their_keys(
    there: Place, to_write: bool
) -> None:
    db = there.open()
    beds = beds_of(db)
    statement = select(beds).where(beds.c.ward == 5)
    statement = statement.with_for_update() if to_write else statement

    def lock(connection: Connection, key: int) -> None:
        connection.execute(text(f"SELECT 1 FROM beds WHERE id = {key} FOR UPDATE NOWAIT"))

    with db.connection() as connection, db.connection() as watch:
        connection.execute(text("UPDATE beds SET ward = 5"))
        connection.commit()
        lock(connection, 2)
        asked = in_thread(db.run, lambda t: t.query(statement))
        until(
            lambda: watch.execute(
                text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            ).scalar_one()
        )
        lock(connection, 3)  # which the one that waits has not locked, as it would come later
        with pytest.raises(OperationalError):
            lock(watch, 1)
        watch.rollback()
        connection.commit()
    assert sorted(asked.result(PATIENCE_S)) == [(n, 5, 0) for n in (1, 2, 3, 4)]
    assert "retries_after_deadlocks" not in db.admin.counters()
