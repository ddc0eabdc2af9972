"""One hierarchy's conversation with the store: locked reads, queries over a sphere, one flush.

The server sees a hierarchy as one flat transaction (Saygin, Ulusoy, Chakravarthy, section
4.2.2); this class is that transaction. All threads of the hierarchy use it, one at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Executable, Select
from sqlalchemy import Row as SQLRow

from activedb.errors import ConnectionLost, ConstraintViolation, SerializationConflict
from activedb.store._faults import translated
from activedb.store._overlay import overlaid
from activedb.store._tables import Key, Row, TableSpec
from activedb.store._write_set import Change, Log, write, write_step_by_step

if TYPE_CHECKING:
    from activedb.store._store import Store

__all__ = ["Durable", "Session"]

Durable: TypeAlias = Callable[[Connection], None]
"""Something that must be durable together with a commit; it writes on the connection given."""


class Session:
    """A flat transaction on one connection, opened when it is first needed.

    Latches: `_latch`, held for each use of the connection, taken after the hierarchy's and never
    before it; `_calls_latch`, held for a moment, under which nothing else is taken.
    """

    def __init__(self, store: Store, latch: AbstractContextManager[Any]):
        self._store = store
        self._connection: Connection | None = None
        self._latch = latch
        self._thread = threading.get_ident()
        self._is_parallel = False
        self._has_written = False
        self._number: str | None = None
        self._calls: dict[Connection, float] = {}
        self._calls_latch = threading.Lock()

    @property
    def is_shared(self) -> bool:
        """Whether other sessions can write while this one does."""
        return self._store.is_shared

    def lock_rows(
        self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool
    ) -> dict[Key, Row | None]:
        """Committed rows by key, each locked FOR SHARE or FOR UPDATE; None where absent.

        One round trip. An absent row cannot be locked; `confirm_absent` checks it at commit.
        """
        with self._using(f"read rows of {spec.name}") as connection:
            statement = spec.exclusive_select if exclusive else spec.shared_select
            found: dict[Key, Row | None] = dict.fromkeys(keys)
            wanted = [k[0] for k in keys] if len(spec.key_columns) == 1 else list(keys)
            for values in connection.execute(statement, {"keys": wanted}):
                row = spec.row(values)
                found[spec.key_of(row)] = row
            return found

    def lock_table(self, spec: TableSpec) -> None:
        """Keep other processes from writing the table until this transaction ends."""
        with self._using(f"lock table {spec.name}") as connection:
            self._store.lock_table(connection, spec)

    def query(
        self, statement: Executable, dirty: Mapping[TableSpec, Mapping[Key, Row | None]]
    ) -> list[SQLRow[Any]]:
        """Rows of a SELECT over the committed state with `dirty` laid over it."""
        store = self._store
        seen = overlaid(statement, dirty, schema=store.schema, arrays=store.has_arrays)
        with self.reading("run the query") as connection:
            return list(connection.execute(seen).all())

    @contextmanager
    def reading(self, doing: str) -> Iterator[Connection]:
        """A connection on which to run SELECTs over the committed state.

        REQUIRES: the tables read are locked, so that every connection sees them alike.

        A hierarchy that several threads use reads on connections of a pool, in parallel, as
        long as one is free and nothing is written on its own.
        """
        self._note_thread()
        if self._is_parallel and not self._has_written:
            with self._store.reader() as side:
                if side is not None:
                    with translated(doing), self._calling(side):
                        yield side
                    return
        with self._using(doing) as connection:
            yield connection

    def value_of(self, default: Callable[[], Any] | Select[Any]) -> Any:
        """Value of a column's default: what the call returns, or what the server says."""
        if not isinstance(default, Select):
            return default()
        with self._using("compute a default") as connection:
            return connection.scalar(default)

    def next_key(self, spec: TableSpec) -> int:
        """Next number for a table whose key the database generates."""
        with self._using(f"number a row of {spec.name}") as connection:
            return self._store.next_key(connection, spec)

    def guard_absence(self, read: Iterable[TableSpec], inserted: Iterable[TableSpec]) -> None:
        """Let no other process insert rows between `confirm_absent` and the commit.

        Parameters
        ----------
        read, inserted : iterables of TableSpec
            Tables whose absent rows were read, and tables that are about to get new rows.
        """
        exclusive = {spec.name for spec in read}
        tables = sorted(exclusive | {spec.name for spec in inserted})
        if tables:
            with self._using("guard absent rows") as connection:
                for name in tables:
                    self._store.guard_absence(connection, name, exclusive=name in exclusive)

    def confirm_absent(self, keys: Mapping[TableSpec, Sequence[Key]]) -> None:
        """Check at commit that keys read as absent, and not inserted since, are absent still.

        REQUIRES: `guard_absence` for the tables.

        Raises
        ------
        SerializationConflict
            If another process inserted one of them meanwhile.
        """
        for spec in keys:
            found = self.lock_rows(spec, keys[spec], exclusive=False)
            for key, row in found.items():
                if row is not None:
                    raise SerializationConflict(
                        f"table {spec.name}: another process inserted {key!r} after it was read "
                        f"as absent; retry the transaction"
                    )

    def flush(self, changes: Sequence[Change], log: Log, durable: Iterable[Durable] = ()) -> None:
        """Write a write set and everything that must be durable with it.

        Parameters
        ----------
        changes : sequence of Change
            Written set by set and in key order where that is possible; see `write`.
        log : sequence of (TableSpec, key, row or None)
            The steps that led to `changes`, for where it is not.

        Raises
        ------
        ConstraintViolation, InvalidRow, SerializationConflict
            When the server refuses a row.
        """
        self._store.trigger("before flush")
        with self._writing("write the rows of a commit") as connection:
            self._number = self._store.number_of(connection)
            self._write(connection, changes, log)
            self._store.trigger("inside flush")
            for also in durable:
                with translated("write what must be durable with the commit"):
                    also(connection)

    def trial(self, changes: Sequence[Change], log: Log) -> None:
        """Find out whether the server would accept `changes`, and undo them.

        REQUIRES: nothing has been written yet. Raises as `flush` does.
        """
        with self._writing("try the rows of a commit") as connection:
            try:
                self._write(connection, changes, log)
            finally:
                self.close()

    def _write(self, connection: Connection, changes: Sequence[Change], log: Log) -> None:
        metadata = self._store.metadata
        if len(changes) < 2 or not any(c.spec.depends_on_order for c in changes):
            write(connection, changes, metadata)
            return
        try:
            with self.savepoint():
                write(connection, changes, metadata)
        except ConstraintViolation:
            # Refused, or only in the wrong order?
            write_step_by_step(connection, changes, log, metadata)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo on the server what an error inside has done, and go on.

        Savepoints are last in, first out: nothing else may use the session meanwhile that is
        not part of the block.
        """
        with self._writing("set a savepoint") as connection:
            connection.exec_driver_sql("SAVEPOINT activedb")
        try:
            yield
        except BaseException:
            with self._using("go back to the savepoint"):
                connection.exec_driver_sql("ROLLBACK TO SAVEPOINT activedb")
            raise
        with self._using("release the savepoint"):
            connection.exec_driver_sql("RELEASE SAVEPOINT activedb")

    def commit(self, *, lazily: bool = False) -> None:
        """Make everything flushed durable and give the connection back.

        If the connection is lost meanwhile, the server is asked on another one what became of
        the transaction.

        Parameters
        ----------
        lazily : bool
            Do not wait for the disk: right where somebody replays what a server crash may lose.

        Raises
        ------
        ConnectionLost
            With `committed` False: nothing was committed. With None: the server cannot say.
        """
        with self._latch:
            try:
                if self._connection is not None:
                    self._store.trigger("before commit")
                    try:
                        with self._using("commit") as connection:
                            self._store.commit(connection, lazily=lazily)
                    except ConnectionLost as lost:
                        self._settle(lost)
                    self._store.trigger("after commit")
            finally:
                self.close()

    def _settle(self, lost: ConnectionLost) -> None:
        """Return if a transaction whose commit was cut off has committed, else raise."""
        if self._number is None:
            return  # it wrote nothing
        committed = self._store.outcome(self._number)
        if committed:
            return
        if committed is None:
            ending = "whether it took place is unknown: look before you try again"
        else:
            ending = "nothing was committed; retry the transaction"
        raise ConnectionLost(f"{lost}; {ending}", committed=committed) from lost

    def close(self) -> None:
        """Undo what is not committed and give the connection back; safe to call again."""
        with self._latch:
            connection, self._connection = self._connection, None
            if connection is not None:
                self._store.release(connection, self._latch)

    # -- seen from other threads -----------------------------------------------------------

    def cancel(self) -> None:
        """End the statements that are running for this hierarchy, if any; for any thread.

        They raise `StatementCancelled`. O(1) round trips each.
        """
        # Under the latch, so that no connection is used for anything else meanwhile.
        with self._calls_latch:
            for connection in self._calls:
                self._store.interrupt(connection)

    @property
    def backend(self) -> int | None:
        """Number of the server's process for this flat transaction, once it has begun."""
        connection = self._connection
        return None if connection is None else self._store.backend_of(connection)

    @property
    def called_s(self) -> float:
        """For how long the oldest running statement has been running, in seconds; 0 if none."""
        with self._calls_latch:
            return max((time.monotonic() - began for began in self._calls.values()), default=0.0)

    # -- inside ----------------------------------------------------------------------------

    @contextmanager
    def _using(self, doing: str) -> Iterator[Connection]:
        """The connection, for one statement or a few."""
        self._note_thread()
        with self._latch, translated(doing):
            connection = self._open()
            with self._calling(connection):
                yield connection

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        with self._using(doing) as connection:
            self._store.begin_writing(connection, self._latch)
            self._has_written = True
            yield connection

    @contextmanager
    def _calling(self, connection: Connection) -> Iterator[None]:
        """Let `cancel` end what runs on the connection inside."""
        with self._calls_latch:
            outer = self._calls.get(connection)
            if outer is None:
                self._calls[connection] = time.monotonic()
        try:
            yield
        finally:
            if outer is None:
                with self._calls_latch:
                    del self._calls[connection]

    def _note_thread(self) -> None:
        if not self._is_parallel and threading.get_ident() != self._thread:
            self._is_parallel = True

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._store.acquire()
        return self._connection
