"""SIGKILL at each point of each commit, in each coupling mode: nothing twice or forgotten."""

from __future__ import annotations

import itertools
import signal
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from coupling import Coupling
from tests.databases import PATIENCE_S, until
from tests.firing.early_kill_program import Chain
from tests.firing.kill_program import define
from tests.firing.working import working
from tests.histories.processes import Server, Worker
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POINTS = ("before flush", "inside flush", "before commit", "after commit")
IN_THE_CHILD = "during a child's commit"


def places() -> list[tuple[Coupling, bool, str, str]]:
    """Every mode, whether the triggering transaction aborts, whose commit, and the point."""
    found = []
    for mode in Coupling:
        points = (IN_THE_CHILD, *POINTS) if mode.is_child else POINTS
        found += [(mode, False, "trigger", point) for point in points]
        if not mode.is_child:
            aborts = mode is Coupling.EXCLUSIVE
            found += [(mode, aborts, "rule", point) for point in POINTS]
    return found


def chains() -> Iterator[tuple[str, ...]]:
    """Cases: where firings run, what the work is, the way to the rule, its end, what is first.

    Firings of batches, and of programs, are queued only once these have committed, and causal rules
    of programs begin then. What only a program triggers is not recorded before.
    """
    kinds = [("here", kind) for kind in ("application", "firing", "batch", "workflow")]
    kinds += [("queue", kind) for kind in ("application", "firing")]
    for first in [("running", "work"), ("running", "rule"), ("done", "")]:
        for kind, way in itertools.product(kinds, ("direct", "causal")):
            yield (*kind, way, *first)
        if first != ("running", "rule"):
            yield ("here", "program", "direct", *first)


def run_until_killed(module: str, task: dict[str, Any], folder: Path) -> None:
    """Run a program until it is killed, and wait until the server has ended its transactions."""
    with Worker(module, task, folder / "log") as worker:
        worker.wait_ready()
        worker.go()
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
    Server(task["url"]).wait_idle()


@pytest.mark.crash
@pytest.mark.parametrize(("mode", "aborts", "at", "point"), places())
def test_rule_takes_effect_as_its_mode_says_when_the_process_is_killed(
    database_url: str, tmp_path: Path, mode: Coupling, aborts: bool, at: str, point: str
) -> None:
    task = {"url": database_url, "coupling": mode, "aborts": aborts, "at": at, "point": point}
    run_until_killed("tests.firing.kill_program", task, tmp_path)
    with adb.connect(database_url) as db:
        ledger = open_ledger(db)
        define(ledger, mode)
        db.recover()
        db.wait_idle()
        has_committed = ledger.balances() == {1: 11}
        if at == "trigger":
            assert has_committed == (point == "after commit")
        elif mode is not Coupling.DETACHED:  # beside which the triggering one goes on
            assert has_committed == (not aborts)
        is_due = {Coupling.DETACHED: True, Coupling.EXCLUSIVE: not has_committed}
        expected = ["account 1 has 11"] if is_due.get(mode, has_committed) else []
        assert ledger.lines() == expected
        assert ledger.pending() == []
        assert ledger.letters() == []
        assert db.recover() == 0


@pytest.mark.crash
@pytest.mark.parametrize(("firings", "kind", "way", "at", "first"), list(chains()))
def test_detached_rule_of_unfinished_work_runs_once_and_leaves_no_row(
    database_url: str, tmp_path: Path, firings: str, kind: str, way: str, at: str, first: str
) -> None:
    task = {"url": database_url, "firings": firings, "kind": kind, "way": way, "at": at}
    run_until_killed("tests.firing.early_kill_program", task, tmp_path)
    with adb.connect(database_url, firings=firings, threads=8) as db:
        ledger = open_ledger(db)
        chain = Chain(ledger, kind, way, first="" if kind == "application" else first)
        with working(db, poll_s=0.1):
            db.recover()
            if kind in ("batch", "program", "workflow"):
                if first == "rule":
                    until(lambda: ledger.lines() == ["beside"])
                chain.begin()

            until(lambda: all(row["done"] for row in ledger.pending()))
            db.wait_idle()
        db.recover()
        assert sorted(ledger.lines()) == chain.expected()
        assert [(row["firing"], row["run"], row["done"]) for row in ledger.pending()] == []


def test_worker_forgets_what_a_dead_process_had_done(database_url: str, tmp_path: Path) -> None:
    task = {
        "url": database_url,
        "firings": "queue",
        "kind": "application",
        "way": "causal",
        "at": "done",
    }
    run_until_killed("tests.firing.early_kill_program", task, tmp_path)
    with adb.connect(database_url, firings="queue") as db:
        ledger = open_ledger(db)
        Chain(ledger, "application", "causal")
        assert [row["done"] for row in ledger.pending()] == [True]
        with working(db, poll_s=0.1):
            until(lambda: ledger.pending() == [])
