"""The caller's own transaction as the flat transaction beneath a hierarchy.

Statements go over the caller's SQLAlchemy connection. It is neither committed nor closed here:
listeners follow what the caller does with it. It is rolled back only if its commit is refused.
"""

from __future__ import annotations

import _thread
import re
import sqlite3
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, TwoPhaseTransaction, event
from sqlalchemy.exc import InvalidRequestError, PendingRollbackError, UnboundExecutionError
from sqlalchemy.orm import Session as ORMSession

from activedb.config import Isolation
from activedb.errors import ConfigurationError, ConnectionLost, TransactionStateError
from activedb.store.flush import Asked, Change, Log
from activedb.store.replication import FOLLOWED, set_local_mark
from activedb.store.server import translate_errors
from activedb.store.session._flat import Latch, Use
from activedb.store.session._ownership import OwnedTable
from activedb.store.session._session import NOTHING_ASKED, Durable, Session
from activedb.store.sql import Key, Row, TableSpec

if TYPE_CHECKING:
    from activedb.store.session._store import Store

__all__ = ["ExternalSession", "ExternalTransactionListener", "borrow", "connection_of", "listen_to"]

_SAVEPOINT_MOVE = re.compile(
    r"\s*(?P<verb>SAVEPOINT|RELEASE(?:\s+SAVEPOINT)?|ROLLBACK(?:\s+(?:WORK|TRANSACTION))?"
    r"\s+TO(?:\s+SAVEPOINT)?)\s+(?P<name>\"[^\"]+\"|[^\s;\"]+)",
    re.IGNORECASE,
)
_OURS = "activedb"  # prefix of the savepoints set here
_LOOK_FIRST_S, _LOOK_S_MAX = 0.000_2, 0.02


class ExternalTransactionListener(Protocol):
    """Callbacks for the caller's commit, rollback and savepoints in a borrowed transaction."""

    @property
    def is_open(self) -> bool:
        """True if the callbacks have anything to do."""

    def committing(self) -> None:
        """Handle that the caller is about to commit; an error prevents the commit."""

    def rolled_back(self) -> None:
        """Handle that the caller has rolled back, is about to, or has dropped the connection."""

    def savepoint(self, name: str) -> None:
        """Handle that the caller is about to set a savepoint; an error prevents it."""

    def released(self, name: str) -> None:
        """Handle that the caller is about to release a savepoint."""

    def rolled_back_to_savepoint(self, name: str) -> None:
        """Handle that the caller is about to roll back to a savepoint, which remains."""


