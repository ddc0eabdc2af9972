"""Memory twin: committed rows in an in-memory SQLite database of this process."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC
from functools import cache, lru_cache
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Dialect,
    MetaData,
    Table,
    create_engine,
    create_mock_engine,
    event,
    func,
    select,
)
from sqlalchemy import Sequence as Numbers
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.sqlite.base import SQLiteDDLCompiler
from sqlalchemy.pool import StaticPool

from activedb.config import Settings
from activedb.errors import ConfigurationError, LockTimeout, SelfDeadlock, StatementCancelled
from activedb.store.replication import Slot
from activedb.store.server import bounded_s, wait_for_holder
from activedb.store.session._flat import Latch
from activedb.store.session._ownership import NoOwnership
from activedb.store.session._plain_use import UserConnection
from activedb.store.session._processes import Backend, NoLease, Wakeups
from activedb.store.session._store import PlainWrites, Store
from activedb.store.sql import Key, TableSpec, sqlite_default
from activedb.store.system import system

__all__ = ["MemoryStore"]


_LOOK_EVERY_S = 0.1  # to check whether the awaited turn can still come
_CLOSE_S_MAX = 5.0
_CASCADES = frozenset({"CASCADE", "SET NULL", "SET DEFAULT"})
_BUSY = "other work kept the one connection of memory://"


class MemoryStore(Store):
    """In-memory SQLite store: the same statements and constraints, but nothing durable.

    All sessions share one SQLite connection, so a session that has begun to write keeps the
    turn until it ends.
    """

    schema = "main"
    is_shared = False
    ownership = NoOwnership()

    def __init__(self, metadata: MetaData, settings: Settings):
        engine = create_engine(
            "sqlite://",
            poolclass=StaticPool,
            pool_reset_on_return=None,  # what is rolled back may be another session's work
            connect_args={"check_same_thread": False, "isolation_level": None},
            hide_parameters=True,
        )
        engine.dialect.colspecs = {**engine.dialect.colspecs, DateTime: _Instant}
        engine.dialect.ddl_compiler = _Definitions
        # The transactions of its one connection are begun here, whatever level is asked for.
        engine.dialect.set_isolation_level = lambda *_: None  # type: ignore[method-assign]
        super().__init__(engine, metadata)
        self.lease = NoLease()
        self._patience_s = settings.lock_timeout_ms / 1_000
        self._turn = threading.Lock()
        self._kept: UserConnection | None = None  # the block of `connection` that has the turn
        self._turns: WeakKeyDictionary[Connection, _ConnectionTurn] = WeakKeyDictionary()
        self._numbers: dict[tuple[str, str], tuple[int, int | None]] = {}
        self._plain_writes: dict[str, PlainWrites] = {}  # by the first word of a table's name
        self._cascades: dict[Table, tuple[int, Sequence[str]]] = {}
        # One for all flat transactions, which their turns keep apart: opening a connection takes
        # longer than a small transaction.
        self._flat = engine.connect()
        connection: Any = self._flat.connection
        self._driver = connection.driver_connection  # the one of every connection
        self._driver.execute("PRAGMA foreign_keys = ON")

    def close(self) -> None:
        # SQLite must not be closed under a statement of another thread. A thread that keeps the
        # turn for longer than this has an open transaction, which keeps its connection alive.
        if self._turn.acquire(timeout=_CLOSE_S_MAX):
            try:
                self._flat.close()
                super().close()
            finally:
                self._turn.release()

    def cascades_from(self, table: Table) -> Sequence[str]:
        count = len(self.metadata.tables)
        known = self._cascades.get(table)
        if known is None or known[0] != count:
            tables = list(self.metadata.tables.values())
            known = self._cascades[table] = (count, _cascades_from(str(table.fullname), tables))
        return known[1]

    def migrate(self) -> None:
        with self.short():
            for statement in _own_tables():
                self._driver.execute(statement)

    @contextmanager
    def short(self) -> Iterator[Connection]:
        turn = _ConnectionTurn(self, math.inf)  # at a server, no transaction would be in the way
        with turn, self.engine.connect() as connection:
            self.begin_writing(connection, turn)
            try:
                yield connection
                self.commit(connection, lazily=False)
            finally:
                self._roll_back(connection)
                turn.writing = False

    def wakeups(self) -> Wakeups:
        raise ConfigurationError(
            "memory:// belongs to one process, which runs its rules itself: no other one can see "
            "or share them. Workers need a Postgres: set ACTIVEDB_URL, or leave the URL out for "
            "the embedded one"
        )

    def send_wakeup(self, connection: Connection) -> None:
        """Do nothing: no other process listens."""

    def slot(self, name: str) -> Slot:
        raise ConfigurationError(
            "memory:// belongs to one process: no other program can change its rows, so there is "
            "nothing to follow. Use Postgres to follow changes by other programs: set "
            "ACTIVEDB_URL, or leave the URL out for the embedded one"
        )

    def latch(self) -> _ConnectionTurn:
        return _ConnectionTurn(self, self._patience_s)

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Yield a connection for users' own SQL; it has the turn from its first statement on."""
        with self.engine.connect() as connection:
            turn, thread = self.latch(), get_ident()
            self._turns[connection] = turn

            def begin(connection: Connection) -> None:
                with turn:
                    turn.writing = True
                    if get_ident() == thread:  # otherwise another thread may end the block
                        self._kept = UserConnection(connection, self.interrupt, keeps_all_out=True)
                    if connection.get_execution_options().get("isolation_level") != "AUTOCOMMIT":
                        self._driver.execute("BEGIN")

            def executed(_: Connection, cursor: Any, statement: str, *more: Any) -> None:
                if not turn.is_in_use:  # a statement of ours is sent under the locks of a block
                    self._wrote(statement)

            event.listen(connection, "begin", begin)
            event.listen(connection, "after_cursor_execute", executed)
            try:
                yield connection
            finally:
                if turn.writing:  # otherwise it has nothing to end, and the turn may be another's
                    with turn:
                        connection.close()
                        turn.writing = False
                        self._kept = None

    def plain_writes(self, spec: TableSpec) -> PlainWrites | None:
        written = self._plain_writes
        return written.get(_first_word(spec.table.name)) if written else None

    def _wrote(self, statement: str) -> None:
        """Note the tables that a statement of the user's names as those that it writes."""
        written = set(_WRITTEN.findall(statement.lower()))
        if not written:
            return
        for table in self.metadata.tables.values():
            if _first_word(table.name) in written:
                written.update(_first_word(_bare(name)) for name in self.cascades_from(table))
        for word in written:
            known = self._plain_writes.get(word)
            number = 1 if known is None else known.number + 1
            self._plain_writes[word] = PlainWrites(number, get_ident())

    def plain_uses(self) -> list[UserConnection]:
        kept = self._kept
        return [] if kept is None else [kept]

    def check_same_database(self, connection: Connection) -> None:
        raise ConfigurationError(
            "memory:// has connections of its own: pass a connection from "
            "`with db.connection() as …`"
        )

    def latch_of(self, connection: Connection) -> Latch:
        return self._turns[connection]

    def acquire(self, *, serializable: bool = False) -> Connection:
        return self._flat

    def begin_writing(self, connection: Connection, latch: Latch) -> None:
        assert isinstance(latch, _ConnectionTurn)
        if not latch.writing:
            latch.writing = True
            self._driver.execute("BEGIN")

    def commit(self, connection: Connection, *, lazily: bool) -> None:
        if self._driver.in_transaction:
            self._driver.execute("COMMIT")

    @contextmanager
    def reader(self) -> Iterator[None]:
        """Yield None: there is only one connection."""
        yield None

    def number_of(self, connection: Connection, *, is_ours: bool = True) -> str:
        """Return an empty text: the connection cannot be lost."""
        return ""

    def named(self, connection: Connection, number: str) -> str:
        """Return the number: there is no server that could restart."""
        return number

    def outcome(self, number: str) -> bool | None:
        """Return True: the connection cannot be lost."""
        return True

    def interrupt(self, driver_connection: Any) -> None:
        driver_connection.interrupt()

    def cut(self, driver_connection: Any) -> None:
        """Do nothing: there is no socket, and the running statement has been interrupted."""

    def backends(self) -> list[Backend]:
        """Return the empty list: there are no server processes."""
        return []

    def backend_of(self, connection: Connection) -> int | None:
        """Return None: there is no server process."""
        return None

    def release(self, connection: Connection, latch: Latch) -> None:
        assert isinstance(latch, _ConnectionTurn)
        if latch.writing:
            self._roll_back(connection)
            latch.writing = False
        if connection.in_transaction():  # for SQLAlchemy, which has seen some statements
            connection.rollback()

    def lock_table(self, connection: Connection, spec: TableSpec) -> None:
        """Do nothing: there is no other process."""

    def guard(
        self,
        connection: Connection,
        spec: TableSpec,
        keys: Sequence[Key] | None,
        *,
        exclusive: bool,
    ) -> None:
        """Do nothing: there is no other process."""

    def suspect(self) -> None:
        """Do nothing: the connection cannot be lost."""

    def next_number(self, connection: Connection, spec: TableSpec, name: str) -> int | None:
        column = spec.table.columns[name]
        sequence = column.default if isinstance(column.default, Numbers) else column.identity
        start, step = 1, 1
        if sequence is not None:
            start = 1 if sequence.start is None else sequence.start
            step = sequence.increment or 1
        driver = self._driver
        last, changes = self._numbers.get((spec.name, name), (start - step, None))
        number = last + step
        if changes != driver.total_changes:  # since then, plain SQL may have numbered rows, too
            ((end,),) = driver.execute(_last_number(column, step > 0))
            if end is not None and (end - number) * step >= 0:
                number = end + step
        self._numbers[spec.name, name] = number, driver.total_changes
        return number

    def _roll_back(self, connection: Connection) -> None:
        if connection.closed:  # with the database, under a transaction that is still open
            return
        if self._driver.in_transaction:
            self._driver.execute("ROLLBACK")


