"""``activedb batches`` as a user calls it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from activedb.cli._main import _status
from tests.end_to_end.commands import activedb
from tests.servers import fresh_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

JOB = """
import activedb as adb
from activedb.batches import merged
from sqlalchemy import Column, Integer, Table, Text

db = adb.connect()
bills = Table("bills", db.metadata, Column("of", Text, primary_key=True), Column("sum", Integer))
usage = db.workflow("usage", sources="calls")

@usage.program(reads="calls")
def rate(t, batch):
    return [{**row, "price": 3 * row["minutes"]} for row in batch]

@rate.compensation
def unrate(t, execution):
    pass

@usage.program(reads={"rate": merged(2)})
def bill(t, batch):
    for row in batch:
        t.insert(bills, {"of": row["who"], "sum": row["price"]})

@bill.compensation
def unbill(t, execution):
    for row in execution.rows:
        t.delete(bills, row["who"])
"""

FED = """
import runpy
job = runpy.run_path("job.py")
with job["db"] as db:
    db.create_all()
    run = db.workflows.open("usage")
    for who, minutes in (("ann", 1), ("bob", 2), ("cid", 3)):
        run.feed("calls", [{"who": who, "minutes": minutes}])
"""


@dataclass(frozen=True)
class Done:
    """Output of a command, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def place(
    postgres_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str]]:
    """A folder with the job, and a database with three batches."""
    folder = tmp_path_factory.mktemp("batches")
    (folder / "job.py").write_text(JOB)
    with fresh_database(postgres_url) as url:
        environment = {**os.environ, "ACTIVEDB_URL": url}
        subprocess.run([sys.executable, "-c", FED], cwd=folder, env=environment, check=True)
        yield folder, url


@pytest.fixture
def call(
    place: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    """The command in this process, as a process of its own takes a second to begin."""
    folder, url = place
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ACTIVEDB_URL", url)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def call(*arguments: str) -> Done:
        capsys.readouterr()
        status = _status(["batches", *arguments])
        return Done(status, *capsys.readouterr())

    return call


def listed(call: Callable[..., Done], *more: str) -> dict[str, str]:
    """States of batches by id."""
    found = json.loads(call("ls", "--json", *more).stdout)["batches"]
    return {batch["id"]: batch["state"] for batch in found}


@pytest.mark.long
def test_batches_ls_is_a_command(place: tuple[Path, str]) -> None:
    folder, url = place
    done = activedb("batches", "ls", "job.py", folder=folder, url=url)
    assert (done.returncode, "calls#3" in done.stdout) == (0, True), done.stderr


def test_batches_ls_lineage_and_cover_tell_without_the_job(
    call: Callable[..., Done], tmp_path: Path
) -> None:
    assert listed(call) == dict.fromkeys(["calls#1", "calls#2", "calls#3"], "whole")
    assert len(listed(call, "--derived")) == 6
    lineage = json.loads(call("lineage", "calls#1", "--json").stdout)
    assert lineage["sources"] == ["calls#1"]
    assert [each["id"] for each in lineage["after"]][-1] == "bill#1"
    cover = json.loads(call("cover", "rate#2'", "--json").stdout)
    assert cover["sources"] == ["calls#1", "calls#2"]
    drawing = tmp_path / "a.svg"
    shown = call("ls", "--svg", str(drawing))
    assert "calls#3" in shown.stdout
    assert drawing.read_text().startswith("<svg")
    unwritable = call("ls", "--svg", str(tmp_path / "none" / "a.svg"))
    assert (unwritable.returncode, "cannot write" in unwritable.stderr) == (2, True)


def test_batches_wrong_arguments_exit_with_2(call: Callable[..., Done]) -> None:
    for arguments, said in (
        (("lineage", "calls#9"), "no batch or transaction 'calls#9'"),
        (("cover", "calls#9"), "activedb batches ls shows them"),
        (("ls", "--workflow", "uses"), "did you mean 'usage'"),
        (("compensate", "calls#1"), "name the FILE"),
        (("compensate", "calls#1", "job.py", "--mode", "independent cover"), "pass --yes"),
        (("compensate", "calls#1", "job.py", "--mode", "some"), "'some' is not one of 'full'"),
        (("ls", "--state", "whol"), "'whol' is not one of 'whole'"),
    ):
        done = call(*arguments)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


@pytest.mark.long
def test_batches_compensate_plans_refuses_and_does_it_once(call: Callable[..., Done]) -> None:
    planned = call("compensate", "calls#1", "--plan", "--json")
    assert planned.returncode == 1  # others would be affected
    assert json.loads(planned.stdout)["plan"]["is_interfering"]
    refused = call("compensate", "calls#1", "job.py", "--yes")
    assert (refused.returncode, "calls#2 would lose bill#1" in refused.stderr) == (1, True)
    unasked = call("compensate", "calls#1", "job.py")  # what cannot run need not be confirmed
    assert (unasked.returncode, "calls#2 would lose bill#1" in unasked.stderr) == (1, True)
    assert set(listed(call).values()) == {"whole"}
    mode = ("--mode", "independent cover")
    assert call("compensate", "calls#1", *mode, "--plan").returncode == 0
    done = call("compensate", "calls#1", "job.py", *mode, "--yes")
    assert (done.returncode, "calls#1 is compensated" in done.stdout) == (0, True), done.stderr
    assert listed(call) == {"calls#1": "dropped", "calls#2": "dropped", "calls#3": "whole"}
    again = call("compensate", "calls#1", "job.py", *mode, "--yes")
    assert (again.returncode, "compensated already" in again.stderr) == (1, True)
