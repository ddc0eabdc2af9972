"""Histories of threads of one process, on memory and on Postgres."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.databases import in_thread
from tests.histories.elle import check
from tests.histories.history import History, Outcome, Recorder, parsed
from tests.histories.lists import KINDS, LISTS
from tests.histories.workload import Client

if TYPE_CHECKING:
    import activedb as adb
    from tests.databases import Place

THREADS = 4
TRANSACTIONS = 18


def run_history(db: adb.Database, kind: str, seed: int, transactions: int) -> History:
    """Several threads that run random programs; what they saw, and what was there at the end."""
    lines: list[str] = []
    recorder = Recorder(lines.append)
    lists = LISTS[kind](db)
    clients = [
        Client(db, lists, recorder, "pqrs"[number], (number + 1) * 1_000_000)
        for number in range(THREADS)
    ]
    workers = [
        in_thread(client.work, seed * 10 + number, transactions)
        for number, client in enumerate(clients)
    ]
    for worker in workers:
        worker.result(150)
    with db._store.short() as connection:
        final = lists.found(connection)
    return History.of(parsed(lines), final)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_history_of_threads_is_serializable_at_every_level(
    where: Place, kind: str, scale: int
) -> None:
    seed = random.Random(f"{os.environ['ACTIVEDB_TEST_SEED']} {kind}").randrange(10**6)
    print(f"seed {seed}")
    history = run_history(where.open(), kind, seed, TRANSACTIONS * scale)
    outcomes = [node.outcome for node in history.nodes.values() if node.parent is None]
    inside = [node.outcome for node in history.nodes.values() if node.parent is not None]
    assert check(history) == []
    assert outcomes.count(Outcome.COMMITTED) > 0.4 * THREADS * TRANSACTIONS * scale, seed
    assert Outcome.ABORTED in inside
    assert Outcome.COMMITTED in inside
