"""Killed with SIGKILL at any moment and started again, a run ends with the same rows."""

from __future__ import annotations

import csv
import gzip
import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.drawing import drawn
from tests.end_to_end.commands import REPOSITORY, activedb
from tests.servers import fresh_database

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.data]

JOB = REPOSITORY / "examples" / "crisis.py"
KILLED_JOB = Path(__file__).with_name("killed_job.py")
TABLES = ("words", "alerts", "alert_tweets", "audit")
SYSTEM = (
    "activedb_dead_letters",
    "activedb_late_events",
    "activedb_pending_firings",
    "activedb_stream_events",
)


# The first hours of two crises; the West Texas file comes second and is the later one.
PARTS = {
    "2013_Boston_Bombings": ("2013-04-15T17", "2013-04-16T03"),
    "2013_West_Texas_Explosion": ("2013-04-18T00", "2013-04-18T08"),
}


def hour(tweet_id: str) -> str:
    ms = (int(tweet_id.strip("'")) >> 22) + 1_288_834_974_657
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat()[:13]


@pytest.fixture(scope="module")
def tweets(data_folder: Path, tmp_path_factory: pytest.TempPathFactory, scale: int) -> Path:
    """Real tweets, in the order of their files: some hours, or everything when scaled up."""
    folder = tmp_path_factory.mktemp("tweets")
    for name, (first, last) in PARTS.items():
        with gzip.open(data_folder / "crisislex" / f"{name}.csv.gz", "rt", newline="") as file:
            head, *rows = csv.reader(file)
        chosen = [row for row in rows if scale > 1 or first <= hour(row[0]) < last]
        with gzip.open(folder / f"{name}.csv.gz", "wt", newline="", encoding="utf-8") as part:
            csv.writer(part).writerows([head, *chosen])
    return folder


def contents(url: str) -> dict[str, list[tuple[object, ...]]]:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return {
                table: sorted(
                    (tuple(row) for row in connection.execute(text(f"SELECT * FROM {table}"))),
                    key=repr,
                )
                for table in (*TABLES, *SYSTEM)
            }
    finally:
        engine.dispose()


def run(tweets: Path, folder: Path, url: str, kill_at: str, events_max: int = 700) -> int:
    done = activedb(
        "run",
        KILLED_JOB,
        "--input",
        tweets,
        "--json",
        folder=folder,
        url=url,
        variables={
            "JOB": str(JOB),
            "KILL_AT": kill_at,
            "ACTIVEDB_BATCH_EVENTS_MAX": str(events_max),
        },
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


@pytest.fixture(scope="module")
def undisturbed(
    tweets: Path, postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[tuple[object, ...]]]:
    with fresh_database(postgres_url) as url:
        assert run(tweets, tmp_path_factory.mktemp("undisturbed"), url, "never:1") == 0
        rows = contents(url)
    assert all(rows[table] for table in TABLES), "the input must make every table worth comparing"
    return rows


def test_run_killed_at_every_point_in_turn_ends_with_the_same_rows(
    tweets: Path,
    undisturbed: dict[str, list[tuple[object, ...]]],
    database_url: str,
    tmp_path: Path,
) -> None:
    chosen = drawn("killed")
    points = [
        f"event:{chosen.randrange(1, 700)}",
        f"event:{chosen.randrange(700, 1_400)}",
        "detached:1",
        "ledger:2",
        "flushed:1",
        "committed:1",
        "committed:3",
    ]
    # Batches are parted differently each time, which must make no difference either.
    killed = [
        point
        for number, point in enumerate(points)
        if run(tweets, tmp_path, database_url, point, 700 - 90 * number) == -signal.SIGKILL
    ]
    assert len(killed) >= 5, killed
    assert run(tweets, tmp_path, database_url, "never:1") == 0
    after = contents(database_url)
    for table in (*TABLES, *SYSTEM):
        assert after[table] == undisturbed[table], table
    # Once more: there is nothing left to do, and nothing changes.
    assert run(tweets, tmp_path, database_url, "never:1") == 0
    assert contents(database_url) == after
