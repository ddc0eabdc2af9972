"""``activedb migrate``: shows, checks, applies; the script it prints does the same."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, text

import activedb as adb
from tests.cli.calling import Caller
from tests.store.test_migrations import described

pytestmark = pytest.mark.long


def test_migrate_checks_then_applies_then_has_nothing_to_do(
    call: Caller, database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check = call("migrate", "--check", "--json", "--url", database_url)
    assert check.status == 1
    assert check.json["found"] is None
    assert not check.json["done"]
    versions = [each["version"] for each in check.json["migrations"]]
    assert versions == sorted(versions)
    assert versions[-1] == check.json["newest"]
    assert all(each["purpose"] for each in check.json["migrations"])

    monkeypatch.setenv("ACTIVEDB_MONITOR", "on")
    monkeypatch.setenv("ACTIVEDB_FOLDER", str(tmp_path))
    done = call("migrate", "--url", database_url)
    assert done.status == 0, done.err
    assert not list(tmp_path.iterdir()), "it is not watched, whatever programs are set to"
    assert f"were migrated from version none to {versions[-1]}" in done.out
    assert versions[0] in done.out

    again = call("migrate", "--check", "--json", "--url", database_url)
    assert again.status == 0
    assert again.json == {**check.json, "found": versions[-1], "migrations": []}
    assert f"up to date (version {versions[-1]})" in call("migrate", "--url", database_url).out


def test_sql_makes_the_tables_that_migrate_makes(
    call: Caller, database_url: str, postgres_url: str
) -> None:
    from tests.servers import fresh_database

    script = call("migrate", "--sql", "--url", database_url)
    assert script.status == 0
    assert script.out.startswith("BEGIN;")
    assert call("migrate", "--sql", "--since", "0").out == script.out, "no server is needed"
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as plain:
        plain.execute(script.out.encode())
    assert call("migrate", "--check", "--url", database_url).status == 0
    with fresh_database(postgres_url) as other:
        adb.connect(other).close()
        one, two = create_engine(database_url), create_engine(other)
        assert described(one) == described(two)
        one.dispose()
        two.dispose()


@pytest.mark.parametrize("ways", ["migrate --sql", "migrate --sql --since 0"])
def test_sql_makes_the_tables_in_the_schema_of_the_settings(
    ways: str, call: Caller, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTIVEDB_DB_SCHEMA", "select")
    script = call(*ways.split(), "--url", database_url)
    assert script.status == 0, script.err
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as plain:
        plain.execute(script.out.encode())
        found = plain.execute(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'activedb%'"
        )
        assert found.fetchall() == [("select",)]
        assert plain.execute("SHOW search_path").fetchone() == ('"$user", public',)
    assert call("migrate", "--check", "--url", database_url).status == 0
    versions = call("migrate", "--check", "--json", "--url", database_url).json
    rest = call("migrate", "--sql", "--since", "0001")
    assert 'SET LOCAL search_path TO "select";' in rest.out
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as plain:
        # An owner of the schema need not be able to make one.
        plain.execute('DROP SCHEMA "select" CASCADE; CREATE ROLE maker; CREATE SCHEMA "select"')
        plain.execute('GRANT ALL ON SCHEMA "select" TO maker; SET ROLE maker')
        plain.execute(script.out.encode())
        plain.execute("RESET ROLE; DROP OWNED BY maker; DROP ROLE maker")
    assert versions["found"] == versions["newest"]


def test_wrong_calls_say_what_is_wrong(call: Caller, database_url: str) -> None:
    unknown = call("migrate", "--sql", "--since", "7")
    assert unknown.status == 2
    assert "there is no version '7'; there are 0001" in unknown.err
    assert call("migrate", "--since", "0001").status == 2
    empty = call("migrate", "--sql", "--since", "")
    assert (empty.status, empty.out) == (2, "")
    assert call("migrate", "--check", "--sql").status == 2
    assert call("migrate", "--check", "--url", "memory://").status == 2
    adb.connect(database_url).close()
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE activedb_version SET version_num = '9999'"))
    engine.dispose()
    newer = call("migrate", "--check", "--url", database_url)
    assert newer.status == 2
    assert "install the newer activedb" in newer.err
