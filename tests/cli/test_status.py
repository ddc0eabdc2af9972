"""``activedb status``: all that is recorded, told by who has not made it."""

from __future__ import annotations

import os
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, Table, create_engine, text

import activedb as adb
from activedb.store.journals import read_overview
from tests.cli.calling import Caller
from tests.databases import PATIENCE_S, until
from tests.monitor.test_undecided import EXPECTED, one_of_each

pytestmark = pytest.mark.long


def test_status_tells_streams_rules_pending_letters_and_leases(
    call: Caller, database_url: str
) -> None:
    goes_on, has_begun = threading.Event(), threading.Event()
    with adb.connect(database_url) as db:
        bells = Table("bells", db.metadata, Column("id", Integer, primary_key=True))
        stream = db.stream(
            "rings", type="kind", timestamp="at", params={"n": "n"}, types={"FALL": ("n",)}
        )

        @db.rule(on=adb.event("FALL"))
        def fall(t: adb.Transaction, o: adb.Occurrence) -> None:
            if o.params["n"] == 2:
                raise ValueError("too heavy")

        @db.rule(on=adb.event("KNOCK"), coupling="detached", priority=3)
        def answer(t: adb.Transaction, o: adb.Occurrence) -> None:
            has_begun.set()
            assert goes_on.wait(PATIENCE_S)

        @db.rule(on=adb.event("SLIP"), on_abort="rule")
        def slip(t: adb.Transaction, o: adb.Occurrence) -> None: ...

        db.create_all()
        db.admin.own(bells)
        db.rules.quarantine("slip", "since today: too slippery")
        events = [adb.occurrence("FALL", timestamp=n, n=n) for n in (1, 2, 3, 9)]
        stream.feed(events, punctuation=5)
        stream.feed([adb.occurrence("FALL", timestamp=4, n=4)], punctuation=5)
        db.rules.disable("fall")
        db.signal("KNOCK")
        assert has_begun.wait(PATIENCE_S)
        try:
            found = call("status", "--json", "--url", database_url)
            shown = call("status", "--url", database_url)
        finally:
            goes_on.set()
    assert found.status == shown.status == 0, found.err
    said = found.json
    (rings,) = said["streams"]
    assert (rings["events"], rings["dead"], rings["late"], rings["waiting"]) == (3, 1, 1, 1)
    assert rings["batches"] == 2
    assert datetime.fromisoformat(rings["punctuation"]).timestamp() == 5
    assert rings["position"]["batch_id"] == 1
    answer_row, fall_row, slip_row = said["rules"]
    assert answer_row.items() >= {"name": "answer", "coupling": "detached", "priority": 3}.items()
    assert fall_row.items() >= {"enabled": False, "quarantine": None, "version": 2}.items()
    assert slip_row["quarantine"] == "since today: too slippery"
    assert "in quarantine: since today" in shown.out
    (pending,) = said["pending"]
    assert pending.items() >= {"rule": "answer", "held": 1, "free": 0, "left": 0}.items()
    (letter,) = said["letters"]
    assert letter == {"kind": "event", "source": "rings", "error": "ValueError", "count": 1}
    (lease,) = said["leases"]
    assert lease["alive"]
    assert lease["firings"] == 1
    (owned,) = said["owned"]
    assert owned["name"] == "public.bells"
    assert said["connections"] > 0
    assert said["version"] == said["migrations"]["newest"]
    for text_ in ("rings", "disabled", "answer", "ValueError", "alive", "bells", "workflows: none"):
        assert text_ in shown.out, text_

    def after() -> dict[str, Any]:
        told: dict[str, Any] = call("status", "--json", "--url", database_url).json
        return told

    assert after()["pending"] == []
    until(lambda: after()["connections"] == 0)  # the server ends a session behind its client


