"""Owned tables: one process keeps all their rows in memory, and no other may use them.

Who uses a table has an advisory lock on it, shared, for as long as its database object is open;
who owns it has that lock exclusive. The locks are those of one connection, which is used for
nothing else. If that is lost the table may get another owner, so each owner writes a new epoch, and
a commit that touched an owned table checks that the epoch is still its own.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import Connection, Engine, bindparam, func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from activedb.errors import TableOwned
from activedb.store._faults import translated
from activedb.store._guards import guard_number
from activedb.store._system import owned_tables
from activedb.store._tables import Key, Row, TableSpec

__all__ = ["OwnedTable", "Ownership"]

_USE = text("SELECT pg_try_advisory_lock_shared(:number)")
_USE_NO_MORE = text("SELECT pg_advisory_unlock_shared(:number)")
_USE_NOTHING = text("SELECT pg_advisory_unlock_all()")
_OWN = text("SELECT pg_try_advisory_lock(:number)")
_EPOCHS = (
    select(owned_tables.c.name, owned_tables.c.epoch)
    .where(owned_tables.c.name.in_(bindparam("names", expanding=True)))
    .with_for_update(read=True, key_share=True)
)


class OwnedTable:
    """The committed rows of an owned table.

    Attributes
    ----------
    spec : TableSpec
    epoch : int
        Grows with each owner the table has had.
    """

    def __init__(self, spec: TableSpec, epoch: int):
        self.spec = spec
        self.epoch = epoch
        self._rows: dict[Key, Row] | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether the rows are known; not so after a commit whose outcome nobody knows."""
        return self._rows is not None

    def load(self, connection: Connection) -> None:
        """Read all rows. O(rows)."""
        spec = self.spec
        rows = (spec.row(values) for values in connection.execute(select(spec.table)))
        self._rows = {spec.key_of(row): row for row in rows}

    def forget(self) -> None:
        """Have the rows read anew before they are used again."""
        self._rows = None

    def rows(self, keys: Iterable[Key]) -> dict[Key, Row | None]:
        """Committed rows by key, None where absent. O(keys)."""
        assert self._rows is not None
        return {key: self._rows.get(key) for key in keys}

    def put(self, key: Key, row: Row | None) -> None:
        """Take over what has been committed."""
        if self._rows is None:
            return
        if row is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row


class Ownership:
    """Which tables this process uses, which it owns, and the locks that say so to others.

    Latch: ``_latch``, held while the server is asked, with nothing else taken under it.
    """

    def __init__(self, engine: Engine, schema: str):
        self._engine = engine
        self._schema = schema
        self._latch = threading.Lock()
        self._connection: Connection | None = None
        self._used: set[TableSpec] = set()
        self._owned: dict[TableSpec, OwnedTable] = {}

    def owned(self, spec: TableSpec) -> OwnedTable | None:
        """The rows of a table that this process owns; of others None. O(1)."""
        return self._owned.get(spec)

    def use(self, spec: TableSpec) -> None:
        """Tell others, once, that this process uses a table.

        Raises
        ------
        TableOwned
            If another process owns it.
        """
        if spec in self._used:
            return
        with self._latch, self._asking(f"use table {spec.name}") as connection:
            lock = _OWN if spec in self._owned else _USE
            if spec not in self._used and not connection.scalar(
                lock, {"number": self._number(spec)}
            ):
                raise self._refusal(connection, spec)
            self._used.add(spec)

    def suspect(self) -> None:
        """A connection was lost: the one with the locks may be, too, so they are taken anew."""
        with self._latch:
            self._used.clear()
            connection, self._connection = self._connection, None
            if connection is not None:
                with suppress(SQLAlchemyError):
                    connection.invalidate()
                    connection.close()

    def own(self, spec: TableSpec) -> OwnedTable:
        """Keep every other process from a table, from now on; its rows are loaded when needed.

        Raises
        ------
        TableOwned
            If another process owns or uses it.
        """
        number = {"number": self._number(spec)}
        with self._latch, self._asking(f"own table {spec.name}") as connection:
            if spec in self._used:
                connection.execute(_USE_NO_MORE, number)
                self._used.discard(spec)
            if not connection.scalar(_OWN, number):
                raise self._refusal(connection, spec)
            self._used.add(spec)
            values = {
                "name": self._named(spec),
                "epoch": 1,
                "owner": f"process {os.getpid()} on {socket.gethostname()}"[:200],
            }
            taken = insert(owned_tables).values(values)
            taken = taken.on_conflict_do_update(
                index_elements=[owned_tables.c.name],
                set_={
                    "epoch": owned_tables.c.epoch + 1,
                    "owner": taken.excluded.owner,
                    "owned_since": func.now(),
                },
            )
            epoch = connection.scalar(taken.returning(owned_tables.c.epoch))
            self._owned[spec] = owned = OwnedTable(spec, int(epoch or 0))
            return owned

    def check(self, connection: Connection, touched: Iterable[OwnedTable]) -> None:
        """Make sure, until the transaction on `connection` ends, that the tables are still ours.

        Raises
        ------
        TableOwned
            If one has had another owner since, because the connection with our lock was lost.
        """
        expected = {self._named(owned.spec): owned for owned in touched}
        found = {row.name: row.epoch for row in connection.execute(_EPOCHS, {"names": [*expected]})}
        for name, owned in expected.items():
            if found.get(name) != owned.epoch:
                self._owned.pop(owned.spec, None)
                raise TableOwned(
                    f"table {owned.spec.name} has had another owner since this process lost its "
                    f"connection; what is in memory is of no use any more: own() it again"
                )

    def close(self) -> None:
        """Give up every lock."""
        with self._latch:
            if self._connection is not None:
                with suppress(SQLAlchemyError):  # lost, and the locks with it
                    self._connection.execute(_USE_NOTHING)
                self._connection.close()
                self._connection = None
            self._used.clear()
            self._owned.clear()

    # -- inside ----------------------------------------------------------------------------

    @contextmanager
    def _asking(self, doing: str) -> Iterator[Connection]:
        with translated(doing):
            connection = self._connection = self._connection or self._engine.connect()
            try:
                yield connection
            except DBAPIError as error:
                if error.connection_invalidated:
                    self._connection = None
                    self._used.clear()
                    connection.close()
                raise

    def _number(self, spec: TableSpec) -> int:
        return guard_number(f"owner of {self._named(spec)}")

    def _named(self, spec: TableSpec) -> str:
        return f"{spec.table.schema or self._schema}.{spec.table.name}"

    def _refusal(self, connection: Connection, spec: TableSpec) -> TableOwned:
        owner = connection.scalar(
            select(owned_tables.c.owner).where(owned_tables.c.name == self._named(spec))
        )
        last = f"; its last owner was {owner}" if owner else ""
        return TableOwned(
            f"table {spec.name} is kept by one process alone, or used by another{last}. Close the "
            f"other one, or let it do this work"
        )