@lru_cache(maxsize=1_024)
def _last_number(column: Column[Any], is_rising: bool) -> str:
    """Return a SELECT of the last number in a column; one that rises, or falls."""
    last = func.max(column) if is_rising else func.min(column)
    return str(select(last).compile(dialect=sqlite.dialect()))


class _Definitions(SQLiteDDLCompiler):
    """Definitions of tables in which a default is the value that Postgres would store."""

    def get_column_default_string(self, column: Column[Any]) -> str | None:
        stored = sqlite_default(column, self.dialect)
        if stored is not None:
            return stored
        given = super().get_column_default_string(column)
        return None if given is None else f"({given})"


class _Instant(sqlite.DATETIME):
    """Timestamp that keeps its instant: SQLite has no time zones, so UTC is stored."""

    def bind_processor(self, dialect: Dialect) -> Any:
        store: Any = super().bind_processor(dialect)
        if not self.timezone:
            return store
        return lambda value: store(None if value is None else value.astimezone(UTC))

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        load: Any = super().result_processor(dialect, coltype)
        if not self.timezone:
            return load
        return lambda value: None if value is None else load(value).replace(tzinfo=UTC)


def _cascades_from(name: str, tables: Sequence[Table]) -> Sequence[str]:
    """Return the names of the tables in which SQLite changes rows if one of a table is deleted."""
    found: dict[str, None] = {}
    deleted = [_bare(name)]
    for parent in deleted:  # grows
        for child in tables:
            for foreign in child.foreign_key_constraints:
                answer = (foreign.ondelete or "").upper()
                if answer not in _CASCADES:
                    continue
                # By its name: the table need not be declared.
                target = foreign.elements[0].target_fullname.rpartition(".")[0]
                if _bare(target) == parent:
                    found[str(child.fullname)] = None
                    if answer == "CASCADE" and _bare(str(child.fullname)) not in deleted:
                        deleted.append(_bare(str(child.fullname)))
    return list(found)


