"""Spark, the whole process or Postgres killed in each phase of a batch: each event counts once."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Client, Listener
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]
import pytest
from sqlalchemy import create_engine, text

from tests.histories.processes import REPOSITORY
from tests.mortal import Mortal
from tests.servers import temporary_folder
from tests.store.server_users import wait_until

pytest.importorskip("pyspark", reason="no Spark")

from tests.end_to_end.phases_job import PHASES, TABLES, write_input  # once it can be

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.spark, pytest.mark.crash]

Contents = dict[str, list[tuple[Any, ...]]]
Place = tuple[str, int]  # phase and batch
Kill = tuple[str, Place]
_ENDED = ("ended", 0)

SEEN = {
    **{table: f"SELECT * FROM {table}" for table in TABLES},
    "ledger": "SELECT batch_id, part, sequence, punctuation_us, complete, events, late, dead "
    "FROM activedb_ledger",
    "late": "SELECT batch_id, position, us, event_id, type FROM activedb_late_events",
    "letters": "SELECT source, identity, kind, error, reason FROM activedb_dead_letters",
    "pending": "SELECT firing FROM activedb_pending_firings",
    "waiting": "SELECT us, event_id FROM activedb_stream_events",
}


class Program:
    """The program, and its places one after the other."""

    def __init__(self, folder: Path, url: str, again: str):
        address = f"\0activedb-{secrets.token_hex(8)}"  # a name, no file
        self._listener = Listener(address)
        given = {"url": url, "again": again, "folder": str(folder), "points": address}
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.end_to_end.phases_job", json.dumps(given)],
                cwd=REPOSITORY,
                env={k: v for k, v in os.environ.items() if not k.startswith("ACTIVEDB_")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        threading.Thread(target=self._watch, args=(address,), daemon=True).start()

    def _watch(self, address: str) -> None:
        self.process.wait()
        with Client(address) as listener:
            listener.send(_ENDED)

    def places(self) -> Iterator[tuple[Place, Callable[[str], None]]]:
        """Yield its current phase, and a function that lets it go on; until it has ended."""
        with self._listener as listener:
            while True:
                with listener.accept() as connection:
                    place = connection.recv()
                    if place == _ENDED:
                        break
                    yield place, connection.send
        assert self.process.returncode in (0, -signal.SIGKILL), self._log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def kill_spark(self) -> None:
        (jvm,) = (p for p in psutil.Process(self.process.pid).children() if p.name() == "java")
        jvm.kill()
        wait_until(lambda: has_ended(jvm))


def has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)  # until its parent looks
    except psutil.NoSuchProcess:
        return True


def drawn_plan(seed: int, *, whole: bool) -> list[Kill]:
    """Postgres is killed in each phase; so are, in turns, the process and Spark, or both.

    Each place is in a batch of its own, but for what comes before the first.
    """
    plan: list[Kill] = []
    for number, phase in enumerate(PHASES):
        ending = ("process", "spark") if whole else (("process", "spark")[(seed + number) % 2],)
        for victim in (*ending, "postgres"):
            batch = 0 if phase == "started" else len(plan)
            plan.append((victim, (phase, batch)))
    return plan


def contents(url: str) -> Contents:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return {
                name: sorted(tuple(row) for row in connection.execute(text(statement)))
                for name, statement in SEEN.items()
            }
    finally:
        engine.dispose()


@pytest.fixture
def mortal() -> Iterator[Mortal]:
    with temporary_folder() as folder:
        server = Mortal(folder)
        yield server
        server.close()


def test_all_are_killed_in_each_phase_of_a_batch_and_each_event_counts_once(
    mortal: Mortal, tmp_path: Path, scale: int
) -> None:
    left = plan = drawn_plan(int(os.environ["ACTIVEDB_TEST_SEED"]), whole=scale > 1)
    write_input(tmp_path / "input", batches=len(plan) + 1)
    url, again = mortal.database(), mortal.database()
    kills: dict[str, Callable[[Program], None]] = {
        "process": Program.kill,
        "spark": Program.kill_spark,
        "postgres": lambda program: mortal.restart(),
    }
    failures = []
    while left:
        program = Program(tmp_path, url, again)
        for place, answer in program.places():
            if place[0].startswith("failed"):
                failures.append(place[0])
                assert len(failures) <= len(plan), f"it fails again and again: {place[0]}"
            if left and place == left[0][1]:
                kills[left[0][0]](program)
                left = left[1:]
            with suppress(OSError):  # it may be gone
                answer("watch" if any(p == "evaluating" for _, (p, _) in left) else "go")
        assert program.process.returncode != 0 or not left, f"it was never at {left[0]}"
    assert len(failures) == [victim for victim, _ in plan].count("spark")
    assert all("Java process ended unexpectedly" in said for said in failures)
    found, expected = contents(url), contents(again)
    for name, rows in expected.items():
        assert found[name] == rows, name
    # So that this says something:
    assert {times for _, times in found["effects"]} == {1}
    assert all(found[name] for name in SEEN if name not in ("pending", "waiting"))
