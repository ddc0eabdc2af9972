"""Grounds for scenarios: in memory, on Postgres from one process, on Postgres from several.

``memory``
    The memory twin.
``postgres``
    All transactions belong to one database object, as in a program with several threads.
``apart``
    Each top-level transaction belongs to a database object of its own. They share no lock manager,
    so they meet on the server only, as the transactions of several processes do.
``serializable``
    As ``postgres``, but the server's SERIALIZABLE keeps hierarchies apart. Only for anomalies: the
    other scenarios are about locks.
"""

from __future__ import annotations

import atexit
import contextlib
import re
import threading
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from sqlalchemy import create_engine, make_url, text

from tests.databases import LOCK_TIMEOUT_MS, place
from tests.scenarios.schema import NAMES, declare
from tests.scenarios.watched import WatchedCrossing, WatchedOffers, WatchedPool

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from sqlalchemy import Table

    import activedb as adb

T = TypeVar("T")
LOCKING = ("memory", "postgres", "apart")
MODES = (*LOCKING, "serializable")
STRANDS_MAX = 64  # each holds its thread until it is told its next step
DEADLOCK_TIMEOUT_MS = 25
"""Time after which the server looks for a deadlock; its own default is a second."""

_OPTIONS = (
    f"-c deadlock_timeout={DEADLOCK_TIMEOUT_MS}ms -c log_lock_waits=on "
    "-c client_min_messages=log -c lc_messages=C"
)
"""Options with which the server tells a client that it has looked, and later that the wait is over.

The age of the wait would not show that it has: on a busy machine it looks late.
"""
_WAITS = text(
    """
    SELECT a.pid, pg_blocking_pids(a.pid),
           coalesce((SELECT clock_timestamp() - min(l.waitstart) > make_interval(secs => :age_s)
                     FROM pg_locks l WHERE l.pid = a.pid AND NOT l.granted), false)
    FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.wait_event_type = 'Lock'
    """
)


