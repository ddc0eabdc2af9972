"""Connections by way of a real pgbouncer.

Settings hold and deadlocks are seen, or an error says that they cannot be.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table, make_url, text

import activedb as adb
from activedb.errors import InvalidURL, LockTimeout, UnsuitablePooler
from activedb.store.server import scratch_schema
from activedb.store.session._flat import Use
from tests.databases import in_thread, until, waits_at_the_server
from tests.histories.processes import Server
from tests.nodes import node_of
from tests.patience import PATIENCE_S
from tests.poolers import pgbouncer
from tests.servers import fresh_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Database, Transaction

IGNORED = {"ignore_startup_parameters": "options,extra_float_digits"}
WAYS = {"defaults": {}, "options ignored": IGNORED}


@pytest.fixture
def tcp_url(plain_postgres_url: str) -> Iterator[str]:
    """An empty database of the test's own on a server that listens on TCP."""
    with fresh_database(plain_postgres_url) as url:
        yield url


@pytest.fixture(params=WAYS)
def pooled_url(request: pytest.FixtureRequest, tcp_url: str) -> Iterator[str]:
    """The same database behind a pgbouncer in session mode, and an inconvenient default there."""
    name = make_url(tcp_url).database
    Server(tcp_url).run(
        f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'"
    )
    with pgbouncer(tcp_url, **WAYS[request.param]) as url:
        yield url


def rows_of(db: Database) -> Table:
    """A table with three rows."""
    table = Table(
        "numbers",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer, nullable=False),
    )
    db.create_all()
    with db.transaction() as t:
        for key in (1, 2, 3):
            if t.get(table, key) is None:
                t.insert(table, {"id": key, "n": 0})
    return table


def shown(db: Database, name: str) -> str:
    with db._store.short() as connection:
        return str(connection.scalar(text(f"SHOW {name}")))


def test_settings_behind_a_pooler_hold_on_each_connection(tcp_url: str, pooled_url: str) -> None:
    with adb.connect(pooled_url, db_schema="mine", lock_timeout_ms=1_234) as db:
        rows_of(db)
        session = db._store.session()
        for name, value in (
            ("search_path", "mine"),
            ("lock_timeout", "1234ms"),
            ("timezone", "UTC"),
            ("idle_session_timeout", "0"),
            ("transaction_isolation", "read committed"),
        ):
            assert shown(db, name) == value, name
            with Use(session, "look") as flat:
                assert flat.scalar(text(f"SHOW {name}")) == value, name
        session.close()
    schemas = "SELECT schemaname FROM pg_tables WHERE tablename IN ('numbers', 'activedb_ledger')"
    found = Server(tcp_url).look(lambda c: set(c.scalars(text(schemas))))
    assert found == {"mine"}


def test_settings_in_a_urls_options_hold_behind_a_pooler(pooled_url: str) -> None:
    with scratch_schema(pooled_url) as url, adb.connect(url) as db:
        assert db._store.schema.startswith("activedb_")
        assert shown(db, "synchronous_commit") == "off"


def test_lock_timeout_behind_a_pooler_ends_a_wait(pooled_url: str) -> None:
    """The server alone ends the wait: the session that keeps the row does not end."""
    with adb.connect(pooled_url, lock_timeout_ms=300, retries_max=0) as db:
        table = rows_of(db)
        with db.connection() as keeper, keeper.begin():
            keeper.execute(text("SELECT FROM numbers WHERE id = 1 FOR UPDATE"))
            waiting = in_thread(db.run, lambda t: t.update(table, 1, n=1))
            with pytest.raises(LockTimeout):
                waiting.result(PATIENCE_S)


def test_write_skew_of_two_processes_behind_a_pooler_is_refused(pooled_url: str) -> None:
    """Both read both rows before either writes: without SERIALIZABLE both would commit."""
    databases = [adb.connect(pooled_url, isolation="serializable") for _ in range(2)]
    both = threading.Barrier(2, timeout=PATIENCE_S)
    tables = [rows_of(db) for db in databases]
    tries = [0, 0]

    def work(t: Transaction, at: int) -> None:
        tries[at] += 1
        seen = [(t.get(tables[at], key) or {})["n"] for key in (1, 2)]
        if tries[at] == 1:
            both.wait()
        if sum(seen) == 0:
            t.update(tables[at], at + 1, n=1)

    ends = [in_thread(databases[at].run, work, at) for at in range(2)]
    for end in ends:
        end.result(PATIENCE_S)
    with databases[0].transaction() as t:
        assert sum((t.get(tables[0], key) or {})["n"] for key in (1, 2)) == 1
    first, second = sorted(tries)
    assert first == 1 < second  # once more if it begins again before the other's commit is seen
    for db in databases:
        db.close()