class ExternalSession(Session):
    """Flat transaction that belongs to the caller.

    It does not keep the caller's connection alive: a connection that is dropped without being
    closed returns to its pool, as always with SQLAlchemy.
    """

    def __init__(
        self,
        store: Store,
        latch: Latch,
        connection: Connection,
        isolation: Isolation,
        began_s: float,
        *,
        is_followed: bool = False,
    ):
        self._is_followed = is_followed
        self._borrowed = weakref.ref(connection)
        transaction = connection.get_transaction()
        assert transaction is not None, "borrow has begun one"
        self._callers = weakref.ref(transaction)
        self._callers_driver: Any = connection.connection.driver_connection
        self._busy_since_s: float | None = None
        self._doubtful: dict[TableSpec, set[Key]] = {}
        super().__init__(store, latch, isolation)
        self.began_s = began_s
        self._has_written = True  # the caller may have: so all reads go to this connection

    @property
    def writes_early(self) -> bool:
        """Always True: the caller has the turn anyway, so early writes block no other session."""
        return True

    @property
    def is_over(self) -> bool:
        """True if the borrowed transaction is no longer the connection's current one."""
        connection, callers = self._borrowed(), self._callers()
        return (
            connection is None
            or callers is None
            or connection.closed
            or connection.invalidated
            or connection.get_transaction() is not callers
        )

    @property
    def called_s(self) -> float:
        """Seconds for which a statement has been running, the caller's own included."""
        if not self._is_busy:
            self._busy_since_s = None
            return super().called_s
        if self._busy_since_s is None:
            self._busy_since_s = time.monotonic()
        return max(super().called_s, time.monotonic() - self._busy_since_s)

    def cancel(self, threads: Collection[int] | None = None, *, cut: bool = False) -> None:
        """Cancel the running statement, the caller's own included; callable from any thread.

        A connection is severed only in a call of ours: the caller's own may end at any time.
        """
        super().cancel(threads, cut=cut)
        # The caller's own statement may be the wait through which a deadlock runs.
        is_meant = threads is None or self._thread in threads
        if is_meant and not self._calls and self._is_busy and not self.is_over:
            self._store.interrupt(self._callers_driver)

    def publish_waits(self, backends: Iterable[int]) -> bool:
        """Do nothing: the caller may be using the connection at this moment."""
        return False

    def lock_rows(
        self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool, guarding: bool = False
    ) -> dict[Key, Row | None]:
        """Return rows by key as the caller's transaction sees them, locked on the server."""
        rows = super().lock_rows(spec, keys, exclusive=exclusive, guarding=guarding)
        if exclusive and self._store.ownership.owned(spec) is not None:
            self._doubtful.setdefault(spec, set()).update(keys)
        return rows

    def flush(self, changes: Sequence[Change], log: Log, durable: Iterable[Durable] = ()) -> None:
        """Write as `Session.flush` does, and mark the changes as activedb's own for followers."""
        self.raises(True)
        super().flush(changes, log, durable)
        # After an error the mark is undone with the rest, back to a savepoint or the start.
        self.raises(False)

    def raises(self, is_raised: bool) -> None:
        """Set whether events are raised here for further writes.

        One round trip if changes are followed, otherwise none.
        """
        if self._is_followed:
            with Use(self, "mark written rows") as connection:
                set_local_mark(
                    connection, self._store.raised(self._store.schema) if is_raised else ""
                )

    def _mark(self, connection: Connection) -> None:
        """Do nothing: see `flush`."""

    def commit(
        self,
        changes: Sequence[Change] = (),
        log: Log = (),
        durable: Iterable[Durable] = (),
        *,
        asked: Asked = NOTHING_ASKED,
        lazily: bool = False,
    ) -> None:
        """Write the remaining changes; the caller commits."""
        if changes or durable:
            self.flush(changes, log, durable)

    def number(self) -> str:
        """Return the server's number of the caller's transaction, for `outcome`.

        Raises
        ------
        TableOwned
            If this process has lost the ownership of a table it touched.
        """
        with Use(self, "number the transaction") as connection:
            if self._touched:
                self._store.ownership.check(connection, self._touched)
            return self._store.number_of(connection, is_ours=False)

    def roll_back(self) -> None:
        """Roll back a transaction whose commit is refused.

        SQLAlchemy then considers it ended: it sends no ROLLBACK, neither now nor when the caller
        asks for one, and its changes would be committed with the caller's next transaction.
        """
        with self._latch, suppress(psycopg.Error, sqlite3.Error):  # if lost, it is undone anyway
            self._callers_driver.rollback()

    def await_end(self, is_enough: Callable[[], bool]) -> None:
        """Wait until the caller's commit or rollback has returned, or `is_enough`."""
        pause_s = _LOOK_FIRST_S
        while not self.is_over and not is_enough():
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_S_MAX)

    def outcome(self, number: str) -> bool | None:
        """Return whether the caller's transaction, once ended, has committed; None: unknown."""
        return self._store.outcome(number)

    def settle(self, committed: bool | None) -> None:
        """Update the memory of owned tables after the caller's transaction; None: unknown."""
        if committed:
            self._committed()
        elif committed is None:
            self._left_unknown()

    def close(self) -> None:
        """Detach from the connection, which stays as it is."""
        with self._latch:
            self._backend = None

    @property
    def _is_busy(self) -> bool:
        info = getattr(self._callers_driver, "info", None)
        return getattr(info, "transaction_status", None) is TransactionStatus.ACTIVE

    @property
    def _connection(self) -> Connection | None:
        return self._borrowed() if self._backend is not None else None

    @_connection.setter
    def _connection(self, connection: Connection | None) -> None:
        """Do nothing: the connection is the caller's."""

    def _open(self) -> Connection:
        connection = self._borrowed()
        if connection is None:
            raise ConnectionLost("the caller's connection is gone: it was dropped without a close")
        self._backend = self._store.backend_of(connection)
        return connection

    def _owned(self, spec: TableSpec, *, loads: bool = True) -> OwnedTable | None:
        """Return None: only the server knows the effect of the caller's own SQL on the rows."""
        super()._owned(spec, loads=loads)
        return None

    def _committed(self) -> None:
        for owned in self._touched:
            written = {change.key for change in self._flushed if change.spec is owned.spec}
            owned.doubt(written | self._doubtful.get(owned.spec, set()))


def listen_to(connection: Connection, moves: ExternalTransactionListener) -> None:
    """Report the connection's commits, rollbacks and savepoints to `moves` while it lives."""

    def executing(
        connection: Connection, cursor: Any, statement: str, parameters: Any, *rest: Any
    ) -> None:
        # SQLAlchemy's own savepoint event comes before the name is known.
        move = _SAVEPOINT_MOVE.match(statement) if statement[:1] in "SsRr \n\t" else None
        if move is None:
            return
        verb, name = move["verb"].upper(), move["name"]
        name = name[1:-1] if name.startswith('"') else name.lower()
        if name.startswith(_OURS):
            return
        if verb.startswith("SAVEPOINT"):
            moves.savepoint(name)
        elif verb.startswith("RELEASE"):
            moves.released(name)
        else:
            moves.rolled_back_to_savepoint(name)

    # SQLAlchemy cannot remove listeners while they are called, so they stay.
    event.listen(connection, "commit", lambda connection: moves.committing())
    event.listen(connection, "rollback", lambda connection: moves.rolled_back())
    event.listen(connection, "before_cursor_execute", executing)
    weakref.finalize(connection, _dropped, moves).atexit = False


