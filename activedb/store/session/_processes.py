"""Relations to other processes: leases on firings, wake-ups of workers, and waits at the server.

A lease is an advisory lock of a server session, so it ends with its process, however that ends, and
with its connection. Until then no other process touches the firings held under the lease.

Losing a lease without the process, because the connection was lost, endangers nothing: other
processes take over the firings, and the transaction of a firing marks it done, which succeeds only
once. At worst a rule is run in vain.
"""

from __future__ import annotations

import secrets
import select
import socket
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
from sqlalchemy import ARRAY, BigInteger, Connection, Engine, bindparam, func, text
from sqlalchemy import select as select_of
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from activedb.store.server import PatientLatch, translate_errors
from activedb.store.sql import guard_number

__all__ = [
    "Backend",
    "Lease",
    "NoLease",
    "Wakeups",
    "backends",
    "has_news",
    "publish",
    "send_wakeup",
]


_CHANNEL_MAX = 63  # bytes of an identifier at the server
_SOCKET = "activedb socket"


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
        connection.invalidate()  # in the pool it would continue to listen
        connection.close()


def _channel(schema: str) -> str:
    name = f"activedb_{schema}"
    if '"' in name or len(name.encode()) > _CHANNEL_MAX:
        return f"activedb_{guard_number(schema)}"
    return name


# -- wait-for relations at the server, and the waits that other processes publish ------------------


_APPLICATION = "activedb"
_WAITS = f"{_APPLICATION} waits for "

# Of other roles' processes, an ordinary role sees only the name and the locks.
_BACKENDS = text(
    """
    SELECT a.pid, coalesce(a.application_name, ''), a.xact_start, a.state_change,
           CASE WHEN a.pid = ANY(waiting.pids) THEN pg_blocking_pids(a.pid) ELSE '{}' END
    FROM pg_stat_activity AS a,
         (SELECT array_agg(pid) AS pids FROM pg_locks WHERE NOT granted) AS waiting
    WHERE a.datname = current_database()
      AND (a.xact_start IS NOT NULL
           OR a.state IS NULL AND a.pid IN (SELECT pid FROM pg_locks WHERE granted))
    """
)
_PUBLISH = text("SELECT set_config('application_name', :said, true)")
_SAID_MAX = 63  # bytes that the server stores
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Backend:
    """Server process that is in a transaction.

    Attributes
    ----------
    number : int
        Its process id.
    is_ours : bool
        True if its client is an activedb process, this or another one.
    began : datetime
        Start of its transaction; the earliest possible time if this role may not see it.
    blockers : tuple of int
        Processes it waits for at the server.
    waits_for : tuple of int
        Processes for which its client waits on the client side, as far as published.
    """

    number: int
    is_ours: bool
    began: datetime
    blockers: tuple[int, ...]
    waits_for: tuple[int, ...]


def backends(connection: Connection) -> list[Backend]:
    """Return the processes of this database that are in a transaction; one round trip."""
    rows = connection.execute(_BACKENDS).all()
    began_of = {number: began or _LONG_AGO for number, _, began, _, _ in rows}
    found = []
    for number, name, _, changed, blockers in rows:
        said = name.removeprefix(_WAITS) if name.startswith(_WAITS) else ""
        others = [int(part) for part in said.split(",") if part.strip().isdecimal()]
        # A process that began after this one's last activity cannot be the one it published.
        waits_for = [o for o in others if not changed or began_of.get(o, _LONG_AGO) <= changed]
        is_ours = name.startswith(_APPLICATION)
        found.append(Backend(number, is_ours, began_of[number], tuple(blockers), tuple(waits_for)))
    return found


def publish(connection: Connection, waits_for: Iterable[int]) -> None:
    """Publish, until the transaction on `connection` ends, the processes its client waits for.

    The list is truncated to what fits.
    """
    said = _WAITS
    for number in sorted(waits_for):
        more = f"{number}" if said == _WAITS else f",{number}"
        if len(said) + len(more) > _SAID_MAX:
            break
        said += more
    connection.execute(_PUBLISH, {"said": said if said != _WAITS else _APPLICATION})


