"""A role that may not call functions which PUBLIC usually may call.

Only what needs these functions fails.
"""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table, create_engine, make_url, text

import activedb as adb
from activedb.errors import ConfigurationError, ConnectionLost
from activedb.store.server._roles import LOG, NOTIFY, OUTCOMES
from tests.databases import in_thread
from tests.histories.processes import Server
from tests.patience import PATIENCE_S
from tests.servers import fresh_database
from tests.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Database, Transaction

LOOKS = (
    "pg_control_checkpoint()",
    "pg_walfile_name(pg_lsn)",
    "pg_current_wal_lsn()",
    "pg_blocking_pids(integer)",
)
"""Functions called besides: after a crash, and for deadlocks that cross processes."""


class Hardened:
    """A database of which PUBLIC may not call some functions, and a role that owns its schema."""

    def __init__(self, admin_url: str):
        self.admin_url = admin_url
        self.role = f"hardened_{secrets.token_hex(4)}"
        password = secrets.token_hex(8)
        database = make_url(admin_url).database
        Server(admin_url).run(f"CREATE ROLE {self.role} LOGIN PASSWORD '{password}'")
        Server(admin_url).run(f'GRANT CREATE ON DATABASE "{database}" TO {self.role}')
        url = make_url(admin_url).set(username=self.role, password=password)
        self.url = url.render_as_string(hide_password=False)

    def revoke(self, functions: Any) -> None:
        for name in functions:
            Server(self.admin_url).run(f"REVOKE EXECUTE ON FUNCTION {name} FROM PUBLIC")

    def close(self) -> None:
        Server(self.admin_url).run(f"DROP OWNED BY {self.role} CASCADE")
        Server(self.admin_url).run(f"DROP ROLE {self.role}")


@pytest.fixture
def hardened(plain_postgres_url: str) -> Iterator[Hardened]:
    with fresh_database(plain_postgres_url) as url, contextlib.closing(Hardened(url)) as made:
        yield made


def rows_of(db: Database) -> Table:
    table = Table(
        "rows",
        db.metadata,
        Column("id", Integer, primary_key=True),
        Column("n", Integer, nullable=False),
    )
    db.create_all()
    return table


def check_writes(db: Database, table: Table) -> None:
    """Write by key, by the set, at absent keys, by rules of each durable mode, by workers."""
    log = Table("log", db.metadata, Column("line", Integer, primary_key=True))
    db.create_all()

    @db.rule(on=adb.inserted(table), coupling="sequential")
    def note(t: Transaction, o: adb.Occurrence) -> None:
        t.insert(log, {"line": o.new["id"]})

    def work(t: Transaction) -> None:
        for key in range(100):
            assert t.get(table, key) is None
            t.insert(table, {"id": key, "n": 0})

    db.run(work)
    db.run(lambda t: t.update(table, 1, n=5))
    db.run(lambda t: t.delete(table, 2))
    db.wait_idle()
    assert db.run(lambda t: len(t.query(text("SELECT line FROM log")))) == 100
    assert not db.dead_letters.list()


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*LOG, *OUTCOMES, *NOTIFY, *LOOKS}))
@pytest.mark.parametrize("firings", ["here", "queue"])
def test_role_without_a_function_writes(hardened: Hardened, name: str, firings: str) -> None:
    hardened.revoke([name])
    with adb.connect(hardened.url, db_schema="mine", firings=firings) as db:
        table = rows_of(db)
        if firings == "here":
            check_writes(db, table)
            return

        @db.rule(on=adb.inserted(table), coupling="sequential")
        def note(t: Transaction, o: adb.Occurrence) -> None:
            t.update(table, o.new["id"], n=1)

        db.run(lambda t: t.insert(table, {"id": 1, "n": 0}))
        assert len(db._launcher.journal.pending()) == 1


def test_role_without_all_of_them_writes(hardened: Hardened) -> None:
    hardened.revoke([*LOG, *OUTCOMES, *NOTIFY, *LOOKS])
    with adb.connect(hardened.url, db_schema="mine") as db:
        check_writes(db, rows_of(db))


@pytest.mark.long
@pytest.mark.parametrize("functions", [LOG, OUTCOMES])
@pytest.mark.parametrize("when", ["before", "after"])
def test_commit_cut_off_is_never_told_wrongly(
    hardened: Hardened, functions: frozenset[str], when: Any
) -> None:
    """A commit that is cut off is never reported wrongly.

    A server that has not crashed knows the outcome even without the log's place; otherwise it is
    unknown.
    """
    hardened.revoke(functions)
    with (
        contextlib.closing(Wire(hardened.url)) as wire,
        adb.connect(wire.url, db_schema="mine", retries_max=0) as db,
    ):
        table = rows_of(db)
        db.run(lambda t: t.insert(table, {"id": 1, "n": 0}))

        def cut(point: str) -> None:
            if point == "before commit":
                wire.cut_commit(when)

        db._store.trigger = cut
        error = in_thread(db.run, lambda t: t.insert(table, {"id": 2, "n": 0})).exception(
            PATIENCE_S
        )
        db._store.trigger = lambda point: None
        assert wire.cuts == 1
        is_there = db.run(lambda t: t.get(table, 2)) is not None
        assert is_there is (when == "after")
        if functions == LOG and when == "after":
            assert error is None
        else:
            assert isinstance(error, ConnectionLost)
            assert error.committed is (None if functions == OUTCOMES else False)


def test_callers_connection_is_refused_where_its_outcome_cannot_be_known(
    hardened: Hardened,
) -> None:
    hardened.revoke(OUTCOMES)
    engine = create_engine(hardened.url, connect_args={"options": "-c search_path=mine"})
    with (
        adb.connect(hardened.url, db_schema="mine") as db,
        engine.connect() as connection,
        pytest.raises(ConfigurationError, match="GRANT EXECUTE"),
        db.transaction(connection=connection),
    ):
        pass
    engine.dispose()


@pytest.mark.parametrize("name", ["pg_advisory_xact_lock(bigint)", "pg_try_advisory_lock(bigint)"])
def test_role_that_may_lock_nothing_is_refused(hardened: Hardened, name: str) -> None:
    hardened.revoke([name])
    with pytest.raises(ConfigurationError, match="GRANT EXECUTE"):
        adb.connect(hardened.url, db_schema="mine").close()
