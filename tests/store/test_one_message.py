"""A few rows are written and committed in one message: what can go wrong inside of it."""

from __future__ import annotations

import itertools
import linecache
import math
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, Table, text

from activedb.errors import (
    ConnectionLost,
    ConstraintViolation,
    ForeignKeyViolation,
    InvalidRow,
    SerializationConflict,
    StatementCancelled,
)
from activedb.store.flush import Change
from activedb.store.server import _connections, _prepared
from activedb.store.sql import TableSpec
from tests.databases import PATIENCE_S, in_thread, until
from tests.scheduling.cutting import Line, cut_before, lines_of
from tests.store.flushing import is_asleep, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb.store.session import Session, Store
    from activedb.store.sql import Row


def counted(store: Store) -> TableSpec:
    """A table with one row, ``(1, 0)``."""
    table = Table(
        "counted",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer),
        Column("of", ForeignKey("counted.id", deferrable=True, initially="DEFERRED")),
    )
    store.create_all()
    with store.short() as connection:
        connection.execute(table.insert(), {"id": 1, "n": 0})
    return TableSpec(table)


@contextmanager
def session_of(store: Store) -> Iterator[Session]:
    session = store.session()
    try:
        yield session
    finally:
        session.close()


def locked(session: Session, spec: TableSpec) -> Row:
    row = session.lock_rows(spec, [(1,)], exclusive=True)[1,]
    assert row is not None
    return row


def commit(session: Session, spec: TableSpec, old: Row | None, new: Row | None) -> None:
    row = old or new
    assert row is not None
    key = spec.key_of(row)
    session.commit([Change(spec, key, old, new)], [(spec, {key: new})])


def counts(store: Store, spec: TableSpec) -> list[int]:
    return [row["n"] for row in rows_of(store, spec.table)]


SLOW = {
    "in the write": "CREATE TRIGGER slow BEFORE UPDATE ON counted",
    "in the commit": ("CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON counted INITIALLY DEFERRED"),
}


