"""Session of one hierarchy with the store: locked reads, queries over a sphere, one flush.

The underlying connection, its commit and its errors are in `_flat`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Connection, Executable
from sqlalchemy import Row as SQLRow
from sqlalchemy.exc import DBAPIError, ResourceClosedError, SQLAlchemyError, StatementError

from activedb.config import Isolation
from activedb.errors import (
    ConnectionLost,
    ConstraintViolation,
    InvalidRow,
    SelfDeadlock,
    SerializationConflict,
    TableOwned,
    UnsupportedStatement,
)
from activedb.store.flush import (
    Asked,
    Change,
    Log,
    Opening,
    follows_log,
    phases,
    refuse,
    steps,
    write,
    write_in_order,
)
from activedb.store.replication import session_mark, set_local_mark
from activedb.store.server import translate_errors
from activedb.store.session._flat import FlatTransaction, Latch, Use
from activedb.store.session._ownership import OwnedTable
from activedb.store.sql import (
    Dirty,
    Key,
    LockedRows,
    Row,
    Sphere,
    Tables,
    TableSpec,
    Unlocked,
    free_to_insert,
    guard_number,
    lock_row,
    lock_single_row,
    rows_by_key,
    rows_of,
    table_guard_number,
)

if TYPE_CHECKING:
    from activedb.store.session._store import PlainWrites, Store
    from lockmgr import Predicate

__all__ = ["NOTHING_ASKED", "Durable", "Session"]

NOTHING_ASKED: Asked = MappingProxyType({})

Durable: TypeAlias = Callable[[Connection], None]
"""Function whose writes, on the given connection, become durable together with a commit."""


class Session(FlatTransaction):
    """Flat transaction of a hierarchy in terms of rows: reads, queries, guards and a flush."""

    def __init__(self, store: Store, latch: Latch, isolation: Isolation = "locks"):
        super().__init__(store, latch, isolation)
        self._flushed: list[Change] = []
        self._touched: list[OwnedTable] = []
        self._rewritten: list[TableSpec] = []
        # Of the tables it has read, as of the first read; None where the server locks what is read.
        self._plain_writes: dict[TableSpec, PlainWrites | None] | None = (
            None if store.is_shared else {}
        )
        self._may_have_written = False  # by a function that a query has called

    def lock_rows(
        self, spec: TableSpec, keys: Sequence[Key], *, exclusive: bool, guarding: bool = False
    ) -> dict[Key, Row | None]:
        """Return committed rows by key, each locked FOR SHARE or FOR UPDATE; None where absent.

        One round trip, none if this process owns the table. Under SERIALIZABLE, rows to be read are
        not locked.

        Parameters
        ----------
        guarding : bool
            Guard the keys before they are read: an absent row cannot be locked. One more round trip
            if there are several.
        """
        owned = self._owned(spec)
        if owned is not None:
            return owned.rows(keys)
        with Use(self, f"read rows of {spec.name}") as connection:
            self._reads((spec,))
            if len(keys) == 1:
                key = keys[0]
                guard = None
                if guarding:
                    name = self._store.ownership.name_of(spec)
                    guard = table_guard_number(name), guard_number(name, key)
                plain = self.is_serializable and not exclusive
                row, number = lock_row(
                    connection,
                    spec,
                    key,
                    exclusive=exclusive,
                    numbered=self._store.tells_outcomes and not plain,
                    guard=guard,
                    plain=plain,
                )
                if number is not None and self._number is None:
                    self._number = self._store.named(connection, number)
                return {key: row}
            if guarding:
                self._store.guard(connection, spec, keys, exclusive=exclusive)
            shared = spec.plain_select if self.is_serializable else spec.shared_select
            statement = spec.exclusive_select if exclusive else shared
            return {**dict.fromkeys(keys), **rows_by_key(connection, spec, statement, keys)}

    def locks_rows(self, spec: TableSpec) -> bool:
        """Return whether rows are locked on the server: not if only this process uses them."""
        return self.is_shared and self._store.ownership.owned(spec) is None

    def locks_late(self, spec: TableSpec) -> bool:
        """Return whether rows locked for reading may be locked for writing along with the write."""
        return not self.is_serializable and self._store.ownership.owned(spec) is None

    def absent_now(self, spec: TableSpec, keys: Sequence[Key]) -> list[Key]:
        """Return the keys without a row, as a separate connection sees; none if none is free.

        For a transaction under SERIALIZABLE that inserts them: a read of its own would conflict
        with all that insert neighbours. One round trip.
        """
        with self.beside(f"look for rows of {spec.name}") as side:
            if side is None:
                return []
            taken = rows_by_key(side, spec, spec.plain_select, keys)
        return [key for key in keys if key not in taken]

    def lock_free_rows(self, spec: TableSpec, keys: Sequence[Key]) -> dict[Key, Row | None]:
        """Read as `lock_rows` with `exclusive`, but leave out keys locked by others; never wait.

        One round trip, three more if there are such keys, or absent ones.
        """
        owned = self._owned(spec)
        if owned is not None:
            return owned.rows(keys)
        with Use(self, f"read rows of {spec.name}") as connection:
            self._reads((spec,))
            found: dict[Key, Row | None] = {}
            found |= rows_by_key(connection, spec, spec.free_select, keys)
            rest = [key for key in keys if key not in found]
            if rest and self.is_shared:
                taken = rows_by_key(connection, spec, spec.plain_select, rest)
                rest = [key for key in rest if key not in taken]
                rest = free_to_insert(connection, self._store.ownership.name_of(spec), rest)
                # Rows that another transaction has inserted since then are found now.
                found |= rows_by_key(connection, spec, spec.free_select, rest) if rest else {}
            return {**dict.fromkeys(rest), **found}

    def lock_table(self, spec: TableSpec) -> None:
        """Block writes of other processes to the table until this transaction ends.

        Not under SERIALIZABLE.
        """
        if self._owned(spec, loads=False) is not None or self.is_serializable:
            return
        with Use(self, f"lock table {spec.name}") as connection:
            self._store.lock_table(connection, spec)

    def query(
        self,
        statement: Executable,
        tables: Tables,
        dirty: Mapping[TableSpec, Dirty],
        parameters: Mapping[str, Any] | None = None,
        locked: LockedRows | None = None,
        committed: Mapping[TableSpec, Dirty] | None = None,
    ) -> list[SQLRow[Any]]:
        """Return the rows of a SELECT over the committed state overlaid with `dirty`.

        Parameters
        ----------
        tables : Tables
            Known tables, which SQL text may name.
        dirty : mapping of TableSpec to (key to row or None)
            All tables that are locked for the statement, with the sphere's writes to them.
        locked : LockedRows, optional
            Rows that are locked in place of some of those tables.
        committed : mapping of TableSpec to (key to row or None), optional
            Committed rows of the tables with inexact columns, as they were read.

        Raises
        ------
        Unlocked
            If it reads other tables; lock them and call again.
        UnsupportedStatement, InvalidRow, StoreError
            Only after a server error is the flat transaction unusable.
        """
        sphere = Sphere(self._store, tables, dirty, locked, committed)
        with self.reading("run the query") as connection:
            self._reads(dirty)
            try:
                with sphere.laid_over(connection):
                    return rows_of(connection, statement, parameters)
            except Unlocked as refused:
                # Not an error yet. SQLAlchemy's frames in the traceback refer to it in turn.
                failure: Exception = refused.with_traceback(None)
            except UnsupportedStatement as refused:
                failure = refused
            except (DBAPIError, ResourceClosedError):
                raise
            except StatementError as error:
                failure = InvalidRow(f"cannot run the query: {error.orig or error}")
                failure.__cause__ = error
            except SQLAlchemyError as error:
                failure = UnsupportedStatement(f"cannot run the query: {error}")
                failure.__cause__ = error
            finally:
                self._may_have_written |= sphere.may_write
        try:
            raise failure
        finally:
            del failure  # its traceback refers to this frame

    def next_number(self, spec: TableSpec, name: str) -> int | None:
        """Return the next number of a column that the database numbers; None if it has none."""
        with Use(self, f"number a row of {spec.name}") as connection:
            return self._store.next_number(connection, spec, name)

    def guard(self, spec: TableSpec, keys: Sequence[Key] | None, *, exclusive: bool) -> None:
        """Lock keys whose rows may be absent against other activedb processes; one round trip.

        Parameters
        ----------
        keys : sequence of Key or None
            None for every key of the table; exclusive then.
        exclusive : bool
            True to insert the keys; False to rely on their absence.
        """
        if self._owned(spec) is not None:
            return
        with Use(self, f"guard absent rows of {spec.name}") as connection:
            self._store.guard(connection, spec, keys, exclusive=exclusive)

    def confirm_absent(self, keys: Mapping[TableSpec, Sequence[Key]]) -> None:
        """Check at commit that keys read as absent, and not inserted since, are still absent.

        `guard` keeps out other activedb processes; this check is about all other programs. Under
        SERIALIZABLE, the server checks.

        Raises
        ------
        SerializationConflict
            If another process inserted one of them meanwhile.
        SelfDeadlock
            If plain SQL on the same thread did, in memory.
        """
        self._check_plain_writes()  # it knows of which thread
        for spec in () if self.is_serializable else keys:
            found = self.lock_rows(spec, keys[spec], exclusive=False)
            for key, row in found.items():
                if row is not None:
                    raise SerializationConflict(
                        f"table {spec.name}: another process inserted {key!r} after it was read "
                        f"as absent; retry the transaction"
                    )

    def lock_single_row(
        self, spec: TableSpec, predicate: Predicate, *, exclusive: bool
    ) -> tuple[Row | None, list[Key]]:
        """Lock the row that satisfies a predicate, if it is the only one and free.

        Returns it, and the keys of all rows that do. One round trip. REQUIRES: `locks_rows`.
        """
        self._owned(spec)
        with Use(self, f"read rows of {spec.name}") as connection:
            numbered = self._store.tells_outcomes
            row, keys, number = lock_single_row(
                connection, spec, predicate, exclusive=exclusive, numbered=numbered
            )
            if number is not None and self._number is None:
                self._number = self._store.named(connection, number)
            return row, keys

    def rewrites(self, spec: TableSpec) -> None:
        """Note that a `Durable` of this commit will write rows of a table directly.

        Its rows in memory are read again after the commit. REQUIRES: the table is locked.
        """
        self._rewritten.append(spec)

    def flush(self, changes: Sequence[Change], log: Log, durable: Iterable[Durable] = ()) -> None:
        """Write a write set and everything that must be durable with it.

        Parameters
        ----------
        changes : sequence of Change
            Written in bulk and in key order where possible; see `write`.
        log : sequence of (TableSpec, mapping of key to row or None)
            Statements that led to `changes`, to be replayed otherwise.

        Raises
        ------
        ConstraintViolation, InvalidRow, SerializationConflict
            If the server refuses a row.
        """
        self._store.trigger("before flush")
        with Use(self, "write the rows of a commit", writing=True) as connection:
            if self.is_shared:
                Opening(changes, {}, self.locks_rows).run(connection)
            self._about_to_write(connection, changes)
            self._write(connection, changes, log, lambda: self._store.trigger("inside flush"))
            for also in durable:
                with translate_errors("write the records of the commit"):
                    also(connection)

    def commit(
        self,
        changes: Sequence[Change] = (),
        log: Log = (),
        durable: Iterable[Durable] = (),
        *,
        asked: Asked = NOTHING_ASKED,
        lazily: bool = False,
    ) -> None:
        """Write the remaining changes, as `flush` does, commit, and return the connection.

        A few changes are written and committed in one round trip. If the connection is lost
        meanwhile, the in-doubt commit is resolved on another connection. A transaction that has
        written nothing is rolled back instead, as its locks are not worth a wait for the disk; not
        under SERIALIZABLE, where what was read is only certain once the server has accepted it.

        Parameters
        ----------
        asked : mapping of TableSpec to (predicate to keys)
            `changes` are written only if no other rows satisfy the predicates.
        lazily : bool
            Do not wait for the disk: safe where work that a server crash may lose is replayed.

        Raises
        ------
        ConstraintViolation, InvalidRow
            If the server refuses a row.
        SerializationConflict
            If another process has changed an answer, or inserted the key of a row.
        ConnectionLost
            With `committed` False: nothing was committed. With None: the outcome is unknown.
        """
        with self._latch:
            try:
                if self._plain_writes:
                    self._check_plain_writes()
                last: Sequence[Change] = ()
                checked = asked if self.relies_on_locks else NOTHING_ASKED
                for spec in checked:
                    self._owned(spec, loads=False)  # the lock may be lost since the read
                opening = None
                if checked or (self.is_shared and any(change.is_shared for change in changes)):
                    opening = Opening(changes, checked, self.locks_rows)
                if changes and not (
                    self._flushed or durable or lazily or self._order(changes, log)
                ):
                    last = changes
                    self._store.trigger("before flush")
                else:
                    if opening:
                        with Use(self, "check the answers of a commit") as connection:
                            opening.run(connection)
                        changes = [change._replace(is_shared=False) for change in changes]
                    if changes or durable:
                        self.flush(changes, log, durable)
                if (
                    last
                    or self._has_written
                    or self._may_have_written
                    or (self.is_serializable and self._connection is not None)
                ):
                    self._commit(last, opening, lazily=lazily)
            except ConstraintViolation:
                self._store.constraints = {}  # one may be new, and the order of the writes matter
                raise
            finally:
                self.close()

    def _commit(self, last: Sequence[Change], opening: Opening | None, *, lazily: bool) -> None:
        """Commit, along with the last, still unwritten changes if there are any."""
        try:
            with Use(self, "commit", writing=bool(last)) as connection:
                is_committed = False
                if last:
                    self._about_to_write(connection, last)
                    is_committed = write(
                        connection,
                        last,
                        self._store.metadata,
                        lambda: self._store.trigger("inside flush"),
                        opening=opening,
                        committing=lambda: self._store.trigger("before commit"),
                    )
                if not is_committed:
                    self._store.trigger("before commit")
                    try:
                        self._store.commit(connection, lazily=lazily)
                    except BaseException as error:
                        refuse(error, connection, "commit", self._flushed)  # deferred constraints
                        raise
        except ConnectionLost as lost:
            self._settle(lost)
        self._committed()
        self._store.trigger("after commit")

    def raises(self, is_raised: bool) -> None:
        """Do nothing: events are raised for all writes made here; see `ExternalSession`."""

    def _mark(self, connection: Connection) -> None:
        """Mark the writes with the rules that see their events, if these have changed."""
        raised = self._store.raised(self._store.schema)
        if raised != session_mark(connection):
            set_local_mark(connection, raised)

    def _about_to_write(self, connection: Connection, changes: Sequence[Change]) -> None:
        self._flushed.extend(changes)  # from now on, a lost connection needs `outcome`
        if self.is_shared:
            self._mark(connection)
        if self._number is None:
            self._number = self._store.number_of(connection)
        for spec in {change.spec: None for change in changes}:
            self._store.ownership.touch(spec, loads=False)  # the lock may be lost since the read
        if self._touched:
            with translate_errors("check whose tables they are"):
                self._store.ownership.check(connection, self._touched)

    def trial(self, changes: Sequence[Change], log: Log) -> None:
        """Test whether the server would accept `changes`, and undo them.

        REQUIRES: nothing has been written yet. Raises as `flush` does.
        """
        try:
            with Use(self, "try the rows of a commit", writing=True) as connection:
                self._write(connection, changes, log, lambda: None)
        finally:
            self.close()
            self.recover()

    def _write(
        self,
        connection: Connection,
        changes: Sequence[Change],
        log: Log,
        inside: Callable[[], object],
    ) -> None:
        metadata = self._store.metadata
        order = self._order(changes, log)
        if order is None:
            write(connection, changes, metadata, inside)
            return
        try:
            with self.savepoint():
                if order is _WriteOrder.LOGGED:
                    write_in_order(connection, changes, phases(log), metadata, inside)
                else:
                    write(connection, changes, metadata, inside)
        except ConstraintViolation:
            # Refused for good, or only in this order?
            write_in_order(
                connection, changes, steps(log), metadata, inside, savepoint=self.savepoint
            )

    def _order(self, changes: Sequence[Change], log: Log) -> _WriteOrder | None:
        """Return how the order of the writes matters; one round trip for each new table."""
        if len(changes) < 2 and (
            len(log) < 2 or all(None not in rows.values() for _, rows in log[:-1])
        ):
            return None
        specs = {change.spec for change in changes}
        if not self._store.constraints.keys() >= specs:
            with Use(self, "read the constraints of tables") as connection:
                self._store.read_constraints(connection, specs)
        known = self._store.constraints
        if follows_log(changes, log, known):
            return _WriteOrder.LOGGED
        if len(changes) > 1 and any(known[spec].depends_on_order for spec in specs):
            return _WriteOrder.TRIED
        return None

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the block's changes on the server if it raises; the transaction remains usable.

        Savepoints are last in, first out: meanwhile no code outside the block may use the session.
        """
        with Use(self, "set a savepoint", writing=True) as connection:
            connection.exec_driver_sql("SAVEPOINT activedb")
        flushed = len(self._flushed)
        try:
            yield
        except BaseException:
            del self._flushed[flushed:]
            self.recover()
            with Use(self, "go back to the savepoint"):
                roll_back_to(connection, "activedb")
                # Else it would hide one of the same name that is set around it.
                connection.exec_driver_sql("RELEASE SAVEPOINT activedb")
            raise
        with Use(self, "release the savepoint"):
            connection.exec_driver_sql("RELEASE SAVEPOINT activedb")

    # -- inside ----------------------------------------------------------------------------

    def _settle(self, lost: ConnectionLost) -> None:
        """Return if the in-doubt commit turns out to have succeeded, else raise."""
        if self._number is None:
            if self._flushed:
                raise lost  # before the first write
            if self.is_serializable:
                raise ConnectionLost(
                    f"{lost}; nothing was written, and what was read was not confirmed: retry the "
                    f"transaction",
                    committed=False,
                ) from lost
            return  # there was nothing to write
        committed = self._store.outcome(self._number)
        if committed:
            return
        if committed is None:
            self._left_unknown()
            ending = "whether it took place is unknown: look before you try again"
        else:
            ending = "nothing was committed; retry the transaction"
        raise ConnectionLost(f"{lost}; {ending}", committed=committed) from lost

    def _committed(self) -> None:
        """Pass the committed changes on to the memory of owned tables."""
        if self._touched:
            for change in self._flushed:
                owned = self._store.ownership.owned(change.spec)
                if owned is not None:
                    owned.put(change.key, change.new)
            for spec in self._rewritten:
                owned = self._store.ownership.owned(spec)
                if owned is not None:
                    owned.forget()

    def _left_unknown(self) -> None:
        for owned in self._touched:
            owned.forget()

    def _reads(self, specs: Iterable[TableSpec]) -> None:
        """Note the tables that are read, before plain SQL that no lock keeps out writes them."""
        if self._plain_writes is not None:
            for spec in specs:
                self._plain_writes.setdefault(spec, self._store.plain_writes(spec))

    def _check_plain_writes(self) -> None:
        """Raise if plain SQL has written a table since it was first read here."""
        for spec, seen in (self._plain_writes or {}).items():
            now = self._store.plain_writes(spec)
            if now is None or now == seen:
                continue
            if now.thread == self._thread:
                raise SelfDeadlock(
                    f"table {spec.name}: plain SQL on this same thread has written it after this "
                    f"transaction had read it, for whose end it would have waited on Postgres; "
                    f"end the transaction first, or write in it"
                )
            raise SerializationConflict(
                f"table {spec.name}: plain SQL has written it after it was read; retry the "
                f"transaction"
            )

    def _owned(self, spec: TableSpec, *, loads: bool = True) -> OwnedTable | None:
        """Return the table's rows if this process owns it, noted as touched; otherwise None."""
        owned = self._store.ownership.touch(spec, loads=loads and not self.is_serializable)
        if owned is not None and self.is_serializable:
            raise TableOwned(
                f"table {spec.name} is kept in the memory of this process, where only locks "
                f"protect it: use it in transactions with isolation='locks'"
            )
        if owned is not None and owned not in self._touched:
            self._touched.append(owned)
        return owned


class _WriteOrder(Enum):
    """Ways in which the order of the writes of a commit matters."""

    TRIED = "the server may refuse the rows in one order and accept them in another"
    LOGGED = "deletes change other rows that are written, too"


# -- rollback to a savepoint that keeps the driver's prepared statements consistent ----------------

_numbers = itertools.count(1)


def roll_back_to(connection: Connection, savepoint: str) -> None:
    """Undo all changes since `savepoint`, which remains.

    psycopg 3.3 considers a statement prepared even if an earlier failure in the same pipeline kept
    the server from preparing it. It checks again at each ROLLBACK that it has not seen before, so
    each statement here is unique.
    """
    connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {savepoint} /* {next(_numbers)} */")