def _bare(name: str) -> str:
    return name.removeprefix(f"{MemoryStore.schema}.")


@cache
def _own_tables() -> Sequence[str]:
    """Return the statements that create activedb's own tables: compiling them takes longest."""
    found: list[str] = []

    def add(statement: Any, *_: Any) -> None:
        found.append(str(statement.compile(dialect=sqlite.dialect())))

    system.create_all(create_mock_engine("sqlite://", add), checkfirst=False)
    return found


@lru_cache(maxsize=1_024)
def _first_word(name: str) -> str:
    found = re.search(r"\w+", name.lower())
    return name if found is None else found[0]


_WRITTEN = re.compile(
    r"\b(?:into|update(?:\s+or\s+\w+)?|delete\s+from|table)\s+(?:\W?main\W?\s*\.\s*)?\W?(\w+)"
)


class _ConnectionTurn:
    """A session's turn on the one connection; kept between uses once it has begun to write."""

    def __init__(self, store: MemoryStore, patience_s: float):
        self._store = store
        self._patience_s = patience_s
        self._threads = threading.RLock()
        self._depth = 0
        self.writing = False

    @property
    def is_in_use(self) -> bool:
        """True inside a use of the connection by a session. REQUIRES: no other has the turn."""
        return self._depth > 0

    def acquire(self, blocking: bool = True) -> bool:
        threads = self._threads
        if not (threads.acquire(blocking=False) or (blocking and wait_for_holder(threads))):
            return False
        if self._depth == 0 and not self.writing:
            is_ours = False
            try:
                is_ours = self._store._turn.acquire(False) or (blocking and self._waited())
            finally:  # an interrupt may end the wait
                if not is_ours:
                    threads.release()
            if not is_ours:
                return False
        self._depth += 1
        return True

    def _waited(self) -> bool:
        here, began_s = get_ident(), time.monotonic()
        while True:
            kept = self._store._kept
            if kept is not None and kept.thread == here:
                raise SelfDeadlock(
                    "memory:// has one connection, and a block of db.connection() on this same "
                    "thread keeps it from its first statement on, so the wait would never "
                    "end; end that block first, or pass its connection, "
                    "db.transaction(connection=…)"
                )
            never = None if kept is None else kept.hopeless_wait_error(here)
            if never is not None:
                raise never
            if self._store._turn.acquire(timeout=bounded_s(_LOOK_EVERY_S)):
                return True
            if not bounded_s(math.inf):
                raise StatementCancelled(f"the time limit was over while {_BUSY}")
            if time.monotonic() - began_s > self._patience_s:
                raise LockTimeout(f"{_BUSY} for longer than lock_timeout_ms; retry")

    def release(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0 and not self.writing:
            self._store._turn.release()
        self._threads.release()

    __enter__ = acquire
    __exit__ = release