def test_processes_that_can_be_looked_into_are_named(
    call: Caller, database_url: str, tmp_path: Path
) -> None:
    folder = tmp_path / ".activedb"
    with adb.connect(database_url, monitor="on", folder=folder):
        (monitor,) = call("status", "--json", "--url", database_url).json["monitors"]
        assert monitor["pid"] == os.getpid()
        assert f"{monitor['url']}: activedb top" in call("status", "--url", database_url).out
    assert call("status", "--json", "--url", database_url).json["monitors"] == []


def test_firings_of_a_process_that_has_died_are_told_apart(call: Caller, database_url: str) -> None:
    adb.connect(database_url).close()
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO activedb_pending_firings (firing, run, rule, occurrence, keep, done, "
                "intent, holder) VALUES ('a', 'r', 'ring', '{}', false, false, false, 77), "
                "('b', 'r', 'ring', '{}', false, false, false, NULL), "
                "('c', 'r', 'ring', '{}', true, true, false, 77)"
            )
        )
    engine.dispose()
    said = call("status", "--json", "--url", database_url).json
    (pending,) = said["pending"]
    assert (pending["left"], pending["free"], pending["held"]) == (1, 1, 0)
    assert [(x["number"], x["alive"]) for x in said["leases"]] == [(77, False)]
    assert "left by a dead process" in call("status", "--url", database_url).out


def test_tables_of_an_older_version_and_none_are_told_as_they_are(
    call: Caller, database_url: str
) -> None:
    none = call("status", "--json", "--url", database_url)
    assert none.status == 0
    assert none.json["version"] is None
    assert none.json["rules"] == []
    assert "no activedb tables" in call("status", "--url", database_url).out
    script = call("migrate", "--sql", "--since", "0").out.split("-- Running upgrade 0001")[0]
    engine = create_engine(database_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(script.replace("BEGIN;", ""))
        connection.exec_driver_sql(
            "INSERT INTO activedb_dead_letters VALUES ('r', 'i', 'rule', '{}', 'ValueError', 'no')"
        )
    engine.dispose()
    overview = read_overview(database_url)
    assert overview.migrations.found == "0001"
    assert [letter["count"] for letter in overview.letters] == [1]
    assert overview.rules == overview.workflows == []
    shown = call("status", "--url", database_url)
    assert "tables of version 0001 (" in shown.out
    assert "activedb migrate" in shown.out


def test_folder_without_a_database_stays_as_it_is(call: Caller, tmp_path: Path) -> None:
    said = call("status", "--json")
    assert said.status == 0
    assert said.json["version"] is None
    assert "there is no database in .activedb yet" in call("status").out
    assert list(tmp_path.iterdir()) == []
    assert call("status", "--url", "memory://").status == 2
    assert call("status", "--url", "postgresql://me:secret@127.0.0.1:9/db").status == 3


def test_status_tells_late_dead_and_undecided_events_apart(call: Caller, database_url: str) -> None:
    with adb.connect(database_url) as db:
        one_of_each(db)
        found = call("status", "--json", "--url", database_url)
        shown = call("status", "--url", database_url)
    assert found.status == shown.status == 0, found.err
    (stream,) = found.json["streams"]
    assert {name: stream[name] for name in EXPECTED} == EXPECTED
    assert "undecided" in shown.out


def test_status_without_a_database_tells_the_running_monitors(call: Caller) -> None:
    with adb.connect("memory://", monitor="on"):
        shown = call("status")
        assert f"process {os.getpid()} has its monitor at http://" in shown.out
        assert [each["pid"] for each in call("status", "--json").json["monitors"]] == [os.getpid()]
    assert "has its monitor" not in call("status").out


@pytest.mark.parametrize("option", ["ssl_mode=require", "connect_timeout=x", "connect_timeout=inf"])
@pytest.mark.parametrize("words", [("status",), ("pending",), ("migrate", "--check")])
def test_option_of_the_url_that_is_none_is_a_wrong_configuration(
    option: str, words: tuple[str, ...], call: Caller
) -> None:
    said = call(*words, "--url", f"postgresql+psycopg://u:s3cret@127.0.0.1:1/db?{option}")
    assert (said.status, "options behind the ? are" in said.err) == (2, True), said.err
    assert "s3cret" not in said.err
