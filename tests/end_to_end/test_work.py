"""``activedb work``, and how ``activedb rules`` shows a quarantine, as a user calls them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Column, Integer, Table, Text, select

import activedb as adb
from tests.databases import PATIENCE_S, until
from tests.end_to_end.commands import ACTIVEDB, activedb, figures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from activedb import Occurrence, Transaction

JOB = """
import pathlib, time
import activedb as adb
from sqlalchemy import Column, Integer, Table, Text

db = adb.connect()
bells = Table("bells", db.metadata, Column("id", Integer, primary_key=True), Column("by", Text))

@db.rule(on=adb.event("RING"), coupling="sequential")
def ring(t, o):
    if o.params["by"] == "nobody":
        raise ValueError("the bell is broken")
    if o.params["by"] == "slow":
        pathlib.Path("begun").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
    t.insert(bells, {"by": o.params["by"]})
"""


class Clerk:
    """Client that rings bells and leaves the rest to workers."""

    def __init__(self, db: adb.Database):
        self.db = db
        self.bells = Table(
            "bells", db.metadata, Column("id", Integer, primary_key=True), Column("by", Text)
        )

        @db.rule(on=adb.event("RING"), coupling="sequential")
        def ring(t: Transaction, o: Occurrence) -> None:
            raise AssertionError("not here")

        db.create_all()

    def rung(self) -> list[str]:
        """Return who has rung, in order."""
        with self.db.transaction() as t:
            return [row.by for row in t.query(select(self.bells).order_by(self.bells.c.id))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with job.py."""
    (tmp_path / "job.py").write_text(JOB)
    return tmp_path


@pytest.fixture
def clerk(database_url: str) -> Iterator[Clerk]:
    """Yield a clerk over an empty database."""
    with adb.connect(database_url, firings="queue") as db:
        yield Clerk(db)


@contextlib.contextmanager
def worker(
    folder: Path, url: str, *options: str, **variables: str
) -> Iterator[subprocess.Popen[str]]:
    """``activedb work job.py`` while the block runs."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACTIVEDB_")}
    process = subprocess.Popen(
        [ACTIVEDB, "work", "job.py", *options],
        cwd=folder,
        env={**environment, "ACTIVEDB_URL": url, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@pytest.mark.long
@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_worker_runs_what_others_have_recorded_until_it_is_told_to_stop(
    folder: Path, database_url: str, clerk: Clerk, told: signal.Signals
) -> None:
    clerk.db.signal("RING", by="ann")
    with worker(folder, database_url, "--json") as process:
        until(lambda: clerk.rung() == ["ann"])
        clerk.db.signal("RING", by="bob")
        until(lambda: clerk.rung() == ["ann", "bob"])
        process.send_signal(told)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    said = json.loads(out)
    assert (said["firings taken"], said["rules fired"], said["rules failed"]) == (2, 2, 0)
    assert "waiting for firings" in errors
    assert clerk.db.admin.pending_firings() == []


@pytest.mark.long
def test_worker_told_twice_leaves_what_it_runs_to_the_next_one(
    folder: Path, database_url: str, clerk: Clerk
) -> None:
    clerk.db.signal("RING", by="slow")
    with worker(folder, database_url) as process:
        until((folder / "begun").exists)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        until(lambda: "waiting for 1 running rule" in process.stderr.readline())  # type: ignore[union-attr]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert clerk.rung() == []
    (folder / "go").touch()
    with worker(folder, database_url) as process:
        until(lambda: clerk.rung() == ["slow"])
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "firings taken" in out


@pytest.mark.long
def test_rules_command_shows_the_quarantine(folder: Path, database_url: str, clerk: Clerk) -> None:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return activedb(
            "rules", *arguments, "--url", database_url, folder=folder, variables={"COLUMNS": "200"}
        )

    assert "in quarantine" not in call("ls", "job.py").stdout
    with worker(folder, database_url, ACTIVEDB_QUARANTINE_AFTER="2") as process:
        for number in range(3):
            clerk.db.signal("RING", by="nobody")
            until(lambda n=number: len(clerk.db.dead_letters.list()) == n + 1)  # type: ignore[misc]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    shown = call("ls", "job.py").stdout
    assert "in quarantine" in shown
    assert "failed 2 times in a row, the last time with ValueError: the bell is broken" in shown
    assert "in quarantine since" in call("show", "job.py", "ring").stdout
    reason = figures(call("show", "job.py", "ring", "--json"))["quarantine"]
    assert reason.startswith("since ")
    (rule,) = figures(call("ls", "job.py", "--json"))["rules"]
    assert rule["quarantine"] == reason
    assert call("enable", "ring").returncode == 0
    assert figures(call("show", "job.py", "ring", "--json"))["quarantine"] is None


@pytest.mark.long
def test_worker_in_memory_is_refused(folder: Path) -> None:
    done = activedb("work", "job.py", folder=folder, url="memory://")
    assert done.returncode == 2
    assert "memory:// belongs to one process" in done.stderr
    done = activedb("work", "nothing.py", folder=folder, url="memory://")
    assert done.returncode == 2
    assert "there is no file nothing.py" in done.stderr


@pytest.mark.long
def test_worker_help_says_how_to_end_it(folder: Path) -> None:
    done = activedb("work", "--help", folder=folder)
    assert done.returncode == 0
    assert "SIGTERM" in done.stdout
