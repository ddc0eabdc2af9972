"""The schema of activedb's own tables is the sum of its migrations."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, inspect, text

import activedb as adb
from activedb.errors import ConfigurationError
from activedb.store.server import _migrations
from activedb.store.system import system
from tests.databases import in_thread, until
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from sqlalchemy import Engine


def described(engine: Engine) -> dict[str, object]:
    """Tables, columns, keys, indexes and constraints as the server knows them."""
    look = inspect(engine)
    return {
        name: (
            [
                (c["name"], str(c["type"]), c["nullable"], c["default"])
                for c in look.get_columns(name)
            ],
            look.get_pk_constraint(name)["constrained_columns"],
            sorted((str(i["name"]), tuple(i["column_names"])) for i in look.get_indexes(name)),
            sorted(
                (str(u["name"]), tuple(u["column_names"]))
                for u in look.get_unique_constraints(name)
            ),
            look.get_foreign_keys(name),
            look.get_check_constraints(name),
        )
        for name in look.get_table_names()
        if name != "activedb_version"
    }


@pytest.mark.long
def test_schema_equals_the_sum_of_the_migrations(postgres_url: str) -> None:
    from tests.servers import fresh_database

    with fresh_database(postgres_url) as migrated, fresh_database(postgres_url) as declared:
        adb.connect(migrated).close()
        one, other = create_engine(migrated), create_engine(declared)
        with other.begin() as connection:
            system.create_all(connection)
        assert described(one) == described(other)
        assert sorted(described(one)) == sorted(system.tables)
        with one.connect() as connection:
            context = MigrationContext.configure(
                connection, opts={"version_table": "activedb_version", "compare_type": True}
            )
            assert compare_metadata(context, system) == []
        one.dispose()
        other.dispose()


OF_0001 = (
    "INSERT INTO activedb_ledger (query_id, batch_id, part, stream, sequence, complete, events, "
    "late, dead) VALUES ('q', 1, 0, 's', 1, true, 3, 1, 1)",
    "INSERT INTO activedb_stream_events VALUES ('s', 5, 1, 0, 'e', 'EXIT', '{\"n\": 1}')",
    "INSERT INTO activedb_late_events VALUES ('s', 'q', 1, 0, 4, 'f', 'EXIT', '{}', 'late')",
    "INSERT INTO activedb_dead_letters VALUES ('r', 'i', 'rule', '{}', 'ValueError', 'no')",
    "INSERT INTO activedb_pending_firings VALUES ('f', 'r', 'rule', '{}', false, false)",
)
"""A row in each table of the first release."""


OF_0002 = (
    *OF_0001,
    "INSERT INTO activedb_owned_tables (name, epoch, owner) VALUES ('accounts', 3, 'me')",
)
"""Rows in each table of the first and of the next revision."""


OF_0007 = (
    *OF_0002,
    "INSERT INTO activedb_followers (slot, lsn) VALUES ('s', 4)",
    "INSERT INTO activedb_rules VALUES "
    "('r', 1, true, 'immediate', 2, 'rule', 'EXIT', 'f', now(), NULL)",
    "INSERT INTO activedb_detector_states VALUES ('r', 's', 0, 'f', '{}')",
    "INSERT INTO activedb_partials VALUES (1, 'r', 5, 'f', 6, '{}')",
    "INSERT INTO activedb_producers VALUES ('s', 'p', 1, '{}')",
)
"""Rows in each table up to the revision before the newest."""


@pytest.mark.parametrize(
    ("revision", "rows"), [("0001", OF_0001), ("0002", OF_0002), ("0007", OF_0007)]
)
def test_upgrade_from_a_revision_before_keeps_its_rows(
    database_url: str, revision: str, rows: tuple[str, ...]
) -> None:
    engine = create_engine(database_url)
    config = Config()
    config.set_main_option("script_location", str(_migrations._folder()))
    config.attributes["version_table"] = "activedb_version"
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for statement in rows:
            connection.exec_driver_sql(statement)
        tables = MetaData()
        tables.reflect(connection)
        before = {t.name: connection.execute(t.select()).all() for t in tables.sorted_tables}
    assert all(len(found) == 1 for found in before.values())
    assert len(before) == len(rows) + 1  # the version table
    adb.connect(database_url).close()
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": "activedb_version"})
        assert (
            context.get_current_revision() == ScriptDirectory.from_config(config).get_current_head()
        )
        assert compare_metadata(context, system) == []
        for table in tables.sorted_tables:
            if table.name != "activedb_version":
                assert connection.execute(table.select()).all() == before[table.name]
    engine.dispose()


def test_migrations_leave_the_users_tables_alone(database_url: str) -> None:
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE mine (id int PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO mine VALUES (1)")
    adb.connect(database_url).close()
    adb.connect(database_url).close()
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT id FROM mine").all() == [(1,)]
    reflected = MetaData()
    reflected.reflect(engine)
    engine.dispose()
    assert set(reflected.tables) == {*system.tables, "mine", "activedb_version"}


def _connect(url: str) -> None:
    adb.connect(url).close()


@pytest.mark.long
def test_migrations_of_several_processes_at_once_do_not_collide(database_url: str) -> None:
    processes = multiprocessing.get_context("spawn")
    with processes.Pool(3) as pool:
        pool.map(_connect, [database_url] * 6, chunksize=1)
    engine = create_engine(database_url)
    names = inspect(engine).get_table_names()
    engine.dispose()
    assert set(names) == {*system.tables, "activedb_version"}


def test_migration_waits_for_another_one_for_longer_than_for_a_lock(database_url: str) -> None:
    """Other migrations may take long; the limit concerns the locks of tables."""
    engine = create_engine(database_url)
    waits_long = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > interval '200 ms'"
    )
    with engine.begin() as other:
        other.execute(text("SELECT pg_advisory_xact_lock(:latch)"), {"latch": _migrations._LATCH})
        migrating = in_thread(lambda: adb.connect(database_url, lock_timeout_ms=20))
        # One transaction would see one state.
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as look:
            until(lambda: migrating.done() or look.scalar(waits_long))
        assert not migrating.done()
    with migrating.result(PATIENCE_S) as db:
        assert db.dead_letters.list() == []
    engine.dispose()


def test_files_of_migrations_begin_with_their_revisions() -> None:
    config = Config()
    config.set_main_option("script_location", str(_migrations._folder()))
    for script in ScriptDirectory.from_config(config).walk_revisions():
        assert Path(script.path).name.startswith(f"{script.revision}_")


def test_tables_of_a_newer_activedb_are_refused(database_url: str) -> None:
    adb.connect(database_url).close()
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE activedb_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(ConfigurationError, match=r"are of version 9999, .* up to \d{4}: install"):
        adb.connect(database_url)
