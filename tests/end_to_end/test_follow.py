"""``activedb follow`` as a user calls it: changes by a plain program run the rules of a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from activedb.store.sql._key_locks import guard_number
from tests.changes.following import Somebody, somebody
from tests.databases import PATIENCE_S, until
from tests.end_to_end.commands import ACTIVEDB, activedb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FOLLOWER = guard_number("follower of slot activedb")
RULES = """
import pathlib, time
import activedb as adb
from sqlalchemy import Column, Integer, Table, Text

db = adb.connect()
orders = Table("orders", db.metadata, Column("id", Integer, primary_key=True), Column("who", Text))
seen = Table("seen", db.metadata, Column("id", Integer, primary_key=True), Column("what", Text))

@db.rule(on=adb.updated(orders, "who"), coupling="detached")
def renamed(t, o):
    t.insert(seen, {"what": f"{o.old['who']} is {o.new['who']}"})

@db.rule(on=adb.inserted(orders), coupling="sequential")
def placed(t, o):
    if o.new["who"] == "slow":
        pathlib.Path("begun").touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
    t.insert(seen, {"what": f"{o.new['who']} has placed {o.new['id']}"})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with rules.py."""
    (tmp_path / "rules.py").write_text(RULES)
    return tmp_path


@pytest.fixture
def other(database_url: str) -> Iterator[Somebody]:
    """A program without activedb."""
    with somebody(database_url) as program:
        yield program


@contextlib.contextmanager
def follower(folder: Path, url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """``activedb follow rules.py`` while the block runs."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ACTIVEDB_")}
    process = subprocess.Popen(
        [ACTIVEDB, "follow", "rules.py", "--whole-rows", "--poll-s", "0.05", *options],
        cwd=folder,
        env={**environment, "ACTIVEDB_URL": url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE_S)


def wait(process: subprocess.Popen[str], reached: Callable[[], object]) -> None:
    """Wait for a state that a process brings about, and say what it said if it has ended."""
    until(lambda: reached() or process.poll() is not None)
    assert process.poll() is None or reached(), process.communicate(timeout=PATIENCE_S)


def is_made(other: Somebody) -> bool:
    """Return whether the slot exists from which changes are reported."""
    return bool(other.value("SELECT lsn FROM activedb_followers") if has_tables(other) else 0)


def has_tables(other: Somebody) -> bool:
    return bool(other.value("SELECT to_regclass('activedb_followers') IS NOT NULL"))


def seen(other: Somebody) -> list[str]:
    """Return what the rules have written, in order."""
    return other.value("SELECT array_agg(what ORDER BY id) FROM seen") or []


@pytest.mark.long
@pytest.mark.parametrize(("told", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_follower_runs_rules_for_changes_by_others_until_it_is_told_to_stop(
    folder: Path, database_url: str, other: Somebody, told: signal.Signals, status: int
) -> None:
    with follower(folder, database_url, "--json") as process:
        wait(process, lambda: is_made(other))
        other.run("INSERT INTO orders VALUES (1, 'ann')", "UPDATE orders SET who = 'bob'")
        wait(process, lambda: len(seen(other)) == 2)
        process.send_signal(told)
        out, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == status, errors
    assert sorted(seen(other)) == ["ann has placed 1", "ann is bob"]
    said = json.loads(out)
    assert (said["transactions"], said["changes"], said["firings"]) == (1, 2, 2)
    assert (said["rules fired"], said["rules failed"]) == (2, 0)
    assert said["lag bytes"] >= 0
    assert "following slot activedb" in errors
    assert other.value("SELECT count(*) FROM activedb_pending_firings") == 0


@pytest.mark.long
def test_follower_told_twice_leaves_what_it_runs_to_the_next_one(
    folder: Path, database_url: str, other: Somebody
) -> None:
    with follower(folder, database_url) as process:
        wait(process, lambda: is_made(other))
        other.run("INSERT INTO orders VALUES (1, 'slow')")
        wait(process, (folder / "begun").exists)
        process.send_signal(signal.SIGINT)
        # It follows no more, and waits for the rule.
        locks = "pg_locks WHERE locktype = 'advisory' AND (classid::bigint << 32) | objid::bigint"
        wait(process, lambda: not other.value(f"SELECT count(*) FROM {locks} = {FOLLOWER}"))
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    assert seen(other) == []
    (folder / "go").touch()
    with follower(folder, database_url) as process:
        wait(process, lambda: seen(other) == ["slow has placed 1"])
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "firings" in out


@pytest.mark.long
def test_follow_drop_gives_the_slot_up(folder: Path, database_url: str, other: Somebody) -> None:
    with follower(folder, database_url, "--slot", "mine", "--table", "orders") as process:
        wait(process, lambda: is_made(other))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'mine'"
    assert other.value(slots) == 1

    def drop() -> bool:
        options = ("--drop", "--slot", "mine", "--json")
        done = activedb("follow", "rules.py", *options, folder=folder, url=database_url)
        is_dropped = bool(json.loads(done.stdout)["dropped"])
        assert done.returncode == (0 if is_dropped else 1), done.stderr
        return is_dropped

    assert drop()
    assert other.value(slots) == 0
    assert not drop()


@pytest.mark.long
def test_follow_says_what_it_cannot_do(folder: Path, database_url: str) -> None:
    done = activedb("follow", "rules.py", folder=folder, url="memory://")
    assert done.returncode == 2
    assert "no other program can change its rows" in done.stderr
    done = activedb("follow", "rules.py", folder=folder, url=database_url)
    assert done.returncode == 2
    assert "REPLICA IDENTITY FULL" in done.stderr
    done = activedb("follow", "rules.py", "--table", "no", folder=folder, url=database_url)
    assert done.returncode == 2
    assert "declares no table no; its tables are: orders, seen" in done.stderr


@pytest.mark.long
def test_follow_help_says_how_it_ends_and_what_it_leaves(folder: Path) -> None:
    done = activedb("follow", "--help", folder=folder)
    assert done.returncode == 0
    text = " ".join(done.stdout.split())
    assert "wal_level" in text
    assert "--drop" in text
    assert "SIGTERM" in text
