"""Interface of a store of committed rows, for Postgres and its in-memory twin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, MetaData, Table, func, select
from sqlalchemy.exc import CompileError

from activedb.config import Isolation
from activedb.errors import DefinitionError
from activedb.store.flush import TableConstraints, constraints_of
from activedb.store.replication import Slot
from activedb.store.server import close_for_good, translate_errors
from activedb.store.session._flat import Latch
from activedb.store.session._ownership import NoOwnership, Ownership
from activedb.store.session._plain_use import UserConnection
from activedb.store.session._processes import Backend, Lease, NoLease, Wakeups
from activedb.store.session._session import Session
from activedb.store.sql import Key, TableSpec

__all__ = ["TRIGGER_POINTS", "PlainWrites", "Store"]

TRIGGER_POINTS = (
    "before flush",
    "inside flush",
    "before commit",
    "after commit",
    "during a child's commit",
)
"""Points of a commit at which `Store.trigger` is called, so that tests can fail right there."""


class PlainWrites(NamedTuple):
    """Number of writes of a table by plain SQL that no lock keeps out.

    Attributes
    ----------
    number : int
    thread : int
        The thread that wrote last.
    """

    number: int
    thread: int


class Store(ABC):
    """Database, and the differences between its kinds.

    Attributes
    ----------
    metadata : sqlalchemy.MetaData
        Users' tables.
    schema : str
        Schema of unqualified tables.
    tells_outcomes : bool
        True if in-doubt commits can be resolved.
    is_shared : bool
        True if sessions write concurrently, each on a separate connection.
    ownership : Ownership or NoOwnership
        Tables that this process uses and owns, and the rows of owned ones.
    lease : Lease or NoLease
        Shows other processes that this process is alive, and runs the firings it holds.
    constraints : mapping of TableSpec to TableConstraints
        Constraints of the tables that transactions have written so far, when they were last read.
    trigger : callable
        Called with the name of each of `TRIGGER_POINTS` that a commit reaches; does nothing
        unless a test replaces it.
    raised : callable ``(schema)``
        Return the rules that see events of the writes made here, for followers; see `_slot`.
    """

    schema: str
    is_shared: bool
    tells_outcomes: bool = True
    ownership: Ownership | NoOwnership
    lease: Lease | NoLease

    def __init__(
        self,
        engine: Engine,
        metadata: MetaData,
        raised: Callable[[str], str] = lambda schema: "",
    ):
        self.engine = engine
        self.metadata = metadata
        self.trigger: Callable[[str], object] = lambda point: None
        self.raised = raised
        self.constraints: Mapping[TableSpec, TableConstraints] = {}

    def session(self, isolation: Isolation = "locks") -> Session:
        """Return a session for one hierarchy; its connection is opened when first used."""
        return Session(self, self.latch(), isolation)

    def create_all(self) -> None:
        """Create the users' tables that are missing.

        Raises
        ------
        DefinitionError
            If the database lacks the type of a column.
        """
        try:
            with translate_errors("create the tables"), self.short() as connection:
                self.metadata.create_all(connection)
        except CompileError as error:
            raise DefinitionError(self._uncompiled(error)) from error
        self.constraints = {}

    def _uncompiled(self, error: CompileError) -> str:
        """Return what of the declared tables the database cannot create, and what to do."""
        advice = "" if self.is_shared else "; use Postgres for it, as memory:// is SQLite"
        for table in self.metadata.tables.values():
            for column in table.columns:
                try:
                    column.type.compile(self.engine.dialect)
                except CompileError:
                    return (
                        f"table {table.fullname}: the database has no type {column.type!r} for "
                        f"column {column.name}{advice}"
                    )
        return f"cannot create the tables: {error}{advice}"

    def declare_existing(self) -> None:
        """Declare the tables that exist and are not declared, except activedb's own."""
        with translate_errors("read the declarations of the tables"), self.short() as connection:
            self.metadata.reflect(connection, only=lambda name, _: not name.startswith("activedb_"))

    def row_counts(self) -> dict[str, int]:
        """Return the number of committed rows of each of the users' tables, by name."""
        tables = sorted(self.metadata.tables.values(), key=lambda t: t.fullname)
        with translate_errors("count the rows"), self.short() as connection:
            return {
                str(t.fullname): connection.execute(
                    select(func.count()).select_from(t)
                ).scalar_one()
                for t in tables
            }

    def close(self) -> None:
        """Close every pooled connection, and open no other one."""
        close_for_good(self.engine)

    @abstractmethod
    def migrate(self) -> None:
        """Migrate activedb's own tables to the newest version."""

    @abstractmethod
    def short(self) -> AbstractContextManager[Connection]:
        """Return a short, separate transaction: committed at the end, rolled back on an error."""

    @abstractmethod
    def wakeups(self) -> Wakeups:
        """Return this process's wake-ups for firings that become due.

        Raises
        ------
        ConfigurationError
            If no other process can see the firings.
        """

    @abstractmethod
    def send_wakeup(self, connection: Connection) -> None:
        """Wake up other processes' `wakeups` when the transaction on `connection` commits.

        Does nothing if the role lacks the right; listeners also poll from time to time.
        """

    @abstractmethod
    def slot(self, name: str) -> Slot:
        """Return an unopened replication slot, for changes by any program.

        Raises
        ------
        ConfigurationError
            If this store has no replication.
        """

    @abstractmethod
    def latch(self) -> Latch:
        """Return a re-entrant latch for the uses of one session's connection."""

    @abstractmethod
    def connection(self) -> AbstractContextManager[Connection]:
        """Return a connection for the users' own SQL."""

    def plain_writes(self, spec: TableSpec) -> PlainWrites | None:
        """Return the writes of a table by plain SQL, if no locks of the server keep them out."""
        return None

    @abstractmethod
    def plain_uses(self) -> list[UserConnection]:
        """Return the open uses of `connection`; in memory only the one with a transaction."""

    @abstractmethod
    def check_same_database(self, connection: Connection) -> None:
        """Raise `ConfigurationError` if a connection goes to another database than this store."""

    @abstractmethod
    def latch_of(self, connection: Connection) -> Latch:
        """Return a latch for the uses of a caller's connection."""

    @abstractmethod
    def acquire(self, *, serializable: bool = False) -> Connection:
        """Return a connection for one flat transaction.

        Parameters
        ----------
        serializable : bool
            Whether it has the server's isolation level SERIALIZABLE, else READ COMMITTED.
        """

    @abstractmethod
    def begin_writing(self, connection: Connection, latch: Latch) -> None:
        """Prepare for a write of a flat transaction, under the session's latch."""

    @abstractmethod
    def commit(self, connection: Connection, *, lazily: bool) -> None:
        """Commit the flat transaction."""

    @abstractmethod
    def reader(self) -> AbstractContextManager[Connection | None]:
        """Yield a connection for SELECTs beside the flat transactions'; None if none is free."""

    @abstractmethod
    def number_of(self, connection: Connection, *, is_ours: bool = True) -> str:
        """Return the server's number of a flat transaction, which `outcome` takes.

        Parameters
        ----------
        is_ours : bool
            Whether the connection belongs to this store.
        """

    @abstractmethod
    def named(self, connection: Connection, number: str) -> str:
        """Return the result of `number_of` for a number that the server has reported already."""

    @abstractmethod
    def outcome(self, number: str) -> bool | None:
        """Return whether a lost connection's transaction has committed; None if unknown."""

    @abstractmethod
    def interrupt(self, driver_connection: Any) -> None:
        """Cancel the statement that runs on a driver's connection, from another thread."""

    @abstractmethod
    def cut(self, driver_connection: Any) -> None:
        """Sever a driver's connection, from another thread: a thread waiting on it finds it lost.

        REQUIRES: the connection is in use, and stays so meanwhile.
        """

    @abstractmethod
    def backends(self) -> list[Backend]:
        """Return the server processes in a transaction, and the processes they wait for."""

    @abstractmethod
    def backend_of(self, connection: Connection) -> int | None:
        """Return the id of the server process behind a connection."""

    @abstractmethod
    def release(self, connection: Connection, latch: Latch) -> None:
        """Roll back uncommitted changes and return the connection."""

    @abstractmethod
    def lock_table(self, connection: Connection, spec: TableSpec) -> None:
        """Block writes of other processes to a table."""

    def read_constraints(self, connection: Connection, specs: Set[TableSpec]) -> None:
        """Add tables to `constraints`, and read all anew: a new table may refer to the others."""
        self.constraints = constraints_of(connection, {*self.constraints, *specs})

    def cascades_from(self, table: Table) -> Sequence[str]:
        """Return the names of tables that cascades of deletes change and that need a lock here."""
        return ()

    @abstractmethod
    def guard(
        self,
        connection: Connection,
        spec: TableSpec,
        keys: Sequence[Key] | None,
        *,
        exclusive: bool,
    ) -> None:
        """Lock keys, or with None all keys of a table, that may have no rows."""

    @abstractmethod
    def suspect(self) -> None:
        """Treat all connections as suspect: one was lost, and others may be, too."""

    @abstractmethod
    def next_number(self, connection: Connection, spec: TableSpec, name: str) -> int | None:
        """Return the next number of a column; None if the database has none."""
