"""The least rights: one role owns and migrates, one runs rules and can do no more."""

from __future__ import annotations

import operator
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy import Column, Integer, String, Table, create_engine, select, text, update

import activedb as adb
from activedb.errors import ConfigurationError, StoreError
from activedb.scheduling import Program, SharedTable
from activedb.store.journals import Sink, StagedAttempt, staging
from activedb.store.server import missing_rights, role_statements
from activedb.store.system import system
from tests.changes.following import take
from tests.databases import until
from tests.firing.working import listen, working
from tests.ledger import declare, event, open_ledger
from tests.security.two_roles import SCHEMA, TwoRoles, run, two_roles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Occurrence, Transaction
    from tests.cli.calling import Caller
    from tests.ledger import Ledger

ROWS = {"SELECT", "INSERT", "UPDATE", "DELETE"}


@pytest.fixture(scope="module")
def roles(postgres_url: str) -> Iterator[TwoRoles]:
    """Both roles, and all tables, which the owner has made."""
    with two_roles(postgres_url) as made:
        with open_at(made.owner_url) as db:
            _shared(db)
            open_ledger(db, {1: 10, 2: 20})
        made.grant()
        yield made


@pytest.fixture
def ledger(roles: TwoRoles) -> Iterator[Ledger]:
    """The tables, empty but for two accounts, as the runner has them."""
    with open_at(roles.runner_url) as db:
        opened = open_ledger(db)
        with db.transaction() as t:
            for row in t.query(select(opened.log.c.id)):
                t.delete(opened.log, row.id)
        yield opened


def open_at(url: str, **settings: Any) -> adb.Database:
    """A database object on the schema of the roles."""
    return adb.connect(url, db_schema=SCHEMA, **settings)


def _shared(db: adb.Database) -> Table:
    return Table(
        "shared", db.metadata, Column("k", Integer, primary_key=True), Column("v", Integer)
    )


# -- what the runner can do --------------------------------------------------------------------


def test_runner_reads_and_writes_rows_and_locks_tables(ledger: Ledger) -> None:
    with ledger.db.transaction() as t:
        t.insert(ledger.accounts, {"id": 7, "balance": 1})
        t.execute(update(ledger.accounts).where(ledger.accounts.c.balance < 5).values(balance=6))
        t.delete(ledger.accounts, 7)
    assert ledger.balances() == {1: 10, 2: 20}


@pytest.mark.parametrize(
    "coupling", ["immediate", "deferred", "detached", "causal", "sequential", "exclusive"]
)
def test_runner_runs_rules_in_every_mode(ledger: Ledger, coupling: str) -> None:
    listen(ledger, coupling)
    with ledger.db.transaction() as t:
        ledger.db.signal("E", n=1)
        if coupling == "exclusive":
            t.abort()
    ledger.db.wait_idle()
    assert ledger.lines() == ["rule 1"]


def test_runner_works_for_others(ledger: Ledger, roles: TwoRoles) -> None:
    with open_at(roles.runner_url, firings="queue") as clerk_db:
        clerk = open_ledger(clerk_db)
        listen(clerk)
        listen(ledger)
        with working(ledger.db):
            with clerk_db.transaction():
                clerk_db.signal("E", n=1)
            until(lambda: ledger.lines() == ["rule 1"])


def test_runner_retries_letters_and_switches_rules(ledger: Ledger) -> None:
    is_mended = threading.Event()

    @ledger.db.rule(on=adb.event("E"), coupling="detached", on_abort="rule")
    def rule(t: Transaction, o: Occurrence) -> None:
        if not is_mended.is_set():
            raise ValueError("no")
        ledger.write(t, "fixed")

    with ledger.db.transaction():
        ledger.db.signal("E")
    ledger.db.wait_idle()
    assert [letter.error for letter in ledger.db.dead_letters.list()] == ["ValueError"]
    is_mended.set()
    assert [result.outcome for result in ledger.db.dead_letters.retry_all()] == ["done"]
    assert ledger.lines() == ["fixed"]
    ledger.db.rules.disable("rule")
    ledger.db.rules.enable("rule")


def test_runner_feeds_streams_with_patterns_and_programs(ledger: Ledger) -> None:
    db = ledger.db
    accounts = SharedTable("shared", key=int, initial=0, history=60)
    program = Program("sums", [accounts])

    @program.on("A")
    def add(e: Any, access: Any) -> None:
        access.write(accounts[1], operator.add, e["n"])

    @db.rule(on=adb.seq(adb.event("A"), adb.event("B")).within(60))
    def note(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, "A, B")

    kept = _shared(db)
    stream = declare(db, A=("n",))
    stream.program(program, tables={accounts: kept})
    stream.feed([event("A", 1, n=3), event("B", 2), event("A", 3, n=4)])
    assert ledger.lines() == ["A, B"]
    with db.transaction() as t:
        assert t.get(kept, 1) == {"k": 1, "v": 7}


