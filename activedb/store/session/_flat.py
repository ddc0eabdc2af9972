"""Flat transaction: a hierarchy as the server sees it.

It has one connection, opened when first needed and shared by all threads of the hierarchy, one at a
time (Saygin, Ulusoy, Chakravarthy, section 4.2.2). Other threads can see and end its statements.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Connection

from activedb.config import Isolation
from activedb.errors import (
    ActiveDBError,
    ConnectionLost,
    SerializationConflict,
    StatementCancelled,
    StoreError,
)
from activedb.store.server import translate_error, translate_errors
from activedb.store.session._processes import publish

if TYPE_CHECKING:
    from activedb.store.session._store import Store

__all__ = ["FlatTransaction", "Latch", "Use"]


class Latch(Protocol):
    """Re-entrant latch with the interface of `threading.RLock`."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take the latch; return False if it is not free and `blocking` is False."""
        ...

    @property
    def release(self) -> Callable[[], object]:
        """Function that releases the latch."""
        ...

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class FlatTransaction:
    """Transaction on one connection, from its first statement to its commit or rollback.

    Attributes
    ----------
    failure : ActiveDBError or None
        First failure of a statement; after that the transaction can only be rolled back.
    is_serializable : bool
        True if it has the server's isolation level SERIALIZABLE: it reads from a snapshot, taken
        with its first statement, and the server refuses what would not be serializable.
    began_s : float or None
        Moment of the monotonic clock, in seconds, before which no snapshot was taken; None if it
        has not called the server yet.

    Latches: `_latch`, held for each use of the connection, taken after the hierarchy's and never
    before it; `_calls_latch`, held briefly; no other latch is taken under it.
    """

    def __init__(self, store: Store, latch: Latch, isolation: Isolation = "locks"):
        self.failure: ActiveDBError | None = None
        self.is_serializable = isolation == "serializable" and store.is_shared
        self.began_s: float | None = None
        self._store = store
        self._latch = latch
        self._connection: Connection | None = None
        self._driver: Any = None  # the driver's connection beneath it
        self._number: str | None = None
        self._backend: int | None = None
        self._thread = threading.get_ident()
        self._is_parallel = False
        self._has_written = False
        self._calls: dict[Any, tuple[float, int]] = {}
        self._calls_latch = threading.Lock()

    @property
    def is_shared(self) -> bool:
        """True if other sessions can write while this one does."""
        return self._store.is_shared

    @property
    def relies_on_locks(self) -> bool:
        """True if other sessions can write what this one has read and not locked at the server."""
        return self._store.is_shared and not self.is_serializable

    @property
    def writes_early(self) -> bool:
        """True if rows may be written before the commit without blocking other sessions."""
        return self._store.is_shared

    @contextmanager
    def reading(self, doing: str) -> Iterator[Connection]:
        """Yield a connection on which to run SELECTs over the committed state.

        REQUIRES: the tables read are locked, so that every connection sees the same rows.

        A hierarchy that several threads use reads on connections of a pool, in parallel, as long as
        one is free and nothing has been written on its own connection; not under SERIALIZABLE,
        where the server has to see what it reads.
        """
        if threading.get_ident() != self._thread:
            self._is_parallel = True
        if self._is_parallel and not (self._has_written or self.is_serializable):
            with self.beside(doing) as side:
                if side is not None:
                    yield side
                    return
        with Use(self, doing) as connection:
            yield connection

    @contextmanager
    def beside(self, doing: str) -> Iterator[Connection | None]:
        """Yield another connection on which to run SELECTs; None if none is free."""
        with self._store.reader() as side:
            if side is None:
                yield None
                return
            driver_connection = side.connection.driver_connection
            self._call_begins(driver_connection)
            try:
                with translate_errors(doing):
                    yield side
            finally:
                self._call_ends(driver_connection)

    def read_beside(self) -> None:
        """Run queries on pooled connections from now on, so that a query can be cancelled alone."""
        self._is_parallel = True

    def recover(self) -> None:
        """Clear the failure, after a rollback at the server to a savepoint before it."""
        self.failure = None

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Roll back uncommitted changes and return the connection; safe to call again."""
        if self._connection is None:
            return  # without the latch, for which the whole may have waited in vain
        with self._latch:
            connection, self._connection, self._backend = self._connection, None, None
            self._driver = None
            if connection is not None:
                self._store.release(connection, self._latch)

    # -- seen from other threads -----------------------------------------------------------

    def cancel(self, threads: Collection[int] | None = None, *, cut: bool = False) -> None:
        """Cancel the hierarchy's running statements, if any; callable from any thread.

        They raise `StatementCancelled`. O(1) round trips each.

        Parameters
        ----------
        threads : collection of int, optional
            Identifiers of the threads whose statements to cancel; None for all.
        cut : bool
            Sever their connections, without contacting the server, which has not reacted.
        """
        end = self._store.cut if cut else self._store.interrupt
        with self._calls_latch:
            calls = list(self._calls.items())
        for driver_connection, call in calls:
            if threads is None or call[1] in threads:
                # Under the latch, so that the connection is not reused meanwhile.
                with self._calls_latch:
                    if self._calls.get(driver_connection) is call:
                        end(driver_connection)

    @property
    def backend(self) -> int | None:
        """Process id of the server process that runs this transaction; None if there is none."""
        return self._backend

    @property
    def called_s(self) -> float:
        """Seconds for which the oldest running statement has been running; 0 if there is none."""
        with self._calls_latch:
            return max((time.monotonic() - began for began, _ in self._calls.values()), default=0.0)

    @property
    def callers(self) -> set[int]:
        """Identifiers of the threads whose statements are running."""
        with self._calls_latch:
            return {thread for _, thread in self._calls.values()}

    def publish_waits(self, backends: Iterable[int]) -> bool:
        """Publish the hierarchies that this one waits for here, for other processes.

        Returns False if the connection is in use, missing or unusable.

        Parameters
        ----------
        backends : iterable of int
            Server processes of those hierarchies.
        """
        if not self._latch.acquire(blocking=False):
            return False
        try:
            if self._connection is None:
                return False
            with translate_errors("publish waits"):
                publish(self._connection, backends)
            return True
        except StoreError:
            return False  # it has failed already
        finally:
            self._latch.release()

    # -- inside ----------------------------------------------------------------------------

    def _open(self) -> Connection:
        connection = self._connection
        if connection is None:
            self.began_s = self.began_s or time.monotonic()
            connection = self._store.acquire(serializable=self.is_serializable)
            self._connection = connection
            self._driver = connection.connection.driver_connection
            self._backend = self._store.backend_of(connection)
        return connection

    def _call_begins(self, driver_connection: Any) -> None:
        """Register a statement on a connection, so that `cancel` can end it."""
        with self._calls_latch:
            self._calls[driver_connection] = (time.monotonic(), threading.get_ident())

    def _call_ends(self, driver_connection: Any) -> None:
        with self._calls_latch:
            del self._calls[driver_connection]


class Use:
    """Exclusive use of the connection, visible to other threads, with translated errors.

    For a few statements: ``with Use(flat, doing) as connection``.

    A class rather than a generator, because each transaction needs several of these.
    """

    __slots__ = ("_begun", "_doing", "_flat", "_is_writing")

    def __init__(self, flat: FlatTransaction, doing: str, *, writing: bool = False):
        self._flat = flat
        self._doing = doing
        self._is_writing = writing
        self._begun: Any = None

    def __enter__(self) -> Connection:
        flat = self._flat
        thread = threading.get_ident()
        if thread != flat._thread:
            flat._is_parallel = True
        flat._latch.acquire()
        try:
            if flat.failure is not None:
                # Another thread's statement failed: the server aborts all further ones.
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
        """Record that the transaction has failed; raise our error for a driver's."""
        flat = self._flat
        ours = translate_error(error, self._doing)
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
