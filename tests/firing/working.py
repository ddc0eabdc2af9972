"""Database objects that work for others in a thread, and connections of theirs that are cut."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

import activedb as adb
from tests.databases import PATIENCE_S, in_thread, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from activedb import Occurrence, Transaction
    from tests.ledger import Ledger

FOR_EVER_S = 2 * PATIENCE_S  # between two looks, when a test is not about looking


def listen(ledger: Ledger, coupling: str = "detached", **options: Any) -> None:
    """Define a rule that writes a line."""

    @ledger.db.rule(on=adb.event("E"), coupling=coupling, name="rule", **options)
    def rule(t: Transaction, o: Occurrence) -> None:
        ledger.write(t, f"rule {o.params.get('n')}")


@contextlib.contextmanager
def working(db: adb.Database, poll_s: float = FOR_EVER_S) -> Iterator[None]:
    """Let a database object work in a thread while the block runs."""
    stop = threading.Event()
    end = in_thread(lambda: db.run_worker(stop, poll_s=poll_s))
    try:
        yield
    finally:
        stop.set()
        end.result(PATIENCE_S)


def cut(db: adb.Database, mode: str) -> None:
    """Cut the connection of a database object that listens, or that has its lease."""
    find = {
        "listens": "SELECT pid FROM pg_stat_activity WHERE query LIKE :what AND pid <> "
        "pg_backend_pid() AND datname = current_database()",
        "lease": "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND "
        "((classid::bigint << 32) | objid::bigint)::text = :what AND mode = 'ExclusiveLock'",
    }[mode]
    what = f'LISTEN "activedb_{db._store.schema}"' if mode == "listens" else None
    given = {"what": what or str(db._store.lease.number)}

    def of_connection() -> int | None:
        with db._store.short() as connection:
            pid: int | None = connection.scalar(text(find), given)
            return pid

    until(of_connection)  # who has just begun to work may not listen yet
    with db._store.short() as connection:
        cut = connection.scalar(text(find), given)
        connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": cut})

    def is_gone() -> bool:
        with db._store.short() as connection:
            query = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
            return not connection.scalar(query, {"pid": cut})

    until(is_gone)
