"""The commands as a new user calls them: real Spark, real Postgres, a process of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError

from tests.end_to_end.commands import ACTIVEDB, REPOSITORY, activedb, figures
from tests.examples.replay_trading import read_bars, replay
from tests.patience import PATIENCE_S
from tests.servers import fresh_database, temporary_folder

TRADING = REPOSITORY / "examples" / "trading.py"

JOB = """
import activedb as adb
from sqlalchemy import CheckConstraint, Column, Integer, Table, Text
db = adb.connect()
doors = Table(
    "doors", db.metadata,
    Column("name", Text, primary_key=True),
    Column("opened", Integer, CheckConstraint("opened < 3"), nullable=False),
)
db.stream(
    "visits",
    source=adb.Files(
        format="csv", schema="kind STRING, door STRING, at STRING", options={"header": "true"}
    ),
    type="kind",
    timestamp="CAST(at AS TIMESTAMP)",
    params={"door": "door"},
    types={"OPEN": ("door",), "SHUT": ("door",)},
)
@db.rule(on=adb.event("OPEN"))
def count(t, o):
    if o.params["door"] == "cellar":
        raise ValueError("the cellar is closed")
    row = t.get(doors, o.params["door"], for_update=True)
    if row is None:
        t.insert(doors, {"name": o.params["door"], "opened": 1})
    else:
        t.update(doors, row["name"], opened=row["opened"] + 1)
"""

VISITS = """kind,door,at
OPEN,front,2026-01-01T00:00:01
OPEN,front,2026-01-01T00:00:02
KNOCK,front,2026-01-01T00:00:03
OPEN,,2026-01-01T00:00:04
OPEN,back,yesterday
OPEN,cellar,2026-01-01T00:00:05
OPEN,front,2026-01-01T00:00:06
OPEN,back,2026-01-01T00:00:07
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "visits").mkdir()
    (tmp_path / "visits" / "1.csv").write_text(VISITS)
    return tmp_path / "job.py"


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]
    finally:
        engine.dispose()


def ledger_rows(url: str) -> list[tuple[object, ...]]:
    try:
        return rows(url, "SELECT * FROM activedb_ledger")
    except ProgrammingError:
        return []  # the tables are not there yet


