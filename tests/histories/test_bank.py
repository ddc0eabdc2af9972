"""A bank that is never off by a cent: deadlocks, aborts, kills, several processes."""

from __future__ import annotations

import contextlib
import os
import random
from collections import Counter
from typing import TYPE_CHECKING, get_args

import pytest
from sqlalchemy import text

import activedb as adb
from activedb.config import Isolation
from tests.histories import teller
from tests.histories.processes import Server, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from sqlalchemy import Connection

    from tests.databases import Place


def found(connection: Connection) -> tuple[dict[int, int], list[str]]:
    """Balances and notes as a plain connection sees them."""
    balances = connection.execute(text("SELECT id, balance FROM accounts"))
    notes = connection.execute(text("SELECT text FROM notes"))
    return {row.id: row.balance for row in balances}, [note for (note,) in notes]


def judge(lines: Iterable[str], there: tuple[dict[int, int], list[str]], seed: int) -> None:
    """Every balance is what the notes say, and the notes are what was reported."""
    balances, notes = there
    said: dict[str, set[str]] = {}
    for line in lines:
        what, _, name = line.partition(" ")
        said.setdefault(what, set()).add(name)
    assert said.get("off", set()) == set(), seed
    assert said.get("sum"), "nobody has looked at the sum"
    expected = Counter(dict.fromkeys(range(teller.ACCOUNTS), teller.BALANCE))
    names = []
    for note in notes:
        name, source, target, amount = note.split()
        names.append(name)
        expected[int(source)] -= int(amount)
        expected[int(target)] += int(amount)
    assert len(set(names)) == len(names), f"a transfer was made twice, seed {seed}"
    assert said["done"] <= set(names), f"a transfer that was reported is not there, seed {seed}"
    assert not said.get("failed", set()) & set(names), f"one that failed is there, seed {seed}"
    assert set(names) <= said["try"], seed
    assert balances == expected, seed
    assert sum(balances.values()) == teller.TOTAL, seed


def seed_of(test: str) -> int:
    seed = random.Random(f"{os.environ['ACTIVEDB_TEST_SEED']} {test}").randrange(10**6)
    print(f"seed {seed}")
    return seed


@pytest.mark.long
@pytest.mark.parametrize("isolation", get_args(Isolation))
def test_bank_of_threads_is_never_off_by_a_cent(where: Place, isolation: str, scale: int) -> None:
    if where.is_memory and isolation != "locks":
        pytest.skip("in memory there are locks only")
    seed = seed_of(f"threads {isolation}")
    bank = teller.opened(where.open(isolation=isolation))
    lines: list[str] = []
    teller.work(bank, lines.append, "p", seed, 25 * scale)
    with bank.db._store.short() as connection:
        judge(lines, found(connection), seed)
    assert bank.db.admin.counters()["transactions_committed"] > 0


@pytest.mark.crash
@pytest.mark.parametrize("isolation", get_args(Isolation))
def test_bank_of_processes_that_are_killed_is_never_off_by_a_cent(
    database_url: str, isolation: str, tmp_path: Path, scale: int
) -> None:
    seed = seed_of(f"processes {isolation}")
    server = Server(database_url)
    server.find_deadlocks_quickly()
    with adb.connect(database_url) as db:
        teller.opened(db)
    chance = random.Random(seed)
    with contextlib.ExitStack() as stack:
        workers = []
        for number, name in enumerate("pqr"):
            task = {"url": database_url, "name": name, "seed": seed + 10 * number}
            task |= {"isolation": isolation, "transfers": 8 * scale}
            worker = Worker("tests.histories.teller", task, tmp_path / f"{name}.log")
            workers.append(stack.enter_context(worker))
        for worker in workers:
            worker.wait_ready()
        for worker in workers:
            worker.go()
        for worker in workers[:2]:
            worker.kill_after(chance.randrange(5, 16) * scale)
        workers[2].finish()
        lines = [line for worker in workers for line in worker.lines()]
    server.wait_idle()
    judge(lines, server.look(found), seed)
