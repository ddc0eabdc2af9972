"""Histories of threads of one process, on memory and on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest

from activedb.config import Isolation
from tests.databases import in_thread
from tests.drawing import Worlds
from tests.histories.elle import check
from tests.histories.history import History, Recorder, parsed
from tests.histories.lists import KINDS, LISTS
from tests.histories.workload import Client
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    import activedb as adb
    from tests.databases import Place

THREADS = 4
TRANSACTIONS = 18


def run_history(db: adb.Database, kind: str, seed: int, transactions: int) -> History:
    """Run random programs on several threads; return what they saw, and what remained."""
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
        worker.result(PATIENCE_S)
    with db._store.short() as connection:
        final = lists.found(connection)
    return History.of(parsed(lines), final)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("isolation", get_args(Isolation))
def test_history_of_threads_is_serializable_at_every_level(
    where: Place, isolation: str, kind: str, scale: int
) -> None:
    if where.is_memory and isolation != "locks":
        pytest.skip("in memory there are locks only")
    # How many commit is up to the threads: there are more histories until enough have.
    committed = round(0.4 * THREADS * TRANSACTIONS * scale)
    worlds = Worlds(1, isolation, kind, committed=committed, committed_inside=1, aborted_inside=1)
    for chance in worlds:
        seed = chance.randrange(10**6)
        print(f"seed {seed}")
        with where.another() as elsewhere:
            history = run_history(
                elsewhere.open(isolation=isolation), kind, seed, TRANSACTIONS * scale
            )
        assert check(history) == []
        for node in history.nodes.values():
            inside = "" if node.parent is None else "_inside"
            worlds.met[f"{node.outcome.name.lower()}{inside}"] += 1
