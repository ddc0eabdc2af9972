"""Histories of several processes on one Postgres, one of which is killed on the way."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, get_args

import psycopg
import pytest
from sqlalchemy import Column, Integer, Table, text

import activedb as adb
from activedb.config import Isolation
from tests.databases import PATIENCE_S, in_thread, until
from tests.drawing import Worlds
from tests.histories.elle import check
from tests.histories.history import History, Outcome, Recorder, parsed
from tests.histories.lists import KINDS, LISTS, AskedLists
from tests.histories.processes import Server, Worker
from tests.histories.workload import KEYS
from tests.servers import fresh_database

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

PROCESSES = 3
TRANSACTIONS = 6  # of each of a process's two threads


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolation", get_args(Isolation))
def test_history_of_processes_one_of_which_is_killed_is_serializable(
    postgres_url: str, isolation: str, kind: str, tmp_path: Path, scale: int
) -> None:
    # How many commit is up to the processes: there are more histories until enough have.
    worlds = Worlds(1, "processes", isolation, kind, committed=8, aborted=1)
    for number, chance in enumerate(worlds):
        folder = tmp_path / str(number)
        folder.mkdir()
        with fresh_database(postgres_url) as url:
            history = run_history(url, isolation, kind, folder, chance.randrange(10**6), scale)
        assert check(history) == []
        for node in history.nodes.values():
            if node.parent is None:
                worlds.met["committed"] += node.outcome is Outcome.COMMITTED
            worlds.met["aborted"] += node.outcome is Outcome.ABORTED


def run_history(
    database_url: str, isolation: str, kind: str, folder: Path, seed: int, scale: int
) -> History:
    """Return what several processes, the first one killed, saw, and what was there at the end."""
    print(f"seed {seed}")
    server = Server(database_url)
    server.find_deadlocks_quickly()
    with adb.connect(database_url) as db:
        LISTS[kind](db)
    with contextlib.ExitStack() as stack:
        workers = []
        for number, name in enumerate("pqr"[:PROCESSES]):
            task = {"url": database_url, "kind": kind, "name": name, "number": number, "seed": seed}
            task["isolation"] = isolation
            task["transactions"] = TRANSACTIONS * scale
            worker = Worker("tests.histories.worker", task, folder / f"{name}.log")
            workers.append(stack.enter_context(worker))
        for worker in workers:
            worker.wait_ready()
        for worker in workers:
            worker.go()
        plain = None
        if kind == "asked":
            plain = in_thread(append_plainly, server, isolation, TRANSACTIONS * scale)
        killed, *others = workers
        killed.kill_after(random.Random(seed).randrange(30, 90) * scale)
        for worker in others:
            worker.finish()
        lines = [line for worker in workers for line in worker.lines()]
        if plain is not None:
            lines += plain.result(PATIENCE_S)
    server.wait_idle()
    return History.of(parsed(lines), server.look(LISTS[kind].found))


def append_plainly(server: Server, isolation: str, count: int) -> list[str]:
    """Append values as a program without activedb; return the lines that it has recorded.

    Its lock of the table keeps others from writing, and says nothing to those that have read. Where
    these leave it to the server, so must the program.
    """
    lines: list[str] = []
    recorder = Recorder(lines.append)
    alone = f"LOCK TABLE {AskedLists.TABLE} IN SHARE ROW EXCLUSIVE MODE"
    with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as connection:
        if isolation == "serializable":
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        for number in range(count):
            name, key, value = f"plain{number}", f"{KEYS[number % len(KEYS)]}0", number + 1
            recorder.begin(name, None)
            recorder.append(name, key, value)
            recorder.committing(name)
            try:
                with connection.transaction():
                    connection.execute(alone)
                    connection.execute(AskedLists.PLAIN_APPEND, {"value": value, "key": key})
                outcome = Outcome.COMMITTED
                recorder.appended(value)
            except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure):
                outcome = Outcome.ABORTED
            recorder.end(name, outcome)
    return lines


def test_absence_that_another_process_ends_is_no_error_of_the_program(database_url: str) -> None:
    """Two databases over one server act as two processes: they share no local locks."""
    server = Server(database_url)
    server.find_deadlocks_quickly()
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )

    def is_waiting() -> bool:
        return bool(server.look(lambda connection: connection.scalar(waiting)))

    with adb.connect(database_url) as one, adb.connect(database_url) as other:
        tables = {}
        for db in (one, other):
            tables[db] = [
                Table(name, db.metadata, Column("id", Integer, primary_key=True))
                for name in ("firsts", "seconds")
            ]
            db.create_all()
        others: list[Future[bool]] = []

        def make(t: adb.Transaction, db: adb.Database) -> bool:
            first, second = tables[db]
            if t.get(first, 1) is not None:
                return False
            if db is one and not others:
                others.append(in_thread(other.run, make, other))
                until(lambda: others[0].done() or is_waiting())
            t.insert(first, {"id": 1})
            t.insert(second, {"id": 1})
            return True

        made = [in_thread(one.run, make, one).result(PATIENCE_S), others[0].result(PATIENCE_S)]
        assert sorted(made) == [False, True]
