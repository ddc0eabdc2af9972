"""Leases: how processes that share the pending firings know of each other who lives.

A lease is an advisory lock of one session of the server, so it ends with its process, however that
ends, and with its connection. What a process holds under its lease nobody else touches before that.

A lease that was lost without the process (its connection was) endangers nothing: others take over
the firings, and the transaction of a firing marks it done, which only one of them can. It only
means that a rule is run in vain.
"""

from __future__ import annotations

import secrets
import select
from collections.abc import Collection
from contextlib import suppress

import psycopg
from sqlalchemy import ARRAY, BigInteger, Connection, Engine, bindparam, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from activedb.store.server import PatientLatch, translated

__all__ = ["Lease", "NoLease"]

_TAKE = text("SELECT pg_try_advisory_lock(:number)")  # once more on the same session is no matter
_GIVE_UP = text("SELECT pg_advisory_unlock_all()")
# Shared, so that those who ask at the same time get one answer; and until the transaction ends, so
# that the lease does not come back to life while its firings are taken over.
_DEAD = text(
    "SELECT number FROM unnest(:numbers) AS number WHERE pg_try_advisory_xact_lock_shared(number)"
).bindparams(bindparam("numbers", type_=ARRAY(BigInteger)))


class Lease:
    """The lease of one database object.

    Parameters
    ----------
    locks : sqlalchemy.Engine
        For the one connection that has the lock; each of its statements commits by itself.

    Attributes
    ----------
    number : int
        By which others know it; random, of 62 bits.

    Latch: ``_latch``, held while the server is asked, with nothing else taken under it.
    """

    def __init__(self, locks: Engine):
        self.number = secrets.randbelow(2**62 - 1) + 1
        self._locks = locks
        self._latch = PatientLatch()
        self._connection: Connection | None = None
        self._is_held = False
        self._is_closed = False

    def take(self) -> int:
        """Have the lease, from the first call on; returns its number.

        Later calls ask the server only if something has arrived on the connection, as when it was
        lost. Then the lease is taken again, unless the server still takes the lost connection for
        alive: the next call tries again.

        Raises
        ------
        ConnectionLost
            If there is no connection to be had.
        """
        with self._latch:
            connection = self._connection
            if connection is None or not self._is_held or _has_news(connection):
                with translated("take the lease of this process"):
                    self._take()
        return self.number

    def dead(self, connection: Connection, numbers: Collection[int]) -> set[int]:
        """Those of other leases that nobody has; nobody can have them before the commit.

        One round trip; never our own.
        """
        others = sorted(set(numbers) - {self.number})
        if not others:
            return set()
        return set(connection.execute(_DEAD, {"numbers": others}).scalars())

    def close(self) -> None:
        """Give it up; what is held under it is free from now on."""
        with self._latch:
            self._is_closed = True
            if self._connection is not None:
                with suppress(SQLAlchemyError):  # lost, and the lease with it
                    self._connection.execute(_GIVE_UP)
                self._connection.close()
                self._connection = None

    def _take(self) -> None:
        """REQUIRES: the latch."""
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
                self._connection.invalidate()  # back in the pool it would keep the lock
                self._connection.close()
                self._connection = None
                if is_last or not error.connection_invalidated:
                    raise


class NoLease:
    """The same where there is no other process: it never dies."""

    def __init__(self) -> None:
        self.number = secrets.randbelow(2**62 - 1) + 1

    def take(self) -> int:
        """Its number."""
        return self.number

    def dead(self, connection: Connection, numbers: Collection[int]) -> set[int]:
        """Nobody else: there is no other process."""
        return set()

    def close(self) -> None:
        """Nothing to give up."""


def _has_news(connection: Connection) -> bool:
    """Whether the server has said something, or the connection has ended, since the last statement.

    It tells without asking the server: an idle connection hears nothing unless it is lost.
    """
    driver: psycopg.Connection = connection.connection.driver_connection  # type: ignore[assignment]
    try:
        ear = select.poll()
        ear.register(driver.fileno(), select.POLLIN)
        return bool(ear.poll(0))
    except psycopg.Error:
        return True
