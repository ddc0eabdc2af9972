"""Connection by URL: errors are reported in one line and without passwords."""

from __future__ import annotations

import re
import socket
from typing import Any

import pytest
from sqlalchemy import ARRAY, Column, Integer, Table, create_engine, make_url
from sqlalchemy.dialects.postgresql import INET, TSVECTOR

import activedb as adb
from activedb.errors import (
    ActiveDBError,
    ConfigurationError,
    DefinitionError,
    InvalidURL,
    ServerUnreachable,
)
from activedb.store.session import _postgres
from tests.databases import PATIENCE_S, in_thread

SECRET = "s3cr3t"


def complaint(error: ActiveDBError) -> str:
    """The message, checked: one line, no secret."""
    text = str(error)
    assert "\n" not in text
    assert SECRET not in text
    return text


@pytest.mark.parametrize(
    "url",
    [
        "mysql://me:s3cr3t@host/db",
        "sqlite:///file.db",
        "postgres://me:s3cr3t@host/db",
        "not a url",
        "postgresql+psycopg://me:s3cr3t@host:port/db",
        "postgresql+psycopg://me:s3cr3t@host:99999999/db",
        "memory:/",
    ],
)
def test_connect_to_what_is_no_url_says_how_to_write_one(url: str) -> None:
    with pytest.raises((InvalidURL, ServerUnreachable)) as caught:
        adb.connect(url)
    text = complaint(caught.value)
    if isinstance(caught.value, InvalidURL):
        assert "postgresql+psycopg://user:password@host:5432/database or memory://" in text


def test_connect_where_no_server_listens_says_so() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        url = f"postgresql+psycopg://me:{SECRET}@127.0.0.1:{port}/db"
        with pytest.raises(ServerUnreachable, match=f"127.0.0.1:{port}/db") as caught:
            adb.connect(url)
    assert "ACTIVEDB_URL" in complaint(caught.value)


def test_connect_with_the_wrong_password_says_so(plain_postgres_url: str) -> None:
    url = make_url(plain_postgres_url).set(password=SECRET)
    with pytest.raises(ServerUnreachable, match="password") as caught:
        adb.connect(url.render_as_string(hide_password=False))
    complaint(caught.value)


def test_connect_to_a_database_that_is_missing_says_so(plain_postgres_url: str) -> None:
    url = make_url(plain_postgres_url).set(database="no_such_database")
    with pytest.raises(ServerUnreachable, match="no_such_database") as caught:
        adb.connect(url.render_as_string(hide_password=False))
    password = str(url.password)
    assert password not in complaint(caught.value)


def test_connect_to_an_old_server_says_which_is_needed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_postgres, "_SERVER_VERSION_MIN", 990_000)
    with pytest.raises(ConfigurationError, match=r"is PostgreSQL \d+; 15 or newer") as caught:
        adb.connect(database_url)
    complaint(caught.value)


def test_connect_fresh_needs_a_schema_to_drop(database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="db_schema="):
        adb.connect(database_url, fresh=True)


@pytest.mark.long
def test_connect_fresh_drops_the_schema_and_no_other(database_url: str) -> None:
    for schema, fresh in (("one", False), ("two", False), ("one", True)):
        with adb.connect(database_url, db_schema=schema, fresh=fresh) as db:
            _ = db.stream("s", type="k", timestamp="t", types={"A": ()}).run
            run = db.streams["s"].run
            run.feed([adb.occurrence("A", timestamp=1)])
            assert run.waiting == 1
    with adb.connect(database_url, db_schema="two") as db:
        run = db.stream("s", type="k", timestamp="t", types={"A": ()}).run
        assert run.waiting == 1


def test_connect_from_many_threads_at_once_migrates_once(database_url: str) -> None:
    threads = [in_thread(adb.connect, database_url) for _ in range(6)]
    databases = [thread.result(PATIENCE_S) for thread in threads]
    for db in databases:
        db.close()
    engine = create_engine(database_url)
    with engine.connect() as connection:
        versions = connection.exec_driver_sql("SELECT version_num FROM activedb_version").all()
    engine.dispose()
    assert len(versions) == 1
    assert re.fullmatch(r"\w+", versions[0][0])


def test_connect_to_different_places_from_many_threads_migrates_each(database_url: str) -> None:
    threads = [
        in_thread(lambda n=n: adb.connect(database_url, db_schema=f"s{n}")) for n in range(6)
    ]
    databases = [thread.result(PATIENCE_S) for thread in threads]
    for db in databases:
        run = db.stream("s", type="k", timestamp="t", types={"A": ()}).run
        run.feed([adb.occurrence("A", timestamp=1)])
        assert run.waiting == 1
        db.close()


def test_database_that_is_closed_says_so(database_url: str) -> None:
    db = adb.connect(database_url)
    with db.transaction() as t:
        pass
    db.close()
    db.close()
    with pytest.raises(ActiveDBError), db.transaction() as t:
        t.spawn(lambda s: None).result()


@pytest.mark.parametrize("kind", [ARRAY(Integer), INET(), TSVECTOR()])
def test_type_that_only_postgres_has_is_a_definition_error_in_memory(kind: Any) -> None:
    with adb.connect("memory://") as db:
        Table("x", db.metadata, Column("id", Integer, primary_key=True), Column("v", kind))
        with pytest.raises(DefinitionError, match=r"no type \w+\(.* for column v; use Postgres"):
            db.create_all()
