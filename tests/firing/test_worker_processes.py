"""Processes that share the pending firings, and are killed: nothing twice, nothing forgotten."""

from __future__ import annotations

import contextlib
import itertools
import signal
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from tests.databases import PATIENCE_S, until
from tests.firing.kill_program import define as define_transfer
from tests.firing.worker_program import define_jobs, lines_of
from tests.firing.working import working
from tests.histories.processes import Worker as Program
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.long
def test_processes_that_share_a_queue_do_each_job_once_when_one_is_killed(
    database_url: str, tmp_path: Path, scale: int
) -> None:
    jobs = 60 * scale
    with adb.connect(database_url, firings="queue") as db, contextlib.ExitStack() as programs:
        clerk = open_ledger(db)
        define_jobs(clerk)
        workers = [
            programs.enter_context(
                Program("tests.firing.worker_program", {"url": database_url}, tmp_path / f"{n}.log")
            )
            for n in range(3)
        ]
        for worker in workers:
            worker.wait_ready()
            worker.go()
        numbers = itertools.count()

        def signal_jobs(is_enough: Callable[[], bool]) -> None:
            """Half of the jobs, and more until it is enough: how processes share them is open."""
            first = next(numbers)
            for number in itertools.chain([first], numbers):
                db.signal("JOB", n=number)
                if number >= first + jobs // 2 - 1 and is_enough():
                    return
                until(lambda: len(clerk.pending()) < jobs)

        signal_jobs(lambda: len(workers[0].lines()) >= 5)
        workers[0].kill_after(5)
        signal_jobs(lambda: all(worker.lines() for worker in workers[1:]))
        until(lambda: not clerk.pending())
        for worker in workers[1:]:
            worker.process.send_signal(signal.SIGTERM)
            worker.finish()
        assert sorted(clerk.lines()) == lines_of(next(numbers))
        assert clerk.letters() == []


@pytest.mark.long
@pytest.mark.parametrize("point", ["before flush", "inside flush", "before commit", "after commit"])
def test_jobs_of_a_worker_killed_at_a_point_of_a_commit_are_done_once(
    database_url: str, tmp_path: Path, point: str
) -> None:
    program, log = "tests.firing.worker_program", tmp_path / "log"
    with adb.connect(database_url, firings="queue") as db:
        clerk = open_ledger(db)
        define_jobs(clerk)
        for n in range(6):
            db.signal("JOB", n=n)
        task = {"url": database_url, "point": point, "count": 5}
        with Program(program, task, log) as worker:
            worker.wait_ready()
            worker.go()
            assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
        assert clerk.pending()
        with Program(program, {"url": database_url}, log) as worker:
            worker.wait_ready()
            worker.go()
            until(lambda: not clerk.pending())
        assert sorted(clerk.lines()) == lines_of(6)
        assert clerk.letters() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("coupling", "point"),
    [
        ("detached", "before commit"),
        ("causal", "after commit"),
        ("sequential", "after commit"),
        ("exclusive", "before commit"),
    ],
)
def test_worker_runs_what_a_killed_process_has_left(
    database_url: str, tmp_path: Path, coupling: str, point: str
) -> None:
    task = {"coupling": coupling, "at": "trigger", "point": point, "aborts": False}
    with adb.connect(database_url) as db:
        ledger = open_ledger(db)
        define_transfer(ledger, coupling)
        with (
            Program("tests.firing.kill_program", {"url": database_url, **task}, tmp_path) as killed,
            working(db, poll_s=0.1),
        ):
            killed.wait_ready()
            killed.go()
            assert killed.process.wait(PATIENCE_S) == -signal.SIGKILL
            until(lambda: ledger.lines() == ["account 1 has 11"] and not ledger.pending())