def _dropped(moves: ExternalTransactionListener) -> None:
    """Handle that a connection was garbage-collected: at any moment, so it must not block."""
    if moves.is_open:
        with suppress(RuntimeError):  # the interpreter ends
            _thread.start_new_thread(moves.rolled_back, ())


def connection_of(given: Any) -> Connection:
    """Return the SQLAlchemy connection behind the object that a caller passes.

    Raises
    ------
    ConfigurationError
        If it is neither a Connection nor an ORM Session, or a session with several engines.
    TransactionStateError
        If it is in an unusable state.
    """
    if isinstance(given, Connection):
        return given
    if not isinstance(given, ORMSession):
        raise ConfigurationError(
            f"connection= takes a sqlalchemy.Connection or a sqlalchemy.orm.Session, not "
            f"{type(given).__name__}"
        )
    try:
        with translate_errors("use the session's connection"):
            return given.connection()
    except UnboundExecutionError as error:
        raise ConfigurationError(
            "the session has no engine, or several: hand over the connection that is meant, "
            "session.connection(bind_arguments={'mapper': …})"
        ) from error
    except (ConnectionLost, InvalidRequestError) as error:
        if isinstance(error, ConnectionLost) and not isinstance(
            error.__cause__, PendingRollbackError
        ):
            raise
        raise TransactionStateError(
            f"the session cannot be used now; if something has failed in it, call its rollback() "
            f"first: {error.__cause__ or error}"
        ) from error


def borrow(store: Store, connection: Connection, isolation: Isolation) -> ExternalSession:
    """Return a session over the caller's connection, whose transaction is begun if it has none.

    Parameters
    ----------
    isolation : str
        Policy of the transaction; the connection must have the isolation level that it needs.

    Raises
    ------
    ConfigurationError
        If the connection is closed, goes to another database or through another driver, is in
        autocommit mode, has another isolation level than the policy needs, or is in a two-phase
        transaction.
    TransactionStateError
        If its transaction has failed already.
    """
    if connection.closed:
        raise ConfigurationError("the connection is closed; hand over an open one")
    if not store.tells_outcomes:
        raise ConfigurationError(
            "the role may not ask the server what becomes of a transaction, and nothing else tells "
            "what a caller's commit has come to: GRANT EXECUTE ON FUNCTION pg_current_xact_id(), "
            "pg_xact_status(xid8), pg_postmaster_start_time(), "
            "pg_stat_get_bgwriter_stat_reset_time() TO the role"
        )
    transaction = connection.get_transaction()
    if transaction is not None and (connection.invalidated or not transaction.is_active):
        raise TransactionStateError(
            "the connection's transaction has failed, or the connection was lost: call its "
            "rollback() first"
        )
    if (
        getattr(connection.connection.driver_connection, "autocommit", False) is True
        or connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT"
    ):
        raise ConfigurationError(
            "the connection commits each statement by itself (AUTOCOMMIT), so there is no "
            "transaction to act in; use one with another isolation level"
        )
    if transaction is None:
        transaction = connection.begin()
    if isinstance(transaction, TwoPhaseTransaction):
        raise ConfigurationError("two-phase transactions are not supported; use begin()")
    if connection.engine is not store.engine:
        store.check_same_database(connection)
    mine, yours = store.engine.dialect.driver, connection.dialect.driver
    if mine != yours:
        raise ConfigurationError(
            f"the connection goes through the driver {yours}; hand over one that goes through "
            f"{mine}, as in {store.engine.dialect.name}+{mine}://…"
        )
    is_followed = False
    began_s = time.monotonic()
    if store.is_shared:
        with translate_errors("look at the connection"):
            level, age_s, is_followed = connection.execute(FOLLOWED).one()
        _check_level(level.upper(), isolation)
        began_s -= age_s
    return ExternalSession(
        store, store.latch_of(connection), connection, isolation, began_s, is_followed=is_followed
    )


def _check_level(level: str, isolation: Isolation) -> None:
    """Raise `ConfigurationError` unless an isolation level of the server suits the policy."""
    if isolation == "serializable" and level != "SERIALIZABLE":
        raise ConfigurationError(
            f"the connection's isolation level is {level}, and isolation='serializable' leaves it "
            f"to the server to keep transactions apart: begin the connection's transaction with "
            f"isolation_level='SERIALIZABLE', or pass isolation='locks' and use READ COMMITTED"
        )
    if isolation == "locks" and level != "READ COMMITTED":
        raise ConfigurationError(
            f"the connection's isolation level is {level}: it would read from a snapshot what "
            f"others have changed before it was locked. Use READ COMMITTED, as the locks taken "
            f"here make the transaction serializable; or SERIALIZABLE with "
            f"isolation='serializable'"
        )