def make_slow(store: Store, part: str) -> None:
    """Let an update of the table take longer at the server than any test waits."""
    with store.short() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql "
            f"AS 'BEGIN PERFORM pg_sleep({2 * PATIENCE_S}); RETURN NEW; END'"
        )
        connection.exec_driver_sql(f"{SLOW[part]} FOR EACH ROW EXECUTE FUNCTION slow()")


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: plans are not dropped, and connections are not pinged."""
    monkeypatch.setattr(_prepared, "_AGE_S_MAX", math.inf)
    monkeypatch.setattr(_connections, "_IDLE_S_MAX", math.inf)


@pytest.mark.usefixtures("unhurried")
def test_row_that_is_locked_and_updated_takes_two_messages(server: Store) -> None:
    spec = counted(server)

    def change() -> None:
        with session_of(server) as session:
            row = locked(session, spec)
            commit(session, spec, row, spec.changed(row, {"n": row["n"] + 1}))

    change()
    with session_of(server) as session, tempfile.TemporaryFile() as trace:
        locked(session, spec)
        driver: Any = session._driver
        session.close()
        driver.pgconn.trace(trace.fileno())
        change()
        driver.pgconn.untrace()
        trace.seek(0)
        lines = [line.split(b"\t") for line in trace.read().splitlines()]
    sent = [fields[3].strip() for fields in lines if fields[1] == b"F"]
    assert [kind for kind in sent if kind in (b"Sync", b"Query")] == [b"Sync", b"Sync"]
    assert sent.count(b"Bind") == 4  # BEGIN, SELECT; UPDATE, COMMIT
    assert counts(server, spec) == [2]


def plain(store: Store, name: str) -> TableSpec:
    """A table without constraints, with one row, ``(1, 0)``."""
    table = Table(
        name, store.metadata, Column("id", Integer, primary_key=True), Column("n", Integer)
    )
    store.create_all()
    with store.short() as connection:
        connection.execute(table.insert(), {"id": 1, "n": 0})
    return TableSpec(table)


def commit_all(session: Session, *rows: tuple[TableSpec, Row | None, Row | None]) -> None:
    changes = []
    for spec, old, new in rows:
        row = old or new
        assert row is not None
        changes.append(Change(spec, spec.key_of(row), old, new))
    session.commit(changes, [(c.spec, {c.key: c.new}) for c in changes])


@pytest.mark.usefixtures("unhurried")
def test_rows_of_several_tables_are_written_and_committed_in_one_message(server: Store) -> None:
    one, other = plain(server, "one"), plain(server, "other")
    added = itertools.count(2)

    def change() -> None:
        key = next(added)
        with session_of(server) as session:
            row = locked(session, one)
            found = session.lock_rows(other, [(key,)], exclusive=True, guarding=True)
            assert found == {(key,): None}
            commit_all(
                session,
                (one, row, one.changed(row, {"n": row["n"] + 1})),
                (other, None, other.complete({"id": key, "n": 5})),
            )

    change()
    with session_of(server) as session, tempfile.TemporaryFile() as trace:
        locked(session, one)
        driver: Any = session._driver
        session.close()
        driver.pgconn.trace(trace.fileno())
        change()
        driver.pgconn.untrace()
        trace.seek(0)
        lines = [line.split(b"\t") for line in trace.read().splitlines()]
    sent = [fields[3].strip() for fields in lines if fields[1] == b"F"]
    assert [kind for kind in sent if kind in (b"Sync", b"Query")] == [b"Sync"] * 3
    assert sent.count(b"Bind") == 7  # BEGIN, SELECT; guard, SELECT; UPDATE, INSERT, COMMIT
    assert counts(server, one) == [2]
    assert counts(server, other) == [0, 5, 5]


@pytest.mark.parametrize("refused", ["one", "other"])
def test_row_refused_among_several_is_named_and_none_is_committed(
    server: Store, refused: str
) -> None:
    specs = {name: plain(server, name) for name in ("one", "other")}
    for n in (1 << 40, 7):
        rows = []
        with session_of(server) as session:
            for name, spec in specs.items():
                row = locked(session, spec)
                rows.append((spec, row, spec.changed(row, {"n": n if name == refused else 3})))
            if n == 7:
                commit_all(session, *rows)  # on the connection on which it was refused
            else:
                with pytest.raises(InvalidRow, match=f"update {refused}:"):
                    commit_all(session, *rows)
    assert {name: counts(server, spec) for name, spec in specs.items()} == {
        name: [7 if name == refused else 3] for name in specs
    }


def test_row_inserted_first_by_somebody_else_among_several_is_a_conflict(server: Store) -> None:
    one, other = plain(server, "one"), plain(server, "other")
    with session_of(server) as session:
        row = locked(session, one)
        with pytest.raises(SerializationConflict, match=r"other.*first"):
            commit_all(
                session,
                (one, row, one.changed(row, {"n": 1})),
                (other, None, other.complete({"id": 1, "n": 5})),
            )
    assert counts(server, one) == counts(server, other) == [0]


def test_rows_refused_by_the_commit_of_their_message_are_not_committed(server: Store) -> None:
    one, other = plain(server, "one"), plain(server, "other")
    with server.short() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE check_violation USING MESSAGE = 'odd', TABLE = 'one'; END$$"
        )
        connection.exec_driver_sql(
            "CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON one INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    with session_of(server) as session:
        rows = [(spec, locked(session, spec)) for spec in (one, other)]
        with pytest.raises(ConstraintViolation, match="odd") as caught:
            commit_all(session, *((spec, row, spec.changed(row, {"n": 1})) for spec, row in rows))
        assert caught.value.table == "one"
    with server.short() as connection:
        connection.exec_driver_sql("DROP FUNCTION refuse CASCADE")
    assert counts(server, one) == counts(server, other) == [0]


@pytest.mark.parametrize("point", ["before flush", "inside flush", "before commit"])
def test_message_that_was_not_sent_leaves_nothing_behind(server: Store, point: str) -> None:
    one, other = plain(server, "one"), plain(server, "other")
    points: list[str] = []

    def stop(reached: str) -> None:
        points.append(reached)
        if reached == point:
            raise KeyboardInterrupt

    for is_stopped in (True, False):
        with session_of(server) as session:
            rows = [(spec, locked(session, spec)) for spec in (one, other)]
            new = [(spec, row, spec.changed(row, {"n": 1})) for spec, row in rows]
            points.clear()
            server.trigger = stop if is_stopped else points.append
            if is_stopped:
                with pytest.raises(KeyboardInterrupt):
                    commit_all(session, *new)
                assert points[-1] == point
                assert counts(server, one) == counts(server, other) == [0]
            else:
                commit_all(session, *new)
                assert points == ["before flush", "inside flush", "before commit", "after commit"]
    server.trigger = lambda point: None
    assert counts(server, one) == counts(server, other) == [1]


def test_row_refused_when_it_is_written_is_not_committed(server: Store) -> None:
    spec = counted(server)
    with session_of(server) as session:
        row = locked(session, spec)
        new = spec.changed(row, {"n": 1 << 40})
        with pytest.raises(InvalidRow, match="counted"):
            commit(session, spec, row, new)
    with session_of(server) as session:  # on the same connection
        row = locked(session, spec)
        commit(session, spec, row, spec.changed(row, {"n": 7}))
    assert counts(server, spec) == [7]


def test_row_refused_when_it_is_committed_is_named(server: Store) -> None:
    spec = counted(server)
    with session_of(server) as session:
        row = locked(session, spec)
        with pytest.raises(ForeignKeyViolation) as caught:
            commit(session, spec, row, spec.changed(row, {"n": 1, "of": 5}))
    assert (caught.value.table, caught.value.key) == ("counted", {"of": 5})
    with session_of(server) as session:
        row = locked(session, spec)
        commit(session, spec, row, spec.changed(row, {"n": 7}))
    assert counts(server, spec) == [7]


def test_row_that_somebody_inserted_first_is_a_conflict(server: Store) -> None:
    spec = counted(server)
    with session_of(server) as session:
        new = spec.complete({"id": 1, "n": 5})
        with pytest.raises(SerializationConflict, match="first"):
            commit(session, spec, None, new)
    assert counts(server, spec) == [0]


@pytest.mark.parametrize("number_is_known", [True, False])
def test_connection_that_is_lost_before_the_message_has_committed_nothing(
    server: Store, number_is_known: bool
) -> None:
    spec = counted(server)
    with session_of(server) as session:
        if number_is_known:
            locked(session, spec)
        else:
            session.lock_rows(spec, [(2,)], exclusive=True)  # there is none
        assert (session._number is not None) is number_is_known
        with server.short() as other:
            other.execute(
                text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": session.backend}
            )
        with pytest.raises(ConnectionLost) as caught:
            commit(session, spec, None, spec.complete({"id": 2, "n": 5}))
        assert caught.value.committed is False
    assert counts(server, spec) == [0]


@pytest.mark.parametrize("part", SLOW)
@pytest.mark.parametrize(
    ("how", "expected"),
    [("pg_terminate_backend", ConnectionLost), ("pg_cancel_backend", StatementCancelled)],
)
def test_message_that_is_cut_off_has_committed_nothing(
    server: Store, part: str, how: str, expected: type[Exception]
) -> None:
    spec = counted(server)
    make_slow(server, part)
    with session_of(server) as session:
        row = locked(session, spec)
        committing = in_thread(commit, session, spec, row, spec.changed(row, {"n": 1}))
        backend = session.backend
        until(lambda: is_asleep(server, backend))
        with server.short() as other:
            other.execute(text(f"SELECT {how}(:pid)"), {"pid": backend})
        with pytest.raises(expected) as caught:
            committing.result(PATIENCE_S)
    if isinstance(caught.value, ConnectionLost):
        assert caught.value.committed is False
    with server.short() as connection:
        connection.exec_driver_sql("DROP FUNCTION slow CASCADE")
    assert counts(server, spec) == [0]
    with session_of(server) as session:
        row = locked(session, spec)
        commit(session, spec, row, spec.changed(row, {"n": 7}))
    assert counts(server, spec) == [7]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("pg_terminate_backend", ConnectionLost), ("pg_cancel_backend", StatementCancelled)],
)
def test_message_of_several_rows_that_is_cut_off_has_committed_nothing(
    server: Store, how: str, expected: type[Exception]
) -> None:
    # Written in the order of the names: the second one is slow.
    first, second = plain(server, "a"), plain(server, "counted")
    make_slow(server, "in the write")
    with session_of(server) as session:
        rows = [(spec, locked(session, spec)) for spec in (first, second)]
        new = [(spec, row, spec.changed(row, {"n": 1})) for spec, row in rows]
        committing = in_thread(commit_all, session, *new)
        backend = session.backend
        until(lambda: is_asleep(server, backend))
        with server.short() as other:
            other.execute(text(f"SELECT {how}(:pid)"), {"pid": backend})
        with pytest.raises(expected) as caught:
            committing.result(PATIENCE_S)
    if isinstance(caught.value, ConnectionLost):
        assert caught.value.committed is False
    with server.short() as connection:
        connection.exec_driver_sql("DROP FUNCTION slow CASCADE")
    assert counts(server, first) == counts(server, second) == [0]


def test_interrupt_during_the_message_leaves_nothing_behind(
    server: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it comes, from the first line until the server is at work."""
    spec = counted(server)
    make_slow(server, "in the write")
    lines: list[Line] = []

    def interrupted(line: Line | None, *, is_sent: bool) -> None:
        """Interrupt a commit before a line, or else when the server is at work."""
        with session_of(server) as session, monkeypatch.context() as patch:
            row = locked(session, spec)
            backend = session.backend

            def wait_for_work(watch: object = None) -> None:
                until(lambda: is_asleep(server, backend))

            def end(watch: object) -> bool:
                wait_for_work()
                raise KeyboardInterrupt

            wait = wait_for_work if is_sent else lambda: None
            patch.setattr(_prepared.SpinWait, "sees_answer", end)
            cut = lines_of() if line is None else cut_before(line, 1, wait)
            with pytest.raises(KeyboardInterrupt), cut as met:
                commit(session, spec, row, spec.changed(row, {"n": 1}))
            if met is not None:
                lines.extend(each for each in met if each[0] == _prepared.__file__)
        until(lambda: not is_asleep(server, backend))

    interrupted(None, is_sent=True)
    is_sent = False
    for line in lines:  # in the order in which they run
        interrupted(line, is_sent=is_sent)
        if is_sent:
            break
        is_sent = "pipeline_sync" in linecache.getline(*line)
    assert is_sent
    with server.short() as connection:
        connection.exec_driver_sql("DROP FUNCTION slow CASCADE")
    with session_of(server) as session:
        row = locked(session, spec)
        commit(session, spec, row, spec.changed(row, {"n": 7}))
    assert counts(server, spec) == [7]
