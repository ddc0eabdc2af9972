"""Prepared statements of flat transactions, and the connections that are kept for the next ones."""

from __future__ import annotations

import math
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Numeric, Table, Text, create_engine, text

import activedb as adb
from activedb.errors import InvalidRow, SerializationConflict
from activedb.store.flush import Change
from activedb.store.server import _prepared
from activedb.store.session._flat import Use
from activedb.store.sql import TableSpec
from activedb.transactions._run import Run
from tests.databases import PATIENCE_S, in_thread, until
from tests.store.flushing import opened

if TYPE_CHECKING:
    from activedb.store.session import Session, Store

GROWN = 100_000


def numbered(store: Store) -> TableSpec:
    """A table with one row, which the server knows to be small."""
    table = Table(
        "numbered",
        store.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer),
        Column("note", Text),
    )
    store.create_all()
    with store.short() as connection:
        connection.execute(table.insert(), {"id": 1, "n": 0, "note": "first"})
    with store.short() as connection:
        connection.exec_driver_sql("ANALYZE numbered")
    return TableSpec(table)


def scans(session: Session) -> tuple[int, int]:
    """Scans of the whole table, and of its indexes, in this transaction so far."""
    with Use(session, "look at the statistics") as connection:
        return tuple(
            connection.exec_driver_sql(
                "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables "
                "WHERE relid = 'numbered'::regclass"
            ).one()
        )


def test_table_that_has_grown_is_looked_up_by_its_index_on_the_same_connection(
    server: Store,
) -> None:
    spec = numbered(server)
    session = server.session()

    def look() -> tuple[int, int]:
        before = scans(session)
        assert session.lock_rows(spec, [(1,)], exclusive=True)[1,] is not None
        after = scans(session)
        return after[0] - before[0], after[1] - before[1]

    try:
        for _ in range(20):
            whole, _ = look()
        assert whole == 1, "a table of one row is expected to be scanned"
        backend = session.backend
        with server.short() as connection:
            connection.exec_driver_sql(
                "INSERT INTO numbered SELECT n, n, 'more' FROM generate_series(2, %s) n", (GROWN,)
            )
        until(lambda: look() == (0, 1))
        assert [look() for _ in range(20)] == [(0, 1)] * 20
        assert session.backend == backend
    finally:
        session.close()


def test_update_of_a_row_uses_the_index_of_a_table_that_has_grown(server: Store) -> None:
    spec = numbered(server)
    row = spec.row((1, 0, "first"))
    session = server.session()
    try:

        def change() -> int:
            nonlocal row
            new = spec.changed(row, {"n": row["n"] + 1})
            before = scans(session)
            session.flush([Change(spec, (1,), row, new)], [(spec, {(1,): new})])
            row = new
            return scans(session)[0] - before[0]

        for _ in range(20):
            change()
        with server.short() as connection:
            connection.exec_driver_sql(
                "INSERT INTO numbered SELECT n, n, 'more' FROM generate_series(2, %s) n", (GROWN,)
            )
        until(lambda: change() == 0)
    finally:
        session.close()


def test_column_whose_type_changes_is_read_with_the_new_type(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(postgres_url) as store:
        spec = numbered(store)

        def read() -> Any:
            session = store.session()
            try:
                found = session.lock_rows(spec, [(1,)], exclusive=True)[1,]
                assert found is not None
                return found["n"]
            finally:
                session.close()

        with monkeypatch.context() as patch:
            # However slow the machine is: the plan is not dropped because of its age.
            patch.setattr(_prepared, "_AGE_S_MAX", math.inf)
            for _ in range(10):
                assert read() == 0
            with store.short() as connection:
                connection.exec_driver_sql("ALTER TABLE numbered ALTER n TYPE numeric(9, 2)")
            with pytest.raises(SerializationConflict, match="altered"):
                read()  # the next try finds what there is
        assert str(read()) == "0.00"


def test_error_inside_a_savepoint_leaves_the_prepared_statements_usable(server: Store) -> None:
    spec = numbered(server)
    session = server.session()
    try:
        for _ in range(3):
            with pytest.raises(InvalidRow), session.savepoint():
                session.lock_rows(spec, [(1,)], exclusive=True)
                new = spec.row((1, 1 << 40, "too long a number"))
                session.flush([Change(spec, (1,), None, new)], [(spec, {(1,): new})])
            assert session.lock_rows(spec, [(1,)], exclusive=True)[1,] is not None
    finally:
        session.close()


def test_values_that_types_prepare_come_back_as_they_were(postgres_url: str) -> None:
    with opened(postgres_url) as store:
        table = Table(
            "typed",
            store.metadata,
            Column("id", Numeric(6, 2), primary_key=True),
            Column("a %b", Text),
            Column("f", Numeric(8, 3, asdecimal=False)),
        )
        store.create_all()
        spec = TableSpec(table)
        row = spec.complete({"id": 1, "a %b": "100 %(x)s :y $1", "f": 0.125})
        key = spec.key_of(row)
        session = store.session()
        session.flush([Change(spec, key, None, row)], [(spec, {key: row})])
        session.commit()
        session = store.session()
        assert dict(session.lock_rows(spec, [key], exclusive=True)[key] or {}) == dict(row)
        session.close()


def test_more_transactions_than_connections_all_have_their_turn(database_url: str) -> None:
    with adb.connect(database_url, threads=1) as db:
        table = Table(
            "counted", db.metadata, Column("id", Integer, primary_key=True), Column("n", Integer)
        )
        db.create_all()
        crowd = 40  # more than three times the connections
        db.run(lambda t: [t.insert(table, {"id": key, "n": 0}) for key in range(crowd)])
        start = threading.Barrier(crowd)

        def one_more(t: adb.Transaction, key: int) -> None:
            row = t.get(table, key, for_update=True)
            assert row is not None
            t.update(table, key, n=row["n"] + 1)

        def work(key: int) -> None:
            start.wait()
            for _ in range(5):
                db.run(one_more, key)

        for worker in [in_thread(work, key) for key in range(crowd)]:
            worker.result(PATIENCE_S)
        with db.transaction() as t:
            rows = t.get_many(table, range(crowd))
        assert [row and row["n"] for row in rows.values()] == [5] * crowd


def test_closed_database_leaves_no_connection_open(database_url: str) -> None:
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    here = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = :kind"
    )
    with engine.connect() as connection:

        def others() -> Any:
            connection.rollback()  # the view is read once per transaction
            return connection.execute(here, {"kind": "client backend"}).scalar_one()

        with adb.connect(database_url) as db:
            open_one = db.transaction()
            table = Table("kept", db.metadata, Column("id", Integer, primary_key=True))
            db.create_all()
            db.run(lambda t: t.insert(table, {"id": 1}))
            with open_one as t:
                t.get(table, 1)
            assert others() > 0
        until(lambda: others() == 0)
    engine.dispose()


def test_names_of_transactions_are_unique_after_a_fork() -> None:
    names = [Run().name for _ in range(3)]
    assert len(set(names)) == 3
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sending, Run().name.encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(receiving, 100).decode()
    os.close(receiving)
    os.close(sending)
    mine = Run().name
    assert len(theirs) == len(mine)
    assert theirs[:20] != mine[:20]
    assert theirs not in names
