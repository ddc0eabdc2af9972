"""One hierarchy's conversation with the store: locked reads, queries over a sphere, one flush.

The server sees a hierarchy as one flat transaction (Saygin, Ulusoy, Chakravarthy, section
4.2.2); this class is that transaction. All threads of the hierarchy use it, one at a time.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Executable, Select
from sqlalchemy import Row as SQLRow
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from activedb.errors import (
    ActiveDBError,
    ConnectionLost,
    ConstraintViolation,
    InvalidRow,
    SerializationConflict,
    StoreError,
    UnsupportedStatement,
)
from activedb.store._faults import translated
from activedb.store._free_keys import free_to_insert
from activedb.store._latch import Latch
from activedb.store._overlay import Sphere, Unlocked
from activedb.store._owned import OwnedTable
from activedb.store._rows import rows_of
from activedb.store._savepoints import roll_back_to
from activedb.store._server_waits import publish
from activedb.store._shadow import Dirty
from activedb.store._tables import Key, Row, Tables, TableSpec
from activedb.store._write_set import Change, Log, naming, write, write_step_by_step

if TYPE_CHECKING:
    from activedb.store._store import Store

__all__ = ["Durable", "Session"]

Durable: TypeAlias = Callable[[Connection], None]
"""Something that must be durable together with a commit; it writes on the connection given."""


class Session:
    """A flat transaction on one connection, opened when it is first needed.

    Attributes
    ----------
    failure : ActiveDBError or None
        The first failure of a statement; the flat transaction can only be undone then.

    Latches: `_latch`, held for each use of the connection, taken after the hierarchy's and never
    before it; `_calls_latch`, held for a moment, under which nothing else is taken.
    """

    def __init__(self, store: Store, latch: Latch):
        self._store = store
        self._connection: Connection | None = None
        self._latch = latch
        self._thread = threading.get_ident()
        self._is_parallel = False
        self._has_written = False
        self.failure: ActiveDBError | None = None
        self._number: str | None = None
        self._flushed: list[Change] = []
        self._touched: list[OwnedTable] = []
        self._backend: int | None = None
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

    def lock_rows(
        self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool
    ) -> dict[Key, Row | None]:
        """Committed rows by key, each locked FOR SHARE or FOR UPDATE; None where absent.

        One round trip, none if this process owns the table. An absent row cannot be locked; see
        `guard`.
        """
        owned = self._owned(spec)
        if owned is not None:
            return owned.rows(keys)
        with self._using(f"read rows of {spec.name}") as connection:
            statement = spec.exclusive_select if exclusive else spec.shared_select
            return {**dict.fromkeys(keys), **_rows_by_key(connection, spec, statement, keys)}

    def lock_free_rows(self, spec: TableSpec, keys: Sequence[Key]) -> dict[Key, Row | None]:
        """As `lock_rows` with `exclusive`, without waiting: keys that others have are left out.

        One round trip, three more if there are such keys, or absent ones.
        """
        owned = self._owned(spec)
        if owned is not None:
            return owned.rows(keys)
        with self._using(f"read rows of {spec.name}") as connection:
            found: dict[Key, Row | None] = {}
            found |= _rows_by_key(connection, spec, spec.free_select, keys)
            rest = [key for key in keys if key not in found]
            if rest and self.is_shared:
                taken = _rows_by_key(connection, spec, spec.plain_select, rest)
                rest = [key for key in rest if key not in taken]
                table = f"{self._store.schema}.{spec.name}"
                rest = free_to_insert(connection, table, rest)
                # Those that somebody has inserted since then are found now.
                found |= _rows_by_key(connection, spec, spec.free_select, rest) if rest else {}
            return {**dict.fromkeys(rest), **found}

    def lock_table(self, spec: TableSpec) -> None:
        """Keep other processes from writing the table until this transaction ends."""
        if self._owned(spec) is not None:
            return
        with self._using(f"lock table {spec.name}") as connection:
            self._store.lock_table(connection, spec)

    def query(
        self,
        statement: Executable,
        tables: Tables,
        dirty: Mapping[TableSpec, Dirty],
        parameters: Mapping[str, Any] | None = None,
    ) -> list[SQLRow[Any]]:
        """Rows of a SELECT over the committed state with `dirty` laid over it.

        Parameters
        ----------
        tables : Tables
            The tables met so far, which text may name.
        dirty : mapping of TableSpec to (key to row or None)
            All tables that are locked for the statement, with what the sphere wrote to them.

        Raises
        ------
        Unlocked
            If it reads other tables; lock them and call again.
        UnsupportedStatement, InvalidRow, StoreError
            The flat transaction is unusable only after an error of the server.
        """
        sphere = Sphere(self._store, tables, dirty)
        with self.reading("run the query") as connection:
            try:
                with sphere.laid_over(connection):
                    return rows_of(connection, statement, parameters)
            except (Unlocked, UnsupportedStatement) as refused:
                failure: Exception = refused
            except DBAPIError:
                raise
            except StatementError as error:
                failure = InvalidRow(f"cannot run the query: {error.orig or error}")
                failure.__cause__ = error
            except SQLAlchemyError as error:
                failure = UnsupportedStatement(f"cannot run the query: {error}")
                failure.__cause__ = error
        raise failure

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

    def guard(self, spec: TableSpec, keys: Sequence[Key] | None, *, exclusive: bool) -> None:
        """Lock keys whose rows may be absent against other activedb processes; one round trip.

        Parameters
        ----------
        keys : sequence of Key or None
            None for every key of the table; exclusive then.
        exclusive : bool
            To insert them; otherwise to rely on their absence.
        """
        if self._owned(spec) is not None:
            return
        with self._using(f"guard absent rows of {spec.name}") as connection:
            self._store.guard(connection, spec, keys, exclusive=exclusive)

    def confirm_absent(self, keys: Mapping[TableSpec, Sequence[Key]]) -> None:
        """Check at commit that keys read as absent, and not inserted since, are absent still.

        Other activedb processes are kept out by `guard`; this is about everybody else.

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
            if self._touched:
                with translated("check whose tables they are"):
                    self._store.check_owned(connection, self._touched)
            self._flushed.extend(changes)
            self._write(connection, changes, log, lambda: self._store.trigger("inside flush"))
            for also in durable:
                with translated("write what must be durable with the commit"):
                    also(connection)

    def trial(self, changes: Sequence[Change], log: Log) -> None:
        """Find out whether the server would accept `changes`, and undo them.

        REQUIRES: nothing has been written yet. Raises as `flush` does.
        """
        with self._writing("try the rows of a commit") as connection:
            try:
                self._write(connection, changes, log, lambda: None)
            finally:
                self.close()

    def _write(
        self,
        connection: Connection,
        changes: Sequence[Change],
        log: Log,
        inside: Callable[[], object],
    ) -> None:
        metadata = self._store.metadata
        if len(changes) < 2 or not any(c.spec.depends_on_order for c in changes):
            write(connection, changes, metadata, inside)
            return
        try:
            with self.savepoint():
                write(connection, changes, metadata, inside)
        except ConstraintViolation:
            # Refused, or only in the wrong order?
            write_step_by_step(connection, changes, log, metadata, inside)

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo on the server what an error inside has done, and go on.

        Savepoints are last in, first out: nothing else may use the session meanwhile that is
        not part of the block.
        """
        with self._writing("set a savepoint") as connection:
            connection.exec_driver_sql("SAVEPOINT activedb")
        flushed = len(self._flushed)
        try:
            yield
        except BaseException:
            del self._flushed[flushed:]
            self.recover()
            with self._using("go back to the savepoint"):
                roll_back_to(connection, "activedb")
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
                        with (
                            self._using("commit") as connection,
                            naming(connection, "commit", self._flushed),  # deferred constraints
                        ):
                            self._store.commit(connection, lazily=lazily)
                    except ConnectionLost as lost:
                        self._settle(lost)
                    self._hand_over()
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
            for owned in self._touched:
                owned.forget()
            ending = "whether it took place is unknown: look before you try again"
        else:
            ending = "nothing was committed; retry the transaction"
        raise ConnectionLost(f"{lost}; {ending}", committed=committed) from lost

    def close(self) -> None:
        """Undo what is not committed and give the connection back; safe to call again."""
        with self._latch:
            connection, self._connection, self._backend = self._connection, None, None
            if connection is not None:
                self._store.release(connection, self._latch)

    # -- seen from other threads -----------------------------------------------------------

    def cancel(self, threads: Collection[int] | None = None) -> None:
        """End the statements that are running for this hierarchy, if any; for any thread.

        They raise `StatementCancelled`. O(1) round trips each.

        Parameters
        ----------
        threads : collection of int, optional
            Identifiers of the threads whose statements are meant; None for all.
        """
        # Under the latch, so that no connection is used for anything else meanwhile.
        with self._calls_latch:
            for driver_connection, (_, thread) in self._calls.items():
                if threads is None or thread in threads:
                    self._store.interrupt(driver_connection)

    @property
    def backend(self) -> int | None:
        """Number of the server's process for this flat transaction, while it runs."""
        return self._backend

    @property
    def called_s(self) -> float:
        """For how long the oldest running statement has been running, in seconds; 0 if none."""
        with self._calls_latch:
            return max((time.monotonic() - began for began, _ in self._calls.values()), default=0.0)

    def read_beside(self) -> None:
        """Run queries on connections of the pool from now on: one of them may be cancelled."""
        self._is_parallel = True

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
            return False  # its transaction has failed already
        finally:
            self._latch.release()

    # -- inside ----------------------------------------------------------------------------

    def _owned(self, spec: TableSpec) -> OwnedTable | None:
        """The table's rows if this process owns it; it is touched then, and else used."""
        self._store.use(spec)
        owned = self._store.owned(spec)
        if owned is not None and owned not in self._touched:
            self._touched.append(owned)
        return owned

    def _hand_over(self) -> None:
        """Let the memory of owned tables have what was committed."""
        if self._touched:
            for change in self._flushed:
                owned = self._store.owned(change.spec)
                if owned is not None:
                    owned.put(change.key, change.new)

    def recover(self) -> None:
        """Go on: what has failed was undone at the server, back to a savepoint before it."""
        self.failure = None

    @contextmanager
    def _using(self, doing: str) -> Iterator[Connection]:
        """The connection, for one statement or a few."""
        self._note_thread()
        with self._latch:
            if self.failure is not None:
                # Another thread's statement: the server takes no more of this transaction.
                raise copy.copy(self.failure) from self.failure
            try:
                with translated(doing):
                    connection = self._open()
                    with self._calling(connection):
                        yield connection
            except ConnectionLost as error:
                self.failure = self.failure or error
                self._store.suspect()
                raise
            except ActiveDBError as error:
                self.failure = self.failure or error
                raise
            except BaseException as error:
                self.failure = self.failure or StoreError(f"cannot {doing}: {error!r}")
                raise

    @contextmanager
    def _writing(self, doing: str) -> Iterator[Connection]:
        with self._using(doing) as connection:
            self._store.begin_writing(connection, self._latch)
            self._has_written = True
            yield connection

    @contextmanager
    def _calling(self, connection: Connection) -> Iterator[None]:
        """Let `cancel` end what runs on the connection inside."""
        driver_connection = connection.connection.driver_connection
        with self._calls_latch:
            outer = self._calls.get(driver_connection)
            if outer is None:
                self._calls[driver_connection] = (time.monotonic(), threading.get_ident())
        try:
            yield
        finally:
            if outer is None:
                with self._calls_latch:
                    del self._calls[driver_connection]

    def _note_thread(self) -> None:
        if not self._is_parallel and threading.get_ident() != self._thread:
            self._is_parallel = True

    def _open(self) -> Connection:
        if self._connection is None:
            self._connection = self._store.acquire()
            self._backend = self._store.backend_of(self._connection)
        return self._connection


def _rows_by_key(
    connection: Connection, spec: TableSpec, statement: Select[Any], keys: Sequence[Key]
) -> dict[Key, Row]:
    """What a SELECT by key finds."""
    wanted = [key[0] for key in keys] if len(spec.key_columns) == 1 else list(keys)
    rows = map(spec.row, connection.execute(statement, {"keys": wanted}))
    return {spec.key_of(row): row for row in rows}
