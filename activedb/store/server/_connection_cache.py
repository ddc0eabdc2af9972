"""Connection cache: connections that stay open from one flat transaction to the next."""

from __future__ import annotations

import threading
import time
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from activedb.store.server._prepared import prepare_on

__all__ = ["ConnectionCache"]

_IDLE_S_MAX = 1.0


class ConnectionCache:
    """Cache of an engine's SQLAlchemy connections, kept open after use.

    A pool's checkout, reset and checkin take a twentieth of a small transaction's time. So the
    pool only opens connections and limits their number.

    Latches: its own, held briefly; no other latch is taken under it.
    """

    def __init__(self, engine: Engine, kept_max: int, *, prepares: bool = True):
        self._engine = engine
        self._prepares = prepares
        self._kept_max = kept_max
        self._latch = threading.Lock()
        self._kept: list[tuple[Connection, float]] = []
        self._waiting = 0
        self._taken = 0

    def take(self) -> Connection:
        """Return a cached or new connection; one that was idle for a second is pinged first."""
        connection = self._kept_or_new()
        with self._latch:
            self._taken += 1
        return connection

    def _kept_or_new(self) -> Connection:
        while True:
            with self._latch:
                if self._kept:
                    connection, since_s = self._kept.pop()
                else:
                    self._waiting += 1
                    break
            if time.monotonic() - since_s < _IDLE_S_MAX or self._answers(connection):
                return connection
            _drop(connection)
        try:
            connection = self._engine.connect()
        finally:
            with self._latch:
                self._waiting -= 1
        if self._prepares:
            prepare_on(connection, self._is_one_taken)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Roll back uncommitted changes and cache the connection, if it is still alive."""
        with self._latch:
            self._taken -= 1
        try:
            if connection.in_transaction():
                connection.rollback()
            if connection.invalidated or connection.closed:
                connection.close()
                return
            driver: Any = connection.connection.driver_connection
            if driver.pgconn.transaction_status != TransactionStatus.IDLE:
                driver.rollback()
        except (DBAPIError, psycopg.Error):
            _drop(connection)
            return
        with self._latch:
            # A thread that waits for the pool does not see cached connections.
            if not self._waiting and len(self._kept) < self._kept_max:
                self._kept.append((connection, time.monotonic()))
                return
        connection.close()

    def drop(self) -> None:
        """Close every cached connection."""
        with self._latch:
            kept, self._kept = self._kept, []
        for connection, _ in kept:
            _drop(connection)

    def close(self) -> None:
        """Close all connections, cached here or in the pool beneath, and cache no more."""
        with self._latch:
            self._kept_max = 0
        self.drop()
        self._engine.dispose()

    def _is_one_taken(self) -> bool:
        return self._taken == 1

    def _answers(self, connection: Connection) -> bool:
        dialect = self._engine.dialect
        try:
            return dialect.do_ping(connection.connection.dbapi_connection)  # type: ignore[arg-type]
        except psycopg.Error:
            return False


def _drop(connection: Connection) -> None:
    connection.invalidate()
    connection.close()