def test_deadlock_of_two_processes_behind_a_pooler_is_found(pooled_url: str) -> None:
    """One wait is local, so that the server sees no cycle; nothing else would end it in time.

    What each waits for is told by the numbers of the server's processes: not by a pooler's.
    """
    minutes: dict[str, Any] = {"lock_timeout_ms": 600_000}
    with adb.connect(pooled_url, **minutes) as one, adb.connect(pooled_url, **minutes) as two:
        tables = {db: rows_of(db) for db in (one, two)}
        held: set[int] = set()

        def swap(t: Transaction, db: Database, key: int, other: int) -> None:
            t.update(tables[db], key, n=key)
            held.add(key)
            until(lambda: len(held) == 3)
            t.update(tables[db], other, n=key)

        ends = [
            in_thread(db.run, swap, db, key, other)
            for db, key, other in ((one, 1, 3), (one, 3, 2), (two, 2, 1))
        ]
        for end in ends:
            end.result(PATIENCE_S)
        found = sum(db.admin.counters().get("deadlocks_crossing", 0) for db in (one, two))
        assert found >= 1


def test_server_process_behind_a_pooler_is_the_one_the_server_knows(pooled_url: str) -> None:
    with adb.connect(pooled_url) as db:
        table = rows_of(db)
        number = text("SELECT pg_backend_pid()")
        with db.transaction() as t:
            t.update(table, 1, n=1)
            session = node_of(t).hierarchy.session
            with Use(session, "look") as flat:
                assert session.backend == flat.scalar(number)
        with db.connection() as connection, db.transaction(connection=connection) as t:
            t.update(table, 1, n=2)
            assert node_of(t).hierarchy.session.backend == connection.scalar(number)


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("round_robin", ["0", "1"])
def test_pooler_that_shares_sessions_is_refused(tcp_url: str, mode: str, round_robin: str) -> None:
    with (
        pgbouncer(tcp_url, pool_mode=mode, server_round_robin=round_robin, **IGNORED) as url,
        pytest.raises(UnsuitablePooler, match="pool_mode = session"),
    ):
        adb.connect(url).close()


def test_pooler_that_shares_many_sessions_is_refused(tcp_url: str) -> None:
    """However many it has open and others use."""
    for round_robin in ("0", "1"):
        with (
            pgbouncer(tcp_url, pool_mode="transaction", server_round_robin=round_robin) as url,
            contextlib.ExitStack() as stack,
        ):
            others = []
            for _ in range(5):
                others.append(stack.enter_context(opened(url)))
            for other in others:
                other.execute("SELECT pg_backend_pid()")  # each has one of its own now
            for other in others:
                other.rollback()
            with pytest.raises(UnsuitablePooler):
                adb.connect(url).close()


@contextlib.contextmanager
def opened(url: str) -> Iterator[Any]:
    """A plain connection through the pooler."""
    import psycopg

    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as connection:
        yield connection


def test_options_that_the_server_does_not_know_are_told(tcp_url: str) -> None:
    url = make_url(tcp_url).update_query_dict({"options": "-c no_such_setting=1"})
    with pytest.raises(InvalidURL, match="no_such_setting"):
        adb.connect(url.render_as_string(hide_password=False)).close()


def test_sessions_through_a_pooler_do_not_outlive_their_users(pooled_url: str) -> None:
    """The rows of one are there for the next, with the same settings."""
    for expected in (1, 2, 3):
        with adb.connect(pooled_url, db_schema="mine") as db:
            assert db.run(counted_up, rows_of(db)) == expected
            assert not waits_at_the_server(db)


def counted_up(t: Transaction, table: Table) -> int:
    row = t.get(table, 1, for_update=True)
    assert row is not None
    t.update(table, 1, n=row["n"] + 1)
    return int(row["n"]) + 1