def test_runner_runs_and_compensates_batches(ledger: Ledger) -> None:
    usage = ledger.db.workflow("usage", sources="calls")

    @usage.program(reads="calls")
    def rate(t: Transaction, batch: Any) -> None:
        for row in batch:
            ledger.write(t, f"rate {row['n']}")

    @rate.compensation
    def unrate(t: Transaction, execution: Any) -> None:
        ledger.write(t, "unrate")

    batches = ledger.db.workflows.open("usage")
    batch = batches.feed("calls", [{"n": 1}])
    batches.compensate(batch)
    assert ledger.lines() == ["rate 1", "unrate"]


def test_runner_owns_tables(ledger: Ledger) -> None:
    ledger.db.admin.own(ledger.accounts)
    assert ledger.balances() == {1: 10, 2: 20}


def test_runner_stages_what_spark_writes(ledger: Ledger, roles: TwoRoles) -> None:
    spark = staging(roles.runner_url, SCHEMA)
    try:
        count = spark.stage("q", 0, "w", [b'[{"id": 5, "text": "from Spark"}]'])
        sink = Sink("table", "log", "q")
        assert spark.publish_to_table(sink, 0, [StagedAttempt("w", count, 1)], ["id", "text"])
    finally:
        spark.close()
        staging.cache_clear()
    assert ledger.lines() == ["from Spark"]


def test_runner_follows_changes_that_the_owner_has_begun_to_follow(roles: TwoRoles) -> None:
    """The runner needs REPLICATION, unlike in other tests; the owner does the setup."""
    run(
        roles.superuser_url,
        f'ALTER ROLE "{roles.owner}" REPLICATION; ALTER ROLE "{roles.runner}" REPLICATION',
        "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO "
        f'"{roles.owner}"\', current_database()); END $$',
    )

    def open_listening(url: str) -> Ledger:
        opened = open_ledger(open_at(url))

        @opened.db.rule(on=adb.updated(opened.accounts), coupling="detached", name="hear")
        def hear(t: Transaction, o: Occurrence) -> None:
            opened.write(t, f"account {o.new['id']}")

        return opened

    slot = f"slot_{roles.owner.rpartition('-')[2]}"
    owner = open_listening(roles.owner_url)
    try:
        with owner.db, owner.db.changes.follower(slot=slot):
            pass
        runner = open_listening(roles.runner_url)
        with runner.db, runner.db.changes.follower(slot=slot) as follower:
            with runner.db.transaction() as t:
                for row in t.query(select(runner.log.c.id)):
                    t.delete(runner.log, row.id)
            run(roles.superuser_url, "UPDATE shop.accounts SET balance = balance WHERE id = 1")
            assert take(follower, runner) == ["account 1"]
    finally:
        with open_at(roles.owner_url) as db:
            assert db.changes.unfollow(slot)
        run(
            roles.superuser_url,
            f'ALTER ROLE "{roles.owner}" NOREPLICATION',
            f'ALTER ROLE "{roles.runner}" NOREPLICATION',
        )