# -- leases: locks by which processes that share pending firings know which of them are alive ------


_TAKE = text("SELECT pg_try_advisory_lock(:number)")  # taking it twice in a session is harmless
_GIVE_UP = text("SELECT pg_advisory_unlock_all()")
# Shared, so that concurrent processes get the same answer; held until the transaction ends, so
# that the lease cannot be taken again while its firings are taken over.
_DEAD = text(
    "SELECT number FROM unnest(:numbers) AS number WHERE pg_try_advisory_xact_lock_shared(number)"
).bindparams(bindparam("numbers", type_=ARRAY(BigInteger)))


class Lease:
    """Lease of one database object.

    Parameters
    ----------
    locks : sqlalchemy.Engine
        Engine for the one connection that holds the lock; in autocommit mode.

    Attributes
    ----------
    number : int
        Identifies the lease to other processes; random, of 62 bits.

    Latch: ``_latch``, held during requests to the server; no other latch is taken under it.
    """

    def __init__(self, locks: Engine):
        self.number = secrets.randbelow(2**62 - 1) + 1
        self._locks = locks
        self._latch = PatientLatch()
        self._connection: Connection | None = None
        self._is_held = False
        self._is_closed = False

    def take(self) -> int:
        """Take the lease if it is not held yet; return its number.

        Later calls ask the server only if something has arrived on the connection, as when it was
        lost. Then the lease is taken again, unless the server still considers the lost connection
        alive; in that case the next call tries again.

        Raises
        ------
        ConnectionLost
            If no connection can be opened.
        """
        with self._latch:
            connection = self._connection
            if connection is None or not self._is_held or has_news(connection):
                with translate_errors("take the lease of this process"):
                    self._take()
        return self.number

    def dead(self, connection: Connection, numbers: Collection[int]) -> set[int]:
        """Return the leases that no process holds; none can be taken again before the commit.

        One round trip; never includes this process's own.
        """
        others = sorted(set(numbers) - {self.number})
        if not others:
            return set()
        return set(connection.execute(_DEAD, {"numbers": others}).scalars())

    def close(self) -> None:
        """Release the lease; other processes may then claim the firings held under it."""
        with self._latch:
            self._is_closed = True
            if self._connection is not None:
                with suppress(SQLAlchemyError):  # lost, and the lease with it
                    self._connection.execute(_GIVE_UP)
                self._connection.close()
                self._connection = None

    def _take(self) -> None:
        """Take the lock, with one more try on a new connection. REQUIRES: the latch."""
        for is_last in (False, True):
            if self._is_closed:
                return
            if self._connection is None:
                self._connection = self._locks.connect()
            try:
                self._is_held = bool(self._connection.scalar(_TAKE, {"number": self.number}))
                return
            except DBAPIError as error:
                self._is_held = False
                self._connection.invalidate()  # in the pool it would keep holding the lock
                self._connection.close()
                self._connection = None
                if is_last or not error.connection_invalidated:
                    raise


class NoLease:
    """Lease where there is no other process: it never dies."""

    def __init__(self) -> None:
        self.number = secrets.randbelow(2**62 - 1) + 1

    def take(self) -> int:
        """Return the number of the lease."""
        return self.number

    def dead(self, connection: Connection, numbers: Collection[int]) -> set[int]:
        """Return the empty set: there is no other process."""
        return set()

    def close(self) -> None:
        """Do nothing: no lock is held."""


def has_news(connection: Connection) -> bool:
    """Return whether data or a hang-up has arrived on the connection since the last statement.

    This does not ask the server: an idle connection receives nothing unless it is lost. Each read
    of a table comes here, so the poll object is kept. REQUIRES: no other thread is in here with
    the same connection.
    """
    known = connection.info.get(_SOCKET)
    if known is None:
        driver: Any = connection.connection.driver_connection
        if driver.closed:
            return True
        poll = select.poll()
        poll.register(driver.fileno(), select.POLLIN)
        known = connection.info[_SOCKET] = driver, poll.poll
    driver, ready = known
    return driver.closed or bool(ready(0))
