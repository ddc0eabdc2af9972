"""Passwords and tokens are in no text that activedb makes: errors, logs, reprs, results."""

from __future__ import annotations

import json
import logging
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Column, Integer, Table, Text, insert, make_url

import activedb as adb
from activedb.config import Settings, mask_url
from activedb.errors import ActiveDBError, ConfigurationError
from activedb.store.journals import staging
from tests.end_to_end.commands import activedb

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "s3cr3t"
URLS = (
    f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db",
    f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db?sslmode=no-such-mode",
    f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db?no_such_option=1",
    f"postgresql+psycopg://me@127.0.0.1:1/db?password={SECRET}",
    f"postgresql+psycopg://me@127.0.0.1:1/db?sslpassword={SECRET}&connect_timeout=1",
    f"postgresql+psycopg://me:{SECRET}@127.0.0.1:port/db",
    f"postgresql+psycopg://me:a@b/{SECRET}@127.0.0.1:1/db",
    f"postgresql+psycopg://me:{SECRET}%40{SECRET}@127.0.0.1:1/db",
    f"mysql://me:{SECRET}@host/db",
    f"me:{SECRET}@127.0.0.1:1/db",
    f"//me:{SECRET}@127.0.0.1:1/db",
    f"host=127.0.0.1 password={SECRET} dbname=db",
    f"host=127.0.0.1 password='a {SECRET}'",
)
MISTYPED = (
    f"postgresql://me:a@{SECRET}@127.0.0.1:1/db",
    f"postgres:/me:{SECRET}@host",
    f"postgresql://me:{SECRET}",
)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """All that is logged, by everybody."""
    caplog.set_level(logging.DEBUG)
    return caplog


@pytest.mark.parametrize("url", [*URLS, *MISTYPED])
def test_url_that_cannot_be_used_is_shown_without_its_password(
    url: str, told: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ActiveDBError) as raised:
        adb.connect(url)
    whole = "".join(traceback.format_exception(raised.value))
    assert SECRET not in _without_source(whole)
    assert SECRET not in told.text
    with pytest.raises(ActiveDBError) as raised:
        staging(url, None)
    assert SECRET not in str(raised.value)


def _without_source(whole: str) -> str:
    """A traceback without the lines of source in it, which may have anything."""
    return "\n".join(line for line in whole.splitlines() if not line.startswith("    "))


@pytest.mark.parametrize("url", URLS)
def test_mask_hides_the_password_wherever_it_stands(url: str) -> None:
    assert SECRET not in mask_url(url)
    assert "***" in mask_url(url)


def test_settings_show_no_secrets() -> None:
    settings = Settings.load(
        url=URLS[0], spark_conf={"spark.hadoop.fs.s3a.secret.key": SECRET, "a": f"b://c:{SECRET}@d"}
    )
    for text in (repr(settings), str(settings), f"{settings}", f"{settings!r}"):
        assert SECRET not in text
        assert "***" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", {"a": SECRET}),
        ("url", [SECRET]),
        ("spark_conf", SECRET),
        ("spark_conf", {"password": [SECRET]}),
        ("spark_conf", [SECRET]),
    ],
)
def test_wrong_setting_that_may_be_a_secret_is_not_shown(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"wrong value of {name}") as raised:
        Settings.load(**{name: value})
    assert SECRET not in _without_source("".join(traceback.format_exception(raised.value)))


@pytest.mark.parametrize("value", [f'{{"password": ["{SECRET}"]}}', f"password={SECRET}"])
def test_wrong_variable_that_may_be_a_secret_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("ACTIVEDB_SPARK_CONF", value)
    with pytest.raises(ConfigurationError) as raised:
        Settings.load()
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_database_that_works_tells_its_password_to_nobody(
    plain_postgres_url: str, told: pytest.LogCaptureFixture
) -> None:
    password = str(make_url(plain_postgres_url).password)
    with adb.connect(plain_postgres_url, db_schema="secrets_told", fresh=True) as db:
        rows = Table("rows", db.metadata, Column("id", Integer, primary_key=True))
        db.create_all()

        @db.rule(on=adb.inserted(rows), coupling="detached", on_abort="rule")
        def fail(t: adb.Transaction, o: adb.Occurrence) -> None:
            raise ValueError("no")

        with db.transaction() as t:
            t.insert(rows, {"id": 1})
        db.wait_idle()
        texts = [
            repr(db),
            str(db),
            repr(db.settings),
            str(db.dead_letters.list()),
            db.admin.locks().text(),
        ]
        texts += [json.dumps(db.admin.counters()), repr(db.rules), repr(vars(db)), told.text]
        for text in texts:
            assert password not in text


def test_password_may_come_from_a_file_and_not_from_the_url(
    plain_postgres_url: str, tmp_path: Path
) -> None:
    url = make_url(plain_postgres_url)
    passwords = tmp_path / "passwords"
    passwords.write_text(f"*:*:*:{url.username}:{url.password}\n")
    passwords.chmod(0o600)
    bare = url._replace(password=None).update_query_dict({"passfile": str(passwords)})
    with adb.connect(bare.render_as_string(), db_schema="secrets_in_a_file", fresh=True) as db:
        assert db.admin.pending_firings() == []


def test_rows_are_in_no_log_and_no_traceback(
    db: adb.Database, told: pytest.LogCaptureFixture
) -> None:
    """The server's own words are: it names the key that is there twice, and the row it refuses."""
    rows = Table(
        "rows", db.metadata, Column("id", Integer, primary_key=True), Column("secret", Text)
    )
    db.create_all()
    with db.transaction() as t:
        t.insert(rows, {"id": 1, "secret": SECRET})
    with pytest.raises(ActiveDBError) as raised, db.transaction() as t:
        t.execute(insert(rows).values(id=1, secret=SECRET))
    assert SECRET not in _without_source("".join(traceback.format_exception(raised.value)))
    with db.connection() as connection, pytest.raises(Exception) as refused:  # noqa: PT011
        connection.execute(insert(rows).values(id=1, secret=SECRET))
    assert SECRET not in str(refused.value)
    assert SECRET not in told.text


@pytest.mark.long
def test_commands_show_no_password(plain_postgres_url: str, tmp_path: Path) -> None:
    wrong = make_url(plain_postgres_url).set(password=SECRET)
    url = wrong.render_as_string(hide_password=False)
    done = activedb("pending", "--json", "--traceback", folder=tmp_path, url=url)
    assert done.returncode == 3
    assert SECRET not in done.stdout + _without_source(done.stderr)
