"""Processes of `benchmarks.contention`: threads that move balances between rows, in several ways.

Each transaction adds one to the balances of some rows drawn at random. At the end the balances tell
whether an addition was lost.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, LiteralString

import psycopg
from sqlalchemy import Column, Integer, Table, select

import activedb
from activedb.config import Isolation
from activedb.errors import Deadlock, LockTimeout, SerializationConflict
from activedb.transactions import Runs
from benchmarks._nested_rows import Server

__all__ = ["Load", "Rate", "contended", "ours", "peers", "rate_of"]

_RETRIES_MAX = 1_000
_READ: Mapping[str, LiteralString] = {
    "id": "SELECT balance FROM contended WHERE id = %s",
    "place": "SELECT balance FROM contended WHERE place = %s",
}
_UPDATE: LiteralString = "UPDATE contended SET balance = %s WHERE id = %s"
_AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one measurement.

    Attributes
    ----------
    way : str
        Key of `ours` or `peers`.
    processes, threads : int
        Threads in each process.
    rows : int
        Rows in the table.
    at_once : int
        Rows that one transaction changes.
    seconds : float
    by : str
        Column by which the peers read rows: ``id``, or ``place``, which has an index.
    isolation : str
        Isolation policy of our transactions.
    """

    way: str
    processes: int
    threads: int
    rows: int
    at_once: int
    seconds: float
    by: str = "id"
    isolation: Isolation = "locks"


@dataclass(frozen=True, slots=True)
class Rate:
    """Transactions per second, and the share of them that failed although they were retried."""

    per_s: float
    failed: float


Transfer = Callable[[list[int]], None]
"""Add one to the balances of rows in one transaction, retried as users would."""


def rate_of(server: Server, load: Load) -> Rate:
    """Run a load in processes of its own.

    Raises
    ------
    RuntimeError
        If a process has failed, or an addition was lost.
    """
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(load.processes + 1)
    counts = context.Queue()
    with server.connection() as connection:
        before = _sum(connection)
    members = [
        context.Process(target=_work, args=(server, load, number, ready, counts), daemon=True)
        for number in range(load.processes)
    ]
    for member in members:
        member.start()
    ready.wait(timeout=120)
    found = [counts.get(timeout=60 + 10 * load.seconds) for _ in members]
    for member in members:
        member.join()
    done = sum(each[0] for each in found)
    failed = sum(each[1] for each in found)
    with server.connection() as connection:
        added = _sum(connection) - before
    if added != done * load.at_once:
        raise RuntimeError(f"{load.way}: {done * load.at_once} additions, and {added} are there")
    return Rate(done / load.seconds, failed / max(done + failed, 1))


def contended(db: activedb.Database) -> Table:
    """Declare the table: a key, the same number under an index, and a balance."""
    return Table(
        "contended",
        db.metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("place", Integer, nullable=False, index=True),
        Column("balance", Integer, nullable=False),
    )


def _sum(connection: psycopg.Connection) -> int:
    (found,) = connection.execute("SELECT sum(balance) FROM contended").fetchall()
    connection.rollback()
    return int(found[0])


def _work(server: Server, load: Load, number: int, ready: Any, counts: Any) -> None:
    """Run the threads of one process."""
    done = [0] * load.threads
    failed = [0] * load.threads
    if load.way in ours:
        db = server.database(threads=load.threads)
        rows = contended(db)
        opened: list[Transfer] = [
            partial(_ours, db.with_isolation(load.isolation), ours[load.way], rows)
        ] * load.threads
        refused: tuple[type[Exception], ...] = (Deadlock, SerializationConflict, LockTimeout)
        close: Callable[[], object] = db.close
    else:
        connections = [server.connection() for _ in range(load.threads)]
        serializable = load.way.startswith("serializable")
        if serializable:
            for connection in connections:
                connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        read = _READ[load.by] if serializable else _READ[load.by] + " FOR UPDATE"
        opened = [partial(_plain, connection, read) for connection in connections]
        refused = _AGAIN

        def close() -> None:
            for connection in connections:
                connection.close()

    def loop(thread: int) -> None:
        random = Random(f"{number} {thread}")  # noqa: S311
        transfer = opened[thread]
        while time.monotonic() < until_s:
            keys = random.sample(range(load.rows), load.at_once)
            try:
                transfer(keys)
                done[thread] += 1
            except refused:
                failed[thread] += 1

    ready.wait(timeout=120)
    until_s = time.monotonic() + load.seconds
    threads = [threading.Thread(target=loop, args=(n,)) for n in range(load.threads)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    close()
    counts.put((sum(done), sum(failed)))


# -- ours ------------------------------------------------------------------------------------------


def _ours(runs: Runs, way: Any, rows: Table, keys: list[int]) -> None:
    runs.run(lambda t: [way(t, rows, key) for key in keys])


def _key_query(t: activedb.Transaction, rows: Table, key: int) -> None:
    (row,) = t.query(select(rows).where(rows.c.id == key))
    t.update(rows, key, balance=row.balance + 1)


def _predicate_query(t: activedb.Transaction, rows: Table, key: int) -> None:
    (row,) = t.query(select(rows).where(rows.c.place == key))
    t.update(rows, row.id, balance=row.balance + 1)


def _for_update_query(t: activedb.Transaction, rows: Table, key: int) -> None:
    (row,) = t.query(select(rows).where(rows.c.id == key).with_for_update())
    t.update(rows, key, balance=row.balance + 1)


def _shared_get(t: activedb.Transaction, rows: Table, key: int) -> None:
    row = t.get(rows, key)
    assert row is not None
    t.update(rows, key, balance=row["balance"] + 1)


def _get_for_update(t: activedb.Transaction, rows: Table, key: int) -> None:
    row = t.get(rows, key, for_update=True)
    assert row is not None
    t.update(rows, key, balance=row["balance"] + 1)


ours: Mapping[str, Callable[[activedb.Transaction, Table, int], None]] = {
    "key_query_update": _key_query,
    "predicate_query_update": _predicate_query,
    "for_update_query": _for_update_query,
    "shared_get_update": _shared_get,
    "get_for_update": _get_for_update,
}
"""Ways in which our transactions read a row before they change it."""


# -- peers -----------------------------------------------------------------------------------------

peers = ("for update", "serializable")
"""Ways of the peers, plain psycopg."""


def _plain(connection: psycopg.Connection, read: LiteralString, keys: list[int]) -> None:
    for again in range(_RETRIES_MAX + 1):
        try:
            for key in keys:
                found = connection.execute(read, (key,)).fetchone()
                assert found is not None
                connection.execute(_UPDATE, (found[0] + 1, key))
            connection.commit()
            return
        except _AGAIN:
            connection.rollback()
            if again == _RETRIES_MAX:
                raise
