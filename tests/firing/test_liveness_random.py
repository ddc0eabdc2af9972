"""Every recorded firing ends, whatever is in its way, and is done once: drawn worlds."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

import activedb as adb
from tests.databases import LOCK_TIMEOUT_MS, PATIENCE_S, in_thread, until
from tests.drawing import drawn
from tests.firing.contended import SETTINGS, Contended, Killer
from tests.firing.working import working
from tests.histories.processes import Server, Worker
from tests.ledger import open_ledger

if TYPE_CHECKING:
    from pathlib import Path

    from tests.databases import Place

WORKS = 24


def settle(contended: Contended) -> None:
    """Wait for what was recorded, and look at what has come of it."""
    in_thread(contended.ledger.db.wait_idle).result(PATIENCE_S)
    look(contended)


def look(contended: Contended) -> None:
    assert contended.ledger.db.admin.pending_firings() == []
    contended.check()


@pytest.mark.long
@pytest.mark.parametrize("number", range(3))
def test_contended_firings_end_by_themselves_and_are_done_once(where: Place, number: int) -> None:
    chance = drawn("contended", number)
    seed = chance.randrange(2**32)
    limits = {"retries_max": chance.randint(0, 2), "restarts_max": chance.randint(1, 6)}
    contended = Contended(where.open(**SETTINGS, **limits), seed, faults=0.4)
    contended.fill()
    contended.run(WORKS)
    settle(contended)


@pytest.mark.crash
@pytest.mark.parametrize("number", range(3))
def test_firings_end_by_themselves_and_are_done_once_though_sessions_are_killed(
    database_url: str, number: int
) -> None:
    chance = drawn("killed sessions", number)
    seed = chance.randrange(2**32)
    limits: dict[str, Any] = {
        "retries_max": chance.randint(0, 5),
        "restarts_max": chance.randint(2, 8),
    }
    with adb.connect(database_url, lock_timeout_ms=LOCK_TIMEOUT_MS, **SETTINGS, **limits) as db:
        contended = Contended(db, seed, faults=0.1)
        contended.fill()
        killer = Killer(database_url, seed)
        killing = in_thread(killer.run, contended, chance.randint(3, 12), WORKS)
        contended.run(WORKS)
        killing.result(PATIENCE_S)
        assert killer.killed
        in_thread(db.wait_idle).result(PATIENCE_S)
        # By connections that were not cut: the last cut may be noticed by who looks.
        with adb.connect(database_url) as uncut:
            contended.ledger = open_ledger(uncut)
            look(contended)


@pytest.mark.crash
@pytest.mark.parametrize("by", ["recover", "work"])
def test_another_process_ends_the_firings_that_a_killed_one_has_left(
    database_url: str, tmp_path: Path, by: str
) -> None:
    chance = drawn("another process", by)
    seed = chance.randrange(2**32)
    point = chance.choice(["before flush", "inside flush", "before commit", "after commit"])
    commit = chance.randint(1, 40)
    print(f"{point} of commit {commit}")
    task = {"url": database_url, "seed": seed, "point": point, "commit": commit}
    with Worker("tests.firing.contended", task, tmp_path / "log") as worker:
        worker.wait_ready()
        worker.go()
        assert worker.process.wait(PATIENCE_S) == -signal.SIGKILL
    Server(database_url).wait_idle()
    with adb.connect(database_url, lock_timeout_ms=LOCK_TIMEOUT_MS, **SETTINGS) as db:
        contended = Contended(db, seed, faults=0.2)
        if by == "recover":
            db.recover()
            settle(contended)
        else:
            with working(db, poll_s=0.05):
                # Of intents, too, which are no pending firings before a worker has them.
                until(lambda: all(row["done"] for row in contended.ledger.pending()))
            settle(contended)
        assert db.recover() == 0
