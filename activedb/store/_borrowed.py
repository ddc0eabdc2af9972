"""The caller's own transaction as the flat transaction beneath a hierarchy.

Statements go over the caller's SQLAlchemy connection. It is neither committed nor rolled back nor
closed here: the caller does that, and is listened to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection, TwoPhaseTransaction, event
from sqlalchemy.orm import Session as ORMSession

from activedb.errors import ConfigurationError
from activedb.store._faults import translated
from activedb.store._latch import Latch
from activedb.store._session import Session

if TYPE_CHECKING:
    from activedb.store._store import Store

__all__ = ["BorrowedSession", "CallersMoves", "borrow", "connection_of", "listen_to"]


class CallersMoves(Protocol):
    """What is done when the caller ends or takes back parts of the own transaction."""

    def committing(self) -> None:
        """The caller is about to commit; an error keeps it from doing so."""

    def rolled_back(self) -> None:
        """The caller has rolled back, or is about to."""

    def savepoint(self, name: str) -> None:
        """The caller has set a savepoint."""

    def released(self, name: str) -> None:
        """The caller has released a savepoint."""

    def went_back(self, name: str) -> None:
        """The caller has gone back to a savepoint."""


class BorrowedSession(Session):
    """A flat transaction that belongs to the caller."""

    def __init__(self, store: Store, latch: Latch, connection: Connection):
        super().__init__(store, latch)
        self._borrowed = connection
        self._has_written = True  # by the caller perhaps: so everything is read there
        self._callers = connection.get_transaction()

    @property
    def writes_early(self) -> bool:
        """Rows may be written before the commit: it is the caller's turn anyway."""
        return True

    @property
    def is_over(self) -> bool:
        """Whether the caller's transaction is no longer the one that was borrowed."""
        connection = self._borrowed
        return (
            connection.closed
            or connection.invalidated
            or connection.get_transaction() is not self._callers
        )

    def commit(self, *, lazily: bool = False) -> None:
        """Nothing: the caller commits."""

    def number(self) -> str:
        """The server's number of the caller's transaction, for `outcome`."""
        with self._using("number the transaction") as connection:
            return self._store.number_of(connection)

    def outcome(self, number: str) -> bool | None:
        """Whether the caller's transaction has committed, once it has ended."""
        committed = self._store.outcome(number)
        if committed:
            self._committed()
        return committed

    def close(self) -> None:
        """Let go of the connection, which stays as it is."""
        with self._latch:
            self._connection = self._backend = None

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._borrowed
            self._backend = self._store.backend_of(self._borrowed)
        return self._connection


def listen_to(connection: Connection, moves: CallersMoves) -> None:
    """Hand on, for as long as the connection lives, what its user does with transactions."""
    # SQLAlchemy cannot take listeners away while they are called, so they stay.
    event.listen(connection, "commit", lambda connection: moves.committing())
    event.listen(connection, "rollback", lambda connection: moves.rolled_back())
    event.listen(connection, "savepoint", lambda connection, name: moves.savepoint(name))
    event.listen(
        connection, "release_savepoint", lambda connection, name, context: moves.released(name)
    )
    event.listen(
        connection, "rollback_savepoint", lambda connection, name, context: moves.went_back(name)
    )


def connection_of(given: Any) -> Connection:
    """The SQLAlchemy connection behind what a caller hands over.

    Raises
    ------
    ConfigurationError
        If it is neither a Connection nor an ORM Session.
    """
    if isinstance(given, ORMSession):
        with translated("use the session's connection"):
            return given.connection()
    if isinstance(given, Connection):
        return given
    raise ConfigurationError(
        f"connection= takes a sqlalchemy.Connection or a sqlalchemy.orm.Session, not "
        f"{type(given).__name__}"
    )


def borrow(store: Store, connection: Connection) -> BorrowedSession:
    """A session over the caller's connection, whose transaction is begun if it has none.

    Raises
    ------
    ConfigurationError
        If the connection is closed, goes to another database, commits each statement by itself,
        or is in a two-phase transaction.
    """
    if connection.closed:
        raise ConfigurationError("the connection is closed; hand over an open one")
    if getattr(connection.connection.driver_connection, "autocommit", False) is True:
        raise ConfigurationError(
            "the connection commits each statement by itself (AUTOCOMMIT), so there is no "
            "transaction to act in; use one with another isolation level"
        )
    if connection.get_transaction() is None:
        connection.begin()
    if isinstance(connection.get_transaction(), TwoPhaseTransaction):
        raise ConfigurationError("two-phase transactions are not supported; use begin()")
    if connection.engine is not store.engine:
        store.check_same_database(connection)
    return BorrowedSession(store, store.latch_of(connection), connection)
