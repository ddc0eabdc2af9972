"""Leases: locks by which processes that share pending firings know which of them are alive.

A lease is an advisory lock of a server session, so it ends with its process, however that ends, and
with its connection. Until then no other process touches the firings held under the lease.

Losing a lease without the process, because the connection was lost, endangers nothing: other
processes take over the firings, and the transaction of a firing marks it done, which succeeds only
once. At worst a rule is run in vain.
"""

from __future__ import annotations

import secrets
import select
from collections.abc import Collection
from contextlib import suppress

import psycopg
from sqlalchemy import ARRAY, BigInteger, Connection, Engine, bindparam, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from activedb.store.server import PatientLatch, translate_errors

__all__ = ["Lease", "NoLease"]

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
            if connection is None or not self._is_held or _has_news(connection):
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


def _has_news(connection: Connection) -> bool:
    """Return whether data or a hang-up has arrived on the connection since the last statement.

    This does not ask the server: an idle connection receives nothing unless it is lost.
    """
    driver: psycopg.Connection = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        ear = select.poll()
        ear.register(driver.fileno(), select.POLLIN)
        return bool(ear.poll(0))
    except psycopg.Error:
        return True