def group_is_alive(group: int) -> bool:
    def is_in_it(process: psutil.Process) -> bool:
        try:
            return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False  # it has just ended

    return any(is_in_it(process) for process in psutil.process_iter())


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll for a state of another process."""
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        pause.wait(0.1)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the output of a command, which must be one line of error without a traceback."""
    lines = [x for x in done.stderr.strip().splitlines() if x.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return lines[0]


@pytest.mark.spark
def test_demo_in_an_empty_folder_agrees_with_its_replay_and_stops_its_server() -> None:
    with temporary_folder() as folder:
        done = activedb("demo", "--events", "3000", "--seed", "7", "--json", folder=folder)
        assert not list(folder.glob("**/postmaster.pid"))
        assert list(folder.glob("**/PG_VERSION")), "the server's data is in the folder"
    result = figures(done)
    assert result["agrees with the replay"] == "yes"
    assert result["events"] + result["late events"] == 3_000
    assert result["late events"] > 0
    assert result["matches"] > result["rows"]["status_audit"] > 50
    assert set(result["workers by status"]) == {"safe", "warning", "violation"}


@pytest.mark.spark
@pytest.mark.data
def test_trading_run_on_a_plain_server_moves_stocks_as_the_replay_says(
    plain_postgres_url: str, data_folder: Path, tmp_path: Path
) -> None:
    bars = data_folder / "nasdaq" / "NASDAQ_MEDIUM.csv"
    variables = {"ACTIVEDB_DB_SCHEMA": "trading"}
    done = activedb(
        "run",
        TRADING,
        "--input",
        bars,
        "--json",
        folder=tmp_path,
        url=plain_postgres_url,
        variables=variables,
    )
    assert figures(done)["events"] == 1_652
    expected = replay(read_bars(bars))
    for table, wanted in expected.items():
        found = sorted(rows(plain_postgres_url, f"SELECT * FROM trading.{table}"))
        assert found == wanted, table
    again = activedb(
        "run",
        TRADING,
        "--input",
        bars,
        "--json",
        folder=tmp_path,
        url=plain_postgres_url,
        variables=variables,
    )
    assert figures(again)["events"] == 0
    assert figures(again)["rows"] == figures(done)["rows"]


@pytest.mark.spark
def test_run_bad_events_become_dead_letters_with_reasons_and_the_run_goes_on(
    job: Path, database_url: str
) -> None:
    job.write_text(JOB + 'print("what a job prints is not part of the JSON")\n')
    done = activedb(
        "run", job, "--input", job.parent / "visits", "--json", folder=job.parent, url=database_url
    )
    result = figures(done)
    assert result["dead letters"] == 5
    assert rows(database_url, "SELECT * FROM doors ORDER BY name") == [("back", 1), ("front", 2)]
    letters = rows(
        database_url, "SELECT error, reason FROM activedb_dead_letters ORDER BY identity"
    )
    assert [error for error, _ in letters] == [
        "BadEvent",
        "BadEvent",
        "BadEvent",
        "ValueError",
        "ConstraintViolation",
    ]
    reasons = [str(reason) for _, reason in letters]
    assert "unknown event type 'KNOCK'" in reasons[0]
    assert "lacks door" in reasons[1]
    assert "timestamp" in reasons[2]
    assert "the cellar is closed" in reasons[3]
    assert "doors" in reasons[4]


@pytest.mark.spark
def test_run_checkpoint_and_database_that_do_not_belong_together_are_refused(
    job: Path, database_url: str, postgres_url: str
) -> None:
    visits = job.parent / "visits"
    first = activedb("run", job, "--input", visits, folder=job.parent, url=database_url)
    assert first.returncode == 0, first.stderr
    before = rows(database_url, "SELECT * FROM doors ORDER BY name")
    other = ("--checkpoint", job.parent / "other")
    lost = activedb("run", job, "--input", visits, *other, folder=job.parent, url=database_url)
    assert lost.returncode == 2
    assert "this is a new query" in one_line(lost)
    assert rows(database_url, "SELECT * FROM doors ORDER BY name") == before
    with fresh_database(postgres_url) as empty:
        wiped = activedb("run", job, "--input", visits, folder=job.parent, url=empty)
        assert wiped.returncode == 2
        assert "seen none of its batches" in one_line(wiped)


@pytest.mark.spark
def test_run_fail_fast_stops_at_a_bad_event_with_one_line_and_writes_nothing(
    job: Path, database_url: str
) -> None:
    done = activedb(
        "run",
        job,
        "--input",
        job.parent / "visits",
        "--fail-fast",
        folder=job.parent,
        url=database_url,
    )
    assert done.returncode == 1
    assert "unknown event type 'KNOCK'" in one_line(done)
    for table in ("doors", "activedb_ledger", "activedb_dead_letters"):
        assert rows(database_url, f"SELECT count(*) FROM {table}") == [(0,)]


@pytest.mark.spark
def test_run_interrupted_while_following_exits_with_130_and_leaves_nothing_running(
    job: Path, database_url: str
) -> None:
    following = subprocess.Popen(
        [ACTIVEDB, "run", job, "--input", job.parent / "visits", "--follow"],
        cwd=job.parent,
        env={**os.environ, "ACTIVEDB_URL": database_url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: bool(ledger_rows(database_url)), "the first batch to commit")
        os.killpg(following.pid, signal.SIGINT)
        out, err = following.communicate(timeout=PATIENCE_S)
    finally:
        following.kill()
    assert following.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert out == ""
    wait_until(lambda: not group_is_alive(following.pid), "every process of the run to end")
    again = activedb(
        "run", job, "--input", job.parent / "visits", "--json", folder=job.parent, url=database_url
    )
    assert figures(again)["events since the stream began"] == 5
    assert rows(database_url, "SELECT * FROM doors ORDER BY name") == [("back", 1), ("front", 2)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("url", "status", "says"),
    [
        ("mysql://root@localhost/db", 2, "postgresql+psycopg://"),
        ("not a url", 2, "postgresql+psycopg://"),
        ("postgresql://me:secret@127.0.0.1:9/db", 3, "no Postgres answers"),
    ],
)
def test_run_wrong_url_says_so_in_one_line(job: Path, url: str, status: int, says: str) -> None:
    done = activedb("run", job, "--input", job.parent / "visits", folder=job.parent, url=url)
    assert done.returncode == status
    assert says in one_line(done)
    assert "secret" not in done.stderr


@pytest.mark.long
def test_run_missing_things_say_so_in_one_line(job: Path) -> None:
    visits = job.parent / "visits"

    def run(file: Path, input: Path, *more: str) -> subprocess.CompletedProcess[str]:
        return activedb("run", file, "--input", input, *more, folder=job.parent, url="memory://")

    missing_input = run(job, job.parent / "nowhere")
    assert (missing_input.returncode, "nowhere" in one_line(missing_input)) == (2, True)
    missing_file = run(job.parent / "nothing.py", visits)
    assert (missing_file.returncode, "nothing.py" in one_line(missing_file)) == (2, True)
    job.write_text(JOB.replace("def count(t, o):", "def count(t):"))
    signature = run(job, visits)
    assert signature.returncode == 2
    assert "rule count" in one_line(signature)
    assert "(t, o)" in one_line(signature)
    job.write_text("import activedb as adb\ndb = adb.connect()\nprint(undefined)\n")
    broken = run(job, visits)
    assert broken.returncode == 2
    assert "NameError" in one_line(broken)
    traced = run(job, visits, "--traceback")
    assert traced.returncode == 2
    assert "Traceback" in traced.stderr
    job.write_text("x = 1\n")
    without = run(job, visits)
    assert (without.returncode, "no database" in one_line(without)) == (2, True)


@pytest.mark.long
def test_run_without_java_says_in_one_line_what_to_install(job: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "activedb",
            "run",
            str(job),
            "--input",
            str(job.parent / "visits"),
        ],
        cwd=job.parent,
        env={"ACTIVEDB_URL": "memory://", "PATH": "", "HOME": str(job.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert "openjdk" in one_line(done)


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["demo", "--help"], ["migrate", "--help"]]
)
def test_help_is_shown(arguments: list[str], tmp_path: Path) -> None:
    done = activedb(*arguments, folder=tmp_path)
    assert done.returncode == 0
    assert "Usage" in done.stdout


@pytest.mark.long
def test_wrong_usage_exits_with_two(tmp_path: Path) -> None:
    done = activedb("run", folder=tmp_path)
    assert done.returncode == 2
    assert "file" in one_line(done)


@pytest.mark.long
def test_migrate_twice_on_postgres_succeeds(database_url: str, tmp_path: Path) -> None:
    for _ in range(2):
        done = activedb("migrate", folder=tmp_path, url=database_url)
        assert done.returncode == 0, done.stderr
        # Said if it takes over a second, or over five.
        said = re.fullmatch(r"(reading the tables\n)?(running \d+ migrations\n)?", done.stderr)
        assert said, done.stderr
    assert rows(database_url, "SELECT count(*) FROM activedb_ledger") == [(0,)]
