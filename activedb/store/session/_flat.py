"""A flat transaction: what the server sees of a hierarchy.

One connection, opened when it is first needed, for all threads of the hierarchy, one at a time
(Saygin, Ulusoy, Chakravarthy, section 4.2.2); what runs on it can be seen and ended by others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from activedb.errors import (
    ActiveDBError,
    ConnectionLost,
    SerializationConflict,
    StatementCancelled,
    StoreError,
)
from activedb.store.server import translated, translation
from activedb.store.session._latch import Latch
from activedb.store.session._server_waits import publish

if TYPE_CHECKING:
    from activedb.store.session._store import Store

__all__ = ["FlatTransaction"]


class FlatTransaction:
    """A transaction on one connection, from its first statement to its commit or undoing.

    Attributes
    ----------
    failure : ActiveDBError or None
        The first failure of a statement; the transaction can only be undone then.

    Latches: `_latch`, held for each use of the connection, taken after the hierarchy's and never
    before it; `_calls_latch`, held for a moment, under which nothing else is taken.
    """

    def __init__(self, store: Store, latch: Latch):
        self.failure: ActiveDBError | None = None
        self._store = store
        self._latch = latch
        self._connection: Connection | None = None
        self._driver: Any = None  # the connection beneath that one
        self._number: str | None = None
        self._backend: int | None = None
        self._thread = threading.get_ident()
        self._is_parallel = False
        self._has_written = False
        self._calls: dict[Any, tuple[float, int]] = {}
        self._calls_latch = threading.Lock()

    @property
    def is_shared(self) -> bool:
        """Whether other sessions can write while this one does."""
        return self._store.is_shared

    @property
    def writes_early(self) -> bool:
        """Whether rows may be written before the commit without keeping other sessions waiting."""
        return self._store.is_shared

    @contextmanager
    def reading(self, doing: str) -> Iterator[Connection]:
        """A connection on which to run SELECTs over the committed state.

        REQUIRES: the tables read are locked, so that every connection sees them alike.

        A hierarchy that several threads use reads on connections of a pool, in parallel, as
        long as one is free and nothing is written on its own.
        """
        if threading.get_ident() != self._thread:
            self._is_parallel = True
        if self._is_parallel and not self._has_written:
            with self._store.reader() as side:
                if side is not None:
                    driver_connection = side.connection.driver_connection
                    self._call_begins(driver_connection)
                    try:
                        with translated(doing):
                            yield side
                    finally:
                        self._call_ends(driver_connection)
                    return
        with self._using(doing) as connection:
            yield connection

    def read_beside(self) -> None:
        """Run queries on connections of the pool from now on: one of them may be cancelled."""
        self._is_parallel = True

    def recover(self) -> None:
        """Go on: what has failed was undone at the server, back to a savepoint before it."""
        self.failure = None

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Undo what is not committed and give the connection back; safe to call again."""
        with self._latch:
            connection, self._connection, self._backend = self._connection, None, None
            self._driver = None
            if connection is not None:
                self._store.release(connection, self._latch)

    # -- seen from other threads -----------------------------------------------------------

    def cancel(self, threads: Collection[int] | None = None, *, cut: bool = False) -> None:
        """End the statements that are running for this hierarchy, if any; for any thread.

        They raise `StatementCancelled`. O(1) round trips each.

        Parameters
        ----------
        threads : collection of int, optional
            Identifiers of the threads whose statements are meant; None for all.
        cut : bool
            End their connections, without a word to the server, which has not listened.
        """
        end = self._store.cut if cut else self._store.interrupt
        with self._calls_latch:
            calls = list(self._calls.items())
        for driver_connection, call in calls:
            if threads is None or call[1] in threads:
                # Under the latch, so that the connection is used for nothing else meanwhile.
                with self._calls_latch:
                    if self._calls.get(driver_connection) is call:
                        end(driver_connection)

    @property
    def backend(self) -> int | None:
        """Number of the server's process for this transaction, while it runs."""
        return self._backend

    @property
    def called_s(self) -> float:
        """For how long the oldest running statement has been running, in seconds; 0 if none."""
        with self._calls_latch:
            return max((time.monotonic() - began for began, _ in self._calls.values()), default=0.0)

    @property
    def callers(self) -> set[int]:
        """Identifiers of the threads whose statements are running."""
        with self._calls_latch:
            return {thread for _, thread in self._calls.values()}

    def publish_waits(self, backends: Iterable[int]) -> bool:
        """Tell other processes whom this hierarchy waits for here, unless it is at work.

        Parameters
        ----------
        backends : iterable of int
            The server's processes for those hierarchies.
        """
        if not self._latch.acquire(blocking=False):
            return False
        try:
            if self._connection is None:
                return False
            with translated("publish waits"):
                publish(self._connection, backends)
            return True
        except StoreError:
            return False  # it has failed already
        finally:
            self._latch.release()

    # -- inside ----------------------------------------------------------------------------

    def _using(self, doing: str, *, writing: bool = False) -> _Use:
        """The connection, for one statement or a few: ``with self._using(doing) as connection``."""
        return _Use(self, doing, writing)

    def _open(self) -> Connection:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._store.acquire()
            self._driver = connection.connection.driver_connection
            self._backend = self._store.backend_of(connection)
        return connection

    def _call_begins(self, driver_connection: Any) -> None:
        """Let `cancel` end what runs on a connection from now on."""
        with self._calls_latch:
            self._calls[driver_connection] = (time.monotonic(), threading.get_ident())

    def _call_ends(self, driver_connection: Any) -> None:
        with self._calls_latch:
            del self._calls[driver_connection]


