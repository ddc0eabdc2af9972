"""Wake-ups for workers when firings become due; correctness does not depend on them."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

import psycopg
from sqlalchemy import Connection, Engine, func, text
from sqlalchemy import select as select_of
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from activedb.store.sql import guard_number

__all__ = ["Wakeups", "send_wakeup"]

_CHANNEL_MAX = 63  # bytes of an identifier at the server


def send_wakeup(connection: Connection, schema: str) -> None:
    """Wake up all listeners, when the transaction commits."""
    connection.execute(select_of(func.pg_notify(_channel(schema), "")))


class Wakeups:
    """One thread's wait for a wake-up, or for a call of `wake`.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        Engine for the connection that listens; in autocommit mode.
    schema : str
        Schema of the firings.
    """

    def __init__(self, engine: Engine, schema: str):
        self._engine = engine
        self._listen = f'LISTEN "{_channel(schema)}"'
        self._connection: Connection | None = None
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a wake-up; return False if none came in time.

        The first wait, and the first one after a lost connection, return True at once: wake-ups may
        have been missed. Without a connection only `wake` ends the wait.
        """
        driver = self._driver()
        ears = select.poll()
        ears.register(self._ear, select.POLLIN)
        if driver is not None:
            try:
                ears.register(driver.fileno(), select.POLLIN)
            except psycopg.Error:
                self._lose()
                return True
        woken = bool(ears.poll(max(0.0, timeout_s) * 1_000))
        with suppress(BlockingIOError):
            self._ear.recv(4_096)
        if driver is not None and woken:
            try:
                for _ in driver.notifies(timeout=0):
                    pass
            except psycopg.Error:
                self._lose()
        return woken

    def wake(self) -> None:
        """End the current wait, or the next one; callable from any thread."""
        with suppress(OSError):  # full: a wake-up is pending anyway; closed: no thread waits
            self._mouth.send(b"!")

    def close(self) -> None:
        """Stop listening."""
        self._lose()
        self._ear.close()
        self._mouth.close()

    def _driver(self) -> psycopg.Connection | None:
        if self._connection is None:
            connection = None
            try:
                connection = self._engine.connect()
                connection.execute(text(self._listen))
            except DBAPIError:
                if connection is not None:
                    _drop(connection)
                return None
            self._connection = connection
            self.wake()
        return self._connection.connection.driver_connection

    def _lose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            _drop(connection)


def _drop(connection: Connection) -> None:
    with suppress(SQLAlchemyError):
        connection.invalidate()  # in the pool it would go on listening
        connection.close()


def _channel(schema: str) -> str:
    name = f"activedb_{schema}"
    if '"' in name or len(name.encode()) > _CHANNEL_MAX:
        return f"activedb_{guard_number(schema)}"
    return name
