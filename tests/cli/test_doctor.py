"""``activedb doctor``: what it finds on real servers, and what it says to do."""

from __future__ import annotations

import os
import resource
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, text

import activedb as adb
from activedb.cli._doctor import _FOR_DEVELOPERS, Finding, machine_checks, server_checks
from activedb.store.server import ServerFacts, server_facts
from tests.cli.calling import Caller, Said

pytestmark = pytest.mark.long


def findings(said: Said) -> dict[str, dict[str, Any]]:
    return {each["what"]: each for each in said.json["findings"]}


def test_doctor_on_a_good_server_finds_no_problem(call: Caller, database_url: str) -> None:
    adb.connect(database_url).close()
    said = call("doctor", "--json", "--url", database_url)
    found = findings(said)
    assert said.status == 0, [each for each in found.values() if each["verdict"] == "problem"]
    wanted = [
        "server",
        "writing",
        "encryption",
        "encoding",
        "time zone",
        "clocks",
        "sessions",
        "tables",
    ]
    assert [found[what]["verdict"] for what in wanted] == ["ok"] * len(wanted)
    assert found["activedb follow"]["verdict"] == "ok"
    assert {"python", "java", "extra spark", "clock", "file handles", "disk"} <= set(found)
    assert all(bool(each["advice"]) == (each["verdict"] != "ok") for each in found.values())
    shown = call("doctor", "--url", database_url)
    assert shown.status == 0
    assert "no problems" in shown.out.splitlines()[-1]


def test_each_extra_is_for_users_or_for_developers() -> None:
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    for_users = {"spark", "columnar", "dashboard", "otel"}
    assert set(project["optional-dependencies"]) == for_users | set(_FOR_DEVELOPERS)


def test_doctor_changes_nothing(call: Caller, database_url: str, tmp_path: Path) -> None:
    said = findings(call("doctor", "--json", "--url", database_url))
    assert said["tables"]["verdict"] == "note"
    assert "version none" in said["tables"]["found"]
    engine = create_engine(database_url)
    with engine.connect() as connection:
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.execute(text(tables)).scalar() == 0
    engine.dispose()
    embedded = findings(call("doctor", "--json"))
    assert embedded["embedded server"]["verdict"] == "ok"
    assert "created when needed" in embedded["server"]["found"]
    assert list(tmp_path.iterdir()) == []


def test_doctor_without_a_server_says_what_to_do_and_hides_the_password(call: Caller) -> None:
    said = call("doctor", "--json", "--url", "postgresql://me:secret@127.0.0.1:9/db")
    assert said.status == 1
    server = findings(said)["server"]
    assert server["verdict"] == "problem"
    assert "no Postgres answers" in server["found"]
    assert "ACTIVEDB_URL" in server["advice"]
    assert "secret" not in said.out + said.err
    shown = call("doctor", "--url", "postgresql://me:secret@127.0.0.1:9/db")
    assert "1 problem" in shown.out
    assert "→ check ACTIVEDB_URL" in shown.out
    assert findings(call("doctor", "--json", "--url", "memory://"))["server"]["verdict"] == "ok"