class _Use:
    """One use of the connection: alone, noticed by others, its errors told as ours.

    A class, and not a generator, because there are some of these in each transaction.
    """

    __slots__ = ("_begun", "_doing", "_flat", "_is_writing")

    def __init__(self, flat: FlatTransaction, doing: str, is_writing: bool):
        self._flat = flat
        self._doing = doing
        self._is_writing = is_writing
        self._begun: Any = None

    def __enter__(self) -> Connection:
        flat = self._flat
        thread = threading.get_ident()
        if thread != flat._thread:
            flat._is_parallel = True
        flat._latch.__enter__()
        try:
            if flat.failure is not None:
                # Another thread's statement: the server takes no more of this transaction.
                raise flat.failure.again() from flat.failure
            connection = flat._connection or flat._open()
            driver = flat._driver or connection.connection.driver_connection
            if driver not in flat._calls:
                with flat._calls_latch:
                    flat._calls[driver] = (time.monotonic(), thread)
                self._begun = driver
            if self._is_writing:
                flat._store.begin_writing(connection, flat._latch)
                flat._has_written = True
        except BaseException as error:
            self._end(error)
            raise
        return connection

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._end(error)
            return
        flat = self._flat
        if self._begun is not None:
            with flat._calls_latch:
                del flat._calls[self._begun]
        flat._latch.release()

    def _end(self, error: BaseException) -> None:
        flat = self._flat
        try:
            if self._begun is not None:
                with flat._calls_latch:
                    del flat._calls[self._begun]
            self._fail(error)
        finally:
            flat._latch.release()

    def _fail(self, error: BaseException) -> None:
        """Remember that the transaction has failed; raise the error of ours for a driver's."""
        flat = self._flat
        ours = translation(error, self._doing)
        if isinstance(ours or error, ConnectionLost):
            flat._store.suspect()
        if flat.failure is None:
            known = ours or error
            if isinstance(known, StatementCancelled):
                known = SerializationConflict(
                    f"a part of the transaction was ended while it was to {self._doing}, and the "
                    f"server takes no more of the whole; retry it"
                )
            elif not isinstance(known, ActiveDBError):
                known = StoreError(f"cannot {self._doing}: {error!r}")
            flat.failure = known
        if ours is not None:
            raise ours from error