class Ground:
    """One mode, with the databases that are open there.

    Attributes
    ----------
    mode : str
        One of `MODES`.
    settings : dict
        Those of the databases that the scenario opens from now on.
    """

    def __init__(self, mode: str, server_url: str | None):
        self.mode = mode
        self.settings: dict[str, Any] = {}
        self._exit = contextlib.ExitStack()
        self._databases: dict[Any, tuple[adb.Database, dict[str, Table]]] = {}
        self._place: Any = None
        self._playing = threading.local()
        self._owners: dict[int, str] = {}
        self._looked: set[int] = set()  # backends whose present wait is in no deadlock
        self._server_url = server_url
        if server_url is not None:
            url = make_url(server_url).update_query_dict({"options": _OPTIONS})
            where = url.render_as_string(hide_password=False)
            self._place = self._exit.enter_context(place(where))
            options = f"-c search_path={self._place._schema} -c lock_timeout={LOCK_TIMEOUT_MS}"
            self._engine = create_engine(
                server_url, isolation_level="AUTOCOMMIT", connect_args={"options": options}
            )
            self._exit.callback(self._engine.dispose)
            self._connection = self._exit.enter_context(self._engine.connect())

    def close(self) -> None:
        """Close every database."""
        self._exit.close()

    def clear(self) -> None:
        """Empty the tables and start the numbering again."""
        self.settings.clear()
        if self.mode == "memory":
            self._exit.close()
            self._databases.clear()
            self._place = self._exit.enter_context(place(None))
        else:
            self.database()
            self._connection.execute(text(f"TRUNCATE {', '.join(NAMES)} RESTART IDENTITY CASCADE"))

    def database(self, top: str = "") -> tuple[adb.Database, dict[str, Table]]:
        """Return the database object for a top-level transaction, and its tables by name.

        Parameters
        ----------
        top : str
            Name of the transaction, or of one with which it shares the object.
        """
        settings = dict(self.settings)
        if self.mode == "serializable":
            settings["isolation"] = "serializable"
        key = (top if self.mode == "apart" else "", *sorted(settings.items()))
        if key not in self._databases:
            db = self._place.open(**{"threads": 12, "retries_max": 0, **settings})
            db._forest.pool = WatchedPool(STRANDS_MAX)
            db._forest.offers = WatchedOffers(lambda: db._forest.locks)
            db._forest.crossing.close()
            db._forest.crossing = WatchedCrossing(db._forest)
            tables = declare(db.metadata)
            db.create_all()
            if self.mode != "memory":
                self._watch(db._store)
            self._databases[key] = db, tables
        return self._databases[key]

    def databases(self) -> list[adb.Database]:
        """All that are open."""
        return [db for db, _ in self._databases.values()]

    def insert(self, table: str, rows: list[dict[str, Any]]) -> None:
        """Commit rows to start from."""
        db, tables = self.database()
        with db.transaction() as t:
            for row in rows:
                t.insert(tables[table], row)

    def committed(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the committed rows, by table and key, as the store has them."""
        db, tables = self.database()
        with self._reading(db) as connection:
            return {
                (name, row["id"]): dict(row)
                for name, table in tables.items()
                for row in connection.execute(table.select().order_by(table.c.id)).mappings()
            }

    @contextlib.contextmanager
    def _reading(self, db: adb.Database) -> Iterator[Any]:
        if self.mode != "memory":
            yield self._connection
        else:
            with db._store.short() as connection:
                yield connection

    # -- what the server says ----------------------------------------------------------------

    def server_waits(self) -> dict[int, set[str]]:
        """Return who waits on the server for which top-level transactions, by its backend.

        Only waits that last for ever unless a transaction ends: those in which the server has
        looked for a deadlock, and that are in none.
        """
        if self.mode == "memory":
            return {}
        looked = set(self._looked)  # before the waits, which may be new ones by then
        # Of a wait that was cancelled, the server does not say that it is over.
        age_s = DEADLOCK_TIMEOUT_MS / 1_000
        rows = self._connection.execute(_WAITS, {"age_s": age_s}).all()
        graph = {pid: set(blockers) for pid, blockers, _ in rows}
        settled = {
            pid for pid, _, old in rows if old and pid in looked and not reaches(graph, pid, pid)
        }
        return {
            pid: {self._owners.get(blocker, "somebody") for blocker in graph[pid]}
            for pid in settled
        }

    def backend_of(self, top: str) -> int | None:
        """Return the server's number of the connection that a top-level transaction has last."""
        owned = [pid for pid, owner in self._owners.items() if owner == top]
        return owned[-1] if owned else None

    @contextlib.contextmanager
    def playing(self, top: str) -> Iterator[None]:
        """Have the flat transactions which this thread opens meanwhile be those of `top`."""
        before = getattr(self._playing, "top", "somebody")
        self._playing.top = top
        try:
            yield
        finally:
            self._playing.top = before

    def _watch(self, store: Any) -> None:
        """Notice for whom each flat transaction is opened, and what the server reports on waits."""
        acquire = store.acquire
        watched: WeakSet[Any] = WeakSet()

        def hear(notice: Any) -> None:
            found = re.match(r"process (\d+) (still waiting)?", notice.message_primary or "")
            if found is not None:
                (self._looked.add if found[2] else self._looked.discard)(int(found[1]))

        def acquired(**how: Any) -> Any:
            connection = acquire(**how)
            top = getattr(self._playing, "top", "somebody")
            number = store.backend_of(connection)
            self._owners.pop(number, None)
            self._owners[number] = top  # as the last one
            self._looked.discard(number)
            driver = connection.connection.driver_connection
            if driver not in watched:
                watched.add(driver)
                driver.add_notice_handler(hear)
            return connection

        store.acquire = acquired

    def kill(self) -> None:
        """End the server's side of everything, after a scenario that failed.

        What hangs here hangs for ever; the interpreter must not wait for that when it ends.
        """
        for db in self.databases():
            atexit.unregister(db._at_exit)
        if self.mode != "memory":
            pids = list(self._owners)
            self._connection.execute(
                text("SELECT pg_terminate_backend(pid) FROM unnest(:pids) AS pid"), {"pids": pids}
            )


def reaches(graph: Mapping[T, Collection[T]], start: T, end: T) -> bool:
    """Tell whether a path of at least one edge leads from `start` to `end`."""
    seen: set[T] = set()
    ahead = list(graph.get(start, ()))
    while ahead:
        node = ahead.pop()
        if node == end:
            return True
        if node not in seen:
            seen.add(node)
            ahead += graph.get(node, ())
    return False
