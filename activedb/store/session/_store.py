"""Where committed rows live: what Postgres and its twin in memory have to provide."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import Connection, Engine, MetaData, func, select

from activedb.store.replication import Slot
from activedb.store.server import translated
from activedb.store.session._latch import Latch
from activedb.store.session._lease import Lease, NoLease
from activedb.store.session._ownership import NoOwnership, Ownership
from activedb.store.session._plain_use import PlainUse
from activedb.store.session._server_waits import Backend
from activedb.store.session._session import Session
from activedb.store.session._wakeups import Hints
from activedb.store.sql import Key, TableSpec

__all__ = ["TRIGGER_POINTS", "Store"]

TRIGGER_POINTS = (
    "before flush",
    "inside flush",
    "before commit",
    "after commit",
    "during a child's commit",
)
"""Points of a commit at which `Store.trigger` is called, so that tests can fail right there."""


class Store(ABC):
    """A database, and the differences between one kind and another.

    Attributes
    ----------
    metadata : sqlalchemy.MetaData
        The users' tables.
    schema : str
        Schema in which unqualified tables lie.
    has_arrays : bool
        Whether one bound parameter can carry a whole column.
    tells_outcomes : bool
        Whether it can be asked what became of a commit that was cut off.
    is_shared : bool
        Whether sessions write at the same time, each on a connection of its own.
    ownership : Ownership or NoOwnership
        Which tables this process uses and owns, and the rows of those.
    lease : Lease or NoLease
        By which others know that this process lives, and runs the firings it holds.
    trigger : callable
        Called with the name of each of `TRIGGER_POINTS` that a commit reaches; does nothing
        unless a test says otherwise.
    raised : callable
        Tells which rules hear of what is written here, for who follows changes; see `_slot`.
    """

    schema: str
    has_arrays: bool
    is_shared: bool
    tells_outcomes: bool = True
    ownership: Ownership | NoOwnership
    lease: Lease | NoLease

    def __init__(self, engine: Engine, metadata: MetaData):
        self.engine = engine
        self.metadata = metadata
        self.trigger: Callable[[str], object] = lambda point: None
        self.raised: Callable[[], str] = lambda: ""

    def session(self) -> Session:
        """A conversation for one hierarchy; its connection is opened when first used."""
        return Session(self, self.latch())

    def create_all(self) -> None:
        """Create the users' tables that are missing."""
        with translated("create the tables"), self.short() as connection:
            self.metadata.create_all(connection)

    def row_counts(self) -> dict[str, int]:
        """Committed rows of each of the users' tables, by name."""
        tables = sorted(self.metadata.tables.values(), key=lambda t: t.fullname)
        with translated("count the rows"), self.short() as connection:
            return {
                str(t.fullname): connection.execute(
                    select(func.count()).select_from(t)
                ).scalar_one()
                for t in tables
            }

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()

    @abstractmethod
    def migrate(self) -> None:
        """Bring activedb's own tables to the newest version."""

    @abstractmethod
    def short(self) -> AbstractContextManager[Connection]:
        """A short transaction of its own: committed at the end, rolled back on an error."""

    @abstractmethod
    def hints(self) -> Hints:
        """What tells this process at once that firings have become due.

        Raises
        ------
        ConfigurationError
            If no other process can see them.
        """

    @abstractmethod
    def give_hint(self, connection: Connection) -> None:
        """Tell other processes, when the transaction on `connection` commits, what `hints` hears.

        Nothing happens if the role may not; they look now and then, too.
        """

    @abstractmethod
    def slot(self, name: str) -> Slot:
        """A replication slot, to be opened, of the changes that anybody makes.

        Raises
        ------
        ConfigurationError
            If there can be none.
        """

    @abstractmethod
    def latch(self) -> Latch:
        """A re-entrant latch for the uses of one session's connection."""

    @abstractmethod
    def connection(self) -> AbstractContextManager[Connection]:
        """A connection for the users' own SQL."""

    @abstractmethod
    def plain_uses(self) -> list[PlainUse]:
        """Connections of `connection` that are open; in memory the one that has begun."""

    @abstractmethod
    def check_same_database(self, connection: Connection) -> None:
        """Raise `ConfigurationError` if a connection goes to another database than this store."""

    @abstractmethod
    def latch_of(self, connection: Connection) -> Latch:
        """A latch for the uses of a caller's connection."""

    @abstractmethod
    def acquire(self) -> Connection:
        """A connection for one flat transaction."""

    @abstractmethod
    def begin_writing(self, connection: Connection, latch: Latch) -> None:
        """Called under the session's latch before a write of a flat transaction."""

    @abstractmethod
    def commit(self, connection: Connection, *, lazily: bool) -> None:
        """Make the flat transaction durable."""

    @abstractmethod
    def reader(self) -> AbstractContextManager[Connection | None]:
        """A connection for SELECTs beside those of flat transactions; None if none is free."""

    @abstractmethod
    def number_of(self, connection: Connection, *, is_ours: bool = True) -> str:
        """The server's number of a flat transaction, which `outcome` takes.

        Parameters
        ----------
        is_ours : bool
            Whether the connection is one of this store's.
        """

    @abstractmethod
    def named(self, connection: Connection, number: str) -> str:
        """Return the result of `number_of` for a number that the server has told already."""

    @abstractmethod
    def outcome(self, number: str) -> bool | None:
        """Whether a transaction of a lost connection has committed; None if nobody can say."""

    @abstractmethod
    def interrupt(self, driver_connection: Any) -> None:
        """End the statement that runs on a driver's connection, from another thread."""

    @abstractmethod
    def cut(self, driver_connection: Any) -> None:
        """End a driver's connection, from another thread: what waits on it is told that it is lost.

        REQUIRES: it is in use, and stays so meanwhile.
        """

    @abstractmethod
    def backends(self) -> list[Backend]:
        """The server's processes that are in a transaction, and whom they wait for."""

    @abstractmethod
    def backend_of(self, connection: Connection) -> int | None:
        """Number of the server's process behind a connection."""

    @abstractmethod
    def release(self, connection: Connection, latch: Latch) -> None:
        """Undo what is not committed and give the connection back."""

    @abstractmethod
    def lock_table(self, connection: Connection, spec: TableSpec) -> None:
        """Keep other processes from writing a table."""

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
        """A connection was lost, and perhaps others with it."""

    @abstractmethod
    def next_key(self, connection: Connection, spec: TableSpec) -> int:
        """Next number of a generated key."""