def test_doctor_with_wrong_settings_tells_them(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTIVEDB_THREADS", "many")
    said = call("doctor", "--json")
    assert said.status == 1
    assert "ACTIVEDB_THREADS" in findings(said)["settings"]["found"]


def test_folder_that_cannot_be_looked_at_is_a_finding(
    call: Caller, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    monkeypatch.setenv("ACTIVEDB_FOLDER", str(loop))
    said = call("doctor", "--json")
    assert said.status == 1
    problems = [each for each in findings(said).values() if each["verdict"] == "problem"]
    assert any(str(loop) in each["found"] for each in problems)  # which looks first is Python's
    monkeypatch.setenv("ACTIVEDB_FOLDER", str(tmp_path / ("x" * 300)))
    assert findings(call("doctor", "--json", "--url", "memory://"))["disk"]["found"]


def test_role_without_rights_is_told_what_it_lacks(call: Caller, database_url: str) -> None:
    role = f"poor_{os.getpid()}"
    engine = create_engine(database_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN"))
        try:
            connection.execute(text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
            url = make_url(database_url).set(username=role).render_as_string(hide_password=False)
            empty = call("doctor", "--json", "--url", url)
            adb.connect(database_url).close()
            blind = call("doctor", "--json", "--url", url)
            connection.execute(text(f"GRANT SELECT ON activedb_version TO {role}"))
            full = call("doctor", "--json", "--url", url)
        finally:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))
    engine.dispose()
    assert (empty.status, blind.status, full.status) == (1, 1, 1)
    tables = findings(empty)["tables"]
    assert "may not create tables in schema public" in tables["found"]
    assert "GRANT CREATE" in tables["advice"]
    assert findings(empty)["activedb follow"]["verdict"] == "note"
    assert "permission denied for table activedb_version" in findings(blind)["tables"]["found"]
    assert f"{role} lacks rights on activedb_" in findings(full)["tables"]["found"]


def test_standby_and_newer_tables_are_problems(call: Caller, database_url: str) -> None:
    adb.connect(database_url).close()
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE activedb_version SET version_num = '9999'"))
    engine.dispose()
    options = "-c default_transaction_read_only=on"
    url = make_url(database_url).update_query_dict({"options": options})
    said = call("doctor", "--json", "--url", url.render_as_string(hide_password=False))
    assert said.status == 1
    found = findings(said)
    assert found["writing"]["verdict"] == "problem"
    assert "newer activedb" in found["tables"]["advice"]


@pytest.mark.parametrize(
    ("changed", "what", "verdict", "says"),
    [
        ({"number": 140_012, "version": "14.12"}, "server", "problem", "version 15 or newer"),
        ({"number": 190_001, "version": "19.1"}, "server", "note", "tested versions are 15 to 18"),
        ({"encoding": "SQL_ASCII"}, "encoding", "problem", "ENCODING 'UTF8'"),
        ({"is_local": False, "is_encrypted": False}, "encryption", "note", "sslmode=verify-full"),
        ({"is_local": False, "is_encrypted": True}, "encryption", "ok", ""),
        ({"ahead_s": 90.0, "uncertain_s": 0.1}, "clocks", "problem", "from the future"),
        ({"ahead_s": -2.0, "uncertain_s": 0.1}, "clocks", "note", "NTP"),
        ({"ahead_s": 2.0, "uncertain_s": 1.5}, "clocks", "ok", ""),
        ({"is_pooled": True}, "sessions", "problem", "session pooling"),
        ({"may_listen": False}, "sessions", "problem", "session pooling"),
        ({"connections_used": 90, "connections_max": 97}, "connections", "note", "max_connections"),
        ({"wal_level": "replica"}, "activedb follow", "note", "wal_level = logical"),
    ],
)
def test_facts_of_other_servers_are_judged(
    postgres_url: str, changed: dict[str, Any], what: str, verdict: str, says: str
) -> None:
    from activedb.cli import _doctor

    facts: ServerFacts = replace(server_facts(postgres_url), **changed)
    settings = adb.Settings.load(url=postgres_url)
    found = [*_doctor.version_of(facts, settings)]
    found += [check(facts, settings) for check in _doctor.CHECKS]
    (finding,) = (each for each in found if each.what == what)
    assert finding.verdict == verdict, finding
    assert says in finding.advice


def test_server_that_is_gone_between_two_looks_is_one_finding() -> None:
    settings = adb.Settings.load(url="postgresql://127.0.0.1:9/db")
    (finding,) = server_checks(settings)
    assert (finding.what, finding.verdict) == ("server", "problem")


def test_few_file_handles_are_a_problem(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    settings = adb.Settings.load(url="memory://", threads=256, folder=tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_000, before[1]))
    try:
        found = [finding for check in machine_checks(settings) for finding in check()]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    (handles,) = (each for each in found if each.what == "file handles")
    assert handles.verdict == "problem"
    assert "ulimit -n" in handles.advice


def test_java_that_is_missing_is_a_problem_where_spark_is_installed(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    said = call("doctor", "--json", "--url", "memory://")
    assert said.status == 1
    java = findings(said)["java"]
    assert "JAVA_HOME is /nowhere" in java["found"]
    assert "openjdk" in java["advice"]


def test_finding_that_is_not_ok_says_what_to_do() -> None:
    with pytest.raises(AssertionError):
        Finding("x", "problem", "wrong")


def test_plain_server_over_tcp_is_looked_at_in_the_same_way(
    call: Caller, plain_postgres_url: str
) -> None:
    password = make_url(plain_postgres_url).password
    assert password
    said = call("doctor", "--json", "--url", plain_postgres_url)
    found = findings(said)
    assert said.status == 0, found
    assert found["encryption"]["verdict"] == "ok"
    assert found["sessions"]["verdict"] == "ok"
    assert "tester:***@" in found["server"]["found"]
    status = call("status", "--json", "--url", plain_postgres_url)
    assert status.status == 0, status.err
    assert password not in said.out + said.err + status.out + status.err