# -- and what it cannot ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE shop.mine (id int)",
        "CREATE TABLE public.mine (id int)",
        "CREATE FUNCTION shop.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE SCHEMA mine",
        "ALTER TABLE shop.accounts ADD COLUMN mine int",
        "ALTER TABLE shop.activedb_rules DROP COLUMN priority",
        "DROP TABLE shop.accounts",
        "TRUNCATE shop.activedb_ledger",
        "CREATE INDEX ON shop.accounts (balance)",
        "CREATE TRIGGER mine BEFORE INSERT ON shop.accounts "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "UPDATE shop.activedb_version SET version_num = '9999'",
        "DELETE FROM shop.activedb_version",
        "CREATE ROLE mine",
        "SELECT pg_read_file('/etc/passwd')",
        "COPY shop.accounts TO PROGRAM 'cat'",
        "SELECT pg_create_logical_replication_slot('mine', 'pgoutput')",
        "CREATE PUBLICATION mine",
    ],
)
def test_runner_can_change_nothing_but_rows(roles: TwoRoles, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        run(roles.runner_url, statement)


def test_runner_has_exactly_the_rights_that_are_printed(roles: TwoRoles) -> None:
    engine = create_engine(roles.superuser_url)
    tables = text("SELECT tablename FROM pg_tables WHERE schemaname = 'shop'")
    rights = text(
        "SELECT privilege FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', "
        "'REFERENCES', 'TRIGGER']) AS privilege "
        "WHERE has_table_privilege(:role, 'shop.' || :table, privilege)"
    )
    with engine.connect() as connection:
        found = {
            name: set(connection.scalars(rights, {"role": roles.runner, "table": name}))
            for name in connection.scalars(tables)
        }
        attributes = connection.execute(
            text(
                "SELECT rolsuper OR rolcreatedb OR rolcreaterole OR rolreplication "
                "OR rolbypassrls FROM pg_roles WHERE rolname IN (:owner, :runner)"
            ),
            {"owner": roles.owner, "runner": roles.runner},
        ).scalars()
        assert set(attributes) == {False}
    engine.dispose()
    assert found.keys() >= {*system.tables, "accounts", "activedb_version"}
    assert found.pop("activedb_version") == {"SELECT"}
    assert all(has == ROWS for has in found.values()), found


def test_missing_rights_are_told_table_by_table(roles: TwoRoles) -> None:
    engine = create_engine(roles.runner_url, connect_args={"options": f"-c search_path={SCHEMA}"})
    with engine.connect() as connection:
        assert missing_rights(connection) == []
        connection.rollback()
        run(roles.superuser_url, f'REVOKE INSERT ON shop.activedb_ledger FROM "{roles.runner}"')
        try:
            assert missing_rights(connection) == [("activedb_ledger", "INSERT")]
        finally:
            roles.grant()
    engine.dispose()


# -- what is said then -------------------------------------------------------------------------


def test_runner_on_tables_to_be_migrated_is_told_who_may(roles: TwoRoles) -> None:
    newest = "UPDATE shop.activedb_version SET version_num = "
    engine = create_engine(roles.superuser_url)
    with engine.connect() as connection:
        version = connection.scalar(text("SELECT version_num FROM shop.activedb_version"))
    engine.dispose()
    run(roles.superuser_url, f"{newest}'0011'")
    try:
        with pytest.raises(ConfigurationError, match="run activedb migrate as the role that owns"):
            open_at(roles.runner_url)
    finally:
        run(roles.superuser_url, f"{newest}'{version}'")


def test_runner_on_an_empty_schema_is_told_who_may(roles: TwoRoles) -> None:
    roles.grant("empty")
    with pytest.raises(ConfigurationError, match=r"permission denied .* run activedb migrate as"):
        adb.connect(roles.runner_url, db_schema="empty")


def test_runner_that_would_create_a_table_is_told_so(ledger: Ledger) -> None:
    Table("more", ledger.db.metadata, Column("id", Integer, primary_key=True), Column("t", String))
    with pytest.raises(StoreError, match="permission denied for schema shop; grant the role"):
        ledger.db.create_all()


def test_statements_twice_change_nothing(roles: TwoRoles) -> None:
    engine = create_engine(roles.superuser_url)
    rights = text(
        "SELECT relname::text, relacl::text FROM pg_class JOIN pg_namespace n ON n.oid = "
        "relnamespace WHERE nspname = 'shop' ORDER BY 1"
    )
    with engine.connect() as connection:
        before = connection.execute(rights).all()
        roles.grant()
        connection.rollback()
        assert connection.execute(rights).all() == before
    engine.dispose()


@pytest.mark.parametrize("name", ["", 'a"b', "a'b", "a;b", "a b", "1a", "a" * 64, "$activedb$"])
@pytest.mark.parametrize("which", ["schema", "owner", "runner"])
def test_names_that_are_none_are_refused(which: str, name: str) -> None:
    names = {"schema": "shop", "owner": "one", "runner": "two", which: name}
    with pytest.raises(ConfigurationError, match="is not a name for a role or schema here"):
        role_statements(**names)


@pytest.mark.parametrize("schema", ["public", "shop", "Shop", "shop-1", "_1"])
@pytest.mark.parametrize("options", [[], ["--sql"], ["--json"]])
def test_schema_that_no_setting_can_name_is_noted(
    schema: str, options: list[str], call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = call("roles", "--schema", schema, *options)
    assert said.status == 0, said.err
    monkeypatch.setenv("ACTIVEDB_DB_SCHEMA", schema)
    can_be_set = call("roles").status == 0
    assert ("ACTIVEDB_DB_SCHEMA cannot name" in said.err) == (not can_be_set)
    assert "cannot name" not in said.out


def test_one_role_for_both_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="give them two names"):
        role_statements(schema="shop", owner="me", runner="me")
