"""No run leaves anything on the terminal, on the disk or among the processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.patience import PATIENCE_S

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SETUP = """
import logging
import sys
from dataclasses import replace
from pathlib import Path
import psutil
from activedb.errors import FeedFailed
from activedb.streams import Files, Replay, StreamDeclaration
from spark_bridge import SparkFeed, session
logging.basicConfig(level=logging.DEBUG)
stream = StreamDeclaration(
    "lines",
    source=Files("text"),
    type="'LINE'",
    timestamp="timestamp_seconds(length(value))",
    types={"LINE": ()},
)
def feed(**options):
    return SparkFeed(stream, Path("input"), Path("check point"), **options)
def java():
    return [p for p in psutil.Process().children(recursive=True) if p.name() == "java"]
"""


def start(folder: Path, script: str) -> subprocess.Popen[str]:
    (folder / "input").mkdir()
    (folder / "input" / "a.txt").write_text("first\nsecond\n")
    (folder / "temp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SETUP + script],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder / "temp"),
            "JAVA_TOOL_OPTIONS": "-Dactivedb.test=noise",  # the JVM tells that it picked them up
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_behind(folder: Path) -> list[str]:
    return sorted(p.name for p in [*folder.iterdir(), *(folder / "temp").iterdir()])


def test_feed_prints_nothing_leaves_nothing_and_listens_on_loopback_only(tmp_path: Path) -> None:
    script = """
batches = []
def apply(batch):
    batches.append(batch)
    assert len(java()) == 1
    found = [c for p in psutil.Process().children(recursive=True) for c in p.net_connections()]
    listening = [c.laddr.ip for c in found if c.status == psutil.CONN_LISTEN]
    assert listening
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}, listening
    if len(batches) == 1:
        raise ValueError("a refused batch is quiet, too")
with session():
    try:
        feed().run(apply)
    except ValueError:
        feed().run(apply)
    replayed = replace(stream, source=Replay(format="text"))
    SparkFeed(replayed, Path("input"), Path("replayed")).run(apply)
assert psutil.Process().children() == []
assert [batch.batch_id for batch in batches] == [0, 0, 0]
assert batches[0].table.equals(batches[1].table)
"""
    process = start(tmp_path, script)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (out, err, process.returncode) == ("", "", 0)
    assert left_behind(tmp_path) == ["check point", "input", "replayed", "temp"]


def test_feed_interrupted_ends_spark_and_leaves_no_noise(tmp_path: Path) -> None:
    script = """
try:
    feed(follow=True).run(lambda batch: print("applied", *(p.pid for p in java()), flush=True))
except KeyboardInterrupt:
    print("interrupted", *(p.pid for p in java()))
    sys.exit(130)
"""
    process = start(tmp_path, script)
    assert process.stdout is not None
    said, pid = process.stdout.readline().split()
    assert said == "applied"
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does: the JVM gets it, too
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (out, err, process.returncode) == ("interrupted\n", "", 130)
    assert not psutil.pid_exists(int(pid))
    assert left_behind(tmp_path) == ["check point", "input", "temp"]


def test_feed_whose_jvm_is_killed_fails_clearly_and_can_run_again(tmp_path: Path) -> None:
    script = """
batches = []
def apply(batch):
    batches.append(batch)
    if len(batches) == 1:
        for process in java():
            process.kill()
try:
    feed().run(apply)
except FeedFailed as error:
    print(error)
feed().run(apply)
assert batches[0].table.equals(batches[1].table)
print(*(batch.batch_id for batch in batches))
"""
    process = start(tmp_path, script)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (err, process.returncode) == ("", 0)
    assert out.splitlines() == [
        "stream 'lines': Spark's Java process ended unexpectedly, with status -9",
        "0 0",
    ]
