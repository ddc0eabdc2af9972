"""The memory twin: committed rows in an in-memory SQLite database of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC
from typing import Any

from sqlalchemy import Connection, DateTime, Dialect, MetaData, create_engine, func, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.pool import StaticPool

from activedb.store._store import Store
from activedb.store._system import system
from activedb.store._tables import TableSpec

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """Same statements, same constraints, nothing durable.

    All sessions share one SQLite connection, so a session that has begun to write keeps the
    turn until it ends.
    """

    schema = "main"
    has_arrays = False
    is_shared = False

    def __init__(self, metadata: MetaData):
        engine = create_engine(
            "sqlite://",
            poolclass=StaticPool,
            connect_args={"check_same_thread": False, "isolation_level": None},
        )
        engine.dialect.colspecs = {**engine.dialect.colspecs, DateTime: _Instant}
        super().__init__(engine, metadata)
        self._free = threading.Condition()
        self._owner: _Turn | None = None
        self._numbers: dict[str, int] = {}
        with engine.connect() as connection:  # outside a transaction, where it has an effect
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")

    def migrate(self) -> None:
        with self.short() as connection:
            system.create_all(connection)

    @contextmanager
    def short(self) -> Iterator[Connection]:
        turn = self.latch()
        with turn, self.engine.connect() as connection:
            self.begin_writing(connection, turn)
            try:
                yield connection
                self.commit(connection, lazily=False)
            finally:
                self._roll_back(connection)
                turn.writing = False

    def latch(self) -> _Turn:
        return _Turn(self)

    def acquire(self) -> Connection:
        return self.engine.connect()

    def begin_writing(self, connection: Connection, latch: AbstractContextManager[Any]) -> None:
        assert isinstance(latch, _Turn)
        if not latch.writing:
            latch.writing = True
            connection.exec_driver_sql("BEGIN")

    def commit(self, connection: Connection, *, lazily: bool) -> None:
        if _in_transaction(connection):
            connection.exec_driver_sql("COMMIT")

    @contextmanager
    def reader(self) -> Iterator[None]:
        """No connection: there is only one."""
        yield None

    def number_of(self, connection: Connection) -> str:
        """Nothing to ask: the connection cannot be lost."""
        return ""

    def outcome(self, number: str) -> bool | None:
        """Nothing to ask: the connection cannot be lost."""
        return None

    def interrupt(self, connection: Connection) -> None:
        connection.connection.dbapi_connection.interrupt()  # type: ignore[union-attr]

    def backend_of(self, connection: Connection) -> int | None:
        """No server, no process."""
        return None

    def release(self, connection: Connection, latch: AbstractContextManager[Any]) -> None:
        assert isinstance(latch, _Turn)
        if latch.writing:
            self._roll_back(connection)
            latch.writing = False
        connection.close()

    def lock_table(self, connection: Connection, spec: TableSpec) -> None:
        """Nothing to do: there is no other process."""

    def guard_absence(self, connection: Connection, table: str, *, exclusive: bool) -> None:
        """Nothing to do: there is no other process."""

    def next_key(self, connection: Connection, spec: TableSpec) -> int:
        assert spec.generated is not None
        if spec.name not in self._numbers:
            highest = connection.scalar(select(func.max(spec.table.c[spec.generated])))
            self._numbers[spec.name] = highest or 0
        self._numbers[spec.name] += 1
        return self._numbers[spec.name]

    def _roll_back(self, connection: Connection) -> None:
        if _in_transaction(connection):
            connection.exec_driver_sql("ROLLBACK")


class _Instant(sqlite.DATETIME):
    """A timestamp that keeps its instant: SQLite has no time zones, so UTC is stored."""

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


def _in_transaction(connection: Connection) -> bool:
    return bool(connection.connection.dbapi_connection.in_transaction)  # type: ignore[union-attr]


class _Turn:
    """A session's turn on the one connection; kept between uses once it has begun to write."""

    def __init__(self, store: MemoryStore):
        self._store = store
        self._threads = threading.RLock()
        self._depth = 0
        self.writing = False

    def __enter__(self) -> None:
        self._threads.acquire()
        store = self._store
        with store._free:
            store._free.wait_for(lambda: store._owner in (None, self))
            store._owner = self
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        store = self._store
        if self._depth == 0 and not self.writing:
            with store._free:
                store._owner = None
                store._free.notify_all()
        self._threads.release()
