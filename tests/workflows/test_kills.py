"""SIGKILL at named points of the commits of a workflow: all of a batch, once, or nothing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

import activedb as adb
from activedb.errors import AlreadyCompensated
from tests.databases import PATIENCE_S
from tests.histories.processes import Server, Worker
from tests.workflows.kill_program import FED, opened

if TYPE_CHECKING:
    from pathlib import Path

MARKS = ["P1(x,y)", "P2(P1:x)", "P2(P1:y)", "P3(P2:P1:x,P2:P1:y)"]
COUNTED = sorted([*MARKS, *(f"counted {mark}" for mark in MARKS)])


def killed(url: str, folder: Path, **task: object) -> None:
    with Worker("tests.workflows.kill_program", {"url": url, **task}, folder / "log") as w:
        w.wait_ready()
        w.go()
        assert w.process.wait(PATIENCE_S) == -signal.SIGKILL
    Server(url).wait_idle()


@pytest.mark.crash
@pytest.mark.parametrize(
    ("commit", "point"),
    [
        (1, "before commit"),
        (1, "after commit"),
        (2, "before flush"),
        (2, "after commit"),
        (3, "inside flush"),
        (4, "before commit"),
    ],
)
def test_batch_is_run_once_and_whole_when_the_process_is_killed(
    database_url: str, tmp_path: Path, commit: int, point: str
) -> None:
    killed(database_url, tmp_path, does="feed", commit=commit, point=point)
    with adb.connect(database_url) as db:
        of = opened(db)
        db.recover()
        is_taken = (commit, point) != (1, "before commit")
        assert (of.run.due() != ()) == is_taken
        of.run.resume()
        if not is_taken:
            assert of.run.feed("a", FED) == "a#1"
        db.wait_idle()
        assert of.written() == COUNTED
        assert set(of.states().values()) == {"whole"}
        assert of.run.due() == ()
        assert db.admin.pending_firings() == []


@pytest.mark.crash
@pytest.mark.parametrize("point", ["before flush", "inside flush", "before commit", "after commit"])
def test_compensation_is_done_once_and_whole_when_the_process_is_killed(
    database_url: str, tmp_path: Path, point: str
) -> None:
    killed(database_url, tmp_path, does="compensate", commit=1, point=point)
    with adb.connect(database_url) as db:
        of = opened(db)
        if point == "after commit":
            with pytest.raises(AlreadyCompensated):
                of.run.compensate("a#1")
        else:
            assert of.written() == COUNTED
            assert of.states()["a#1"] == "whole"
            of.run.compensate("a#1")
        assert of.written() == [text for text in COUNTED if text.startswith("counted")]
        assert of.states()["a#1"] == "dropped"
        assert of.executed() == []
