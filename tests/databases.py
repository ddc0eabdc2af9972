"""Databases opened by tests, and threads that a test can wait for without hanging."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import activedb as adb
from lockmgr import LockManager, VerifyingLockTable
from tests import schemas
from tests.patience import PATIENCE_S as PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")
LOCK_TIMEOUT_MS = round(2_000 * PATIENCE_S)
"""Longer than any test waits: who stalls until this is over is found out."""


class Opens(Protocol):
    """Somewhere to open databases."""

    def open(self, **settings: Any) -> adb.Database:
        """Open a database."""
        ...


class Place:
    """Somewhere to open databases: memory, or one schema of its own on a server."""

    def __init__(self, server_url: str | None):
        self.is_memory = server_url is None
        self._url = "memory://" if server_url is None else server_url
        self._schema = None if server_url is None else schemas.take(server_url)
        self._opened: list[adb.Database] = []

    def open(self, **settings: Any) -> adb.Database:
        """Open the place once more; on Postgres all databases opened here share their rows."""
        chosen = {"lock_timeout_ms": LOCK_TIMEOUT_MS, **settings}
        db = adb.connect(self._url, db_schema=self._schema, **chosen)
        used = db._forest.settings
        table = VerifyingLockTable(used.victim_policy, used.lock_escalation)
        db._forest.locks = LockManager(table)
        self._opened.append(db)
        return db

    def another(self) -> contextlib.AbstractContextManager[Place]:
        """Another place of this kind, for what has to begin with nothing."""
        return place(None if self.is_memory else self._url)

    def close(self) -> None:
        """Close what was opened; a database that cannot be closed fails the test."""
        for db in self._opened:
            in_thread(db.close).result(PATIENCE_S)
        if self._schema is not None:
            schemas.give_back(self._url, self._schema)


@contextlib.contextmanager
def place(server_url: str | None) -> Iterator[Place]:
    """Yield a place for databases; server_url None means memory."""
    where = Place(server_url)
    try:
        yield where
    finally:
        where.close()


def in_thread(function: Callable[..., T], *args: Any) -> Future[T]:
    """Call `function` on a daemon thread of its own."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    _started.append(thread)
    return future


_started: list[threading.Thread] = []


def join_threads() -> None:
    """Wait for the threads that `in_thread` has started, so that none runs beside other tests."""
    while _started:
        thread = _started.pop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), f"{thread.name} outlives its test"


def until(reached: Callable[[], Any]) -> None:
    """Wait for a state that another thread brings about."""
    deadline = time.monotonic() + PATIENCE_S
    pause = threading.Event()
    while not reached():
        assert time.monotonic() < deadline, "the awaited state was never reached"
        pause.wait(0.002)


def set_when(reached: Callable[[], Any], event: threading.Event) -> None:
    """Wait for a state that another thread brings about, or until the event is set; set it."""
    until(lambda: event.is_set() or reached())
    event.set()


def lock_waits(db: adb.Database) -> int:
    """Return how many lock requests of a database have had to wait so far."""
    return db._forest.locks.counters.waits


def waits_at_the_server(db: adb.Database) -> bool:
    """Return whether a transaction waits for another one at the server of a database."""
    return any(backend.blockers for backend in db._store.backends())
