"""Connections with users' own SQL: the thread that uses each, and the one inside a statement.

The search for deadlocks needs both: a thread inside a statement blocks all other work on the
connection, and a thread that waits elsewhere keeps the connection's transaction from ending.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from sqlalchemy import Connection, Engine, event

from activedb.errors import ActiveDBError

__all__ = ["UserConnection", "UserConnections"]


class UserConnection:
    """Use of one connection, from when it is handed out until it is returned.

    Attributes
    ----------
    connection : Connection
    thread : int or None
        The only thread that has used it; None if there were several, any of which may end the
        transaction.
    backend : int or None
        Server process beneath it, as of the last statement.
    keeps_all_out : bool
        True if the store is blocked for all others until this connection ends its work.
    asleep : callable or None
        Implementation of `hopeless_wait_error`, while the connection's thread sleeps.
    """

    def __init__(
        self,
        connection: Connection,
        interrupt: Callable[[Any], None],
        *,
        keeps_all_out: bool = False,
    ):
        self.thread: int | None = get_ident()
        self.backend: int | None = None
        self.keeps_all_out = keeps_all_out
        self.asleep: Callable[[int], ActiveDBError | None] | None = None
        self.connection = connection
        self._interrupt = interrupt
        self._latch = threading.Lock()
        self._driver: Any = None
        self._caller: int | None = None
        self._since_s = 0.0
        self._error: ActiveDBError | None = None

    @property
    def has_begun(self) -> bool:
        """True if others may wait for its end. REQUIRES: only this thread uses it."""
        return self.keeps_all_out or self.connection.in_transaction()

    def hopeless_wait_error(self, thread: int) -> ActiveDBError | None:
        """Return an error if `thread` would wait for the end of this work for ever, else None."""
        asleep = self.asleep
        return None if asleep is None else asleep(thread)

    @property
    def caller(self) -> int | None:
        """Thread that is inside a statement of this connection, or None."""
        return self._caller

    @property
    def called_s(self) -> float:
        """Seconds for which the current statement has been running; 0 if there is none."""
        return 0.0 if self._caller is None else time.monotonic() - self._since_s

    def begins(self, driver: Any) -> None:
        """Record that a statement is about to be sent on this thread."""
        with self._latch:
            self._driver, self._error = driver, None
            self.backend = getattr(driver, "backend", None)
            self._since_s, self._caller = time.monotonic(), get_ident()
            if self.thread != self._caller:
                self.thread = None

    def ends(self) -> ActiveDBError | None:
        """Record that the statement has ended; return the error that interrupted it, if any."""
        with self._latch:
            error, self._error, self._caller = self._error, None, None
            return error

    def interrupt(self, error: ActiveDBError) -> None:
        """Cancel the running statement, with `error`."""
        with self._latch:
            if self._caller is None or self._error is not None:
                return
            self._error = error
            # Under the latch, so that the connection does not send another statement meanwhile.
            self._interrupt(self._driver)


class UserConnections:
    """Connections of an engine that users currently hold.

    Latch: ``_latch``; no other latch is taken under it.
    """

    def __init__(self, engine: Engine, interrupt: Callable[[Any], None]):
        self._interrupt = interrupt
        self._latch = threading.Lock()
        self._uses: dict[Connection, UserConnection] = {}
        event.listen(engine, "before_cursor_execute", self._before)
        event.listen(engine, "after_cursor_execute", self._after)
        event.listen(engine, "handle_error", self._failed)

    def now(self) -> list[UserConnection]:
        """Return the connections in use; O(their number)."""
        with self._latch:
            return list(self._uses.values())

    @contextmanager
    def of(self, connection: Connection) -> Iterator[None]:
        """Track a connection inside the block."""
        with self._latch:
            self._uses[connection] = UserConnection(connection, self._interrupt)
        try:
            yield
        finally:
            with self._latch:
                del self._uses[connection]

    def _before(self, connection: Connection, *statement: Any) -> None:
        use = self._uses.get(connection)
        if use is not None:
            use.begins(connection.connection.driver_connection)

    def _after(self, connection: Connection, *statement: Any) -> None:
        use = self._uses.get(connection)
        if use is not None:
            use.ends()

    def _failed(self, context: Any) -> None:
        use = None if context.connection is None else self._uses.get(context.connection)
        error = None if use is None else use.ends()
        if error is not None:
            raise error from context.original_exception
