"""Ownership of tables: one process keeps all rows in memory, and no other may use the table.

A process that uses a table holds a shared advisory lock on it for as long as its database object is
open; an owner holds the lock exclusively. The locks belong to one connection with no other purpose.
If an owner's connection is lost, other processes may come in. Therefore each new owner, and each
new user, of a table that has been owned writes a new epoch, and a commit that touched an owned
table verifies that the epoch is still its own, and stays so until the transaction has ended. A mere
user whose connection is lost takes its locks again before it next reads or writes.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    Engine,
    Integer,
    Numeric,
    SmallInteger,
    String,
    Text,
    Unicode,
    UnicodeText,
    bindparam,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from activedb.errors import ConnectionLost, DefinitionError, TableOwned
from activedb.store.server import PatientLatch, close_for_good, translate_errors
from activedb.store.session._processes import has_news
from activedb.store.sql import Key, Row, TableSpec, guard_number, rows_by_key
from activedb.store.system import owned_tables

__all__ = ["NoOwnership", "OwnedTable", "Ownership"]


_PLAIN = (
    *(Boolean, SmallInteger, Integer, BigInteger, Numeric, Date),
    *(String, Text, Unicode, UnicodeText),
)


class OwnedTable:
    """Committed rows of an owned table.

    Attributes
    ----------
    spec : TableSpec
    epoch : int
        Increases with each owner of the table.

    Latches: ``_loading``, held while rows are read; ``_latch``, taken under it and held briefly.
    """

    def __init__(self, spec: TableSpec, epoch: int):
        self.spec = spec
        self.epoch = epoch
        self._loading = PatientLatch()
        self._latch = threading.Lock()
        self._rows: dict[Key, Row] = {}
        self._doubtful: set[Key] | None = None  # None: all keys
        # During a load: the rows stored since it began (None: there is no load), and the keys in
        # doubt again since then (None: all).
        self._newer: dict[Key, Row | None] | None = None
        self._again: set[Key] | None = set()
        self._is_plain = all(_is_plain(column) for column in spec.table.columns)

    @property
    def is_loaded(self) -> bool:
        """True if every row is known as the server has it."""
        doubtful = self._doubtful
        return doubtful is not None and not doubtful

    def load(self, connection: Connection) -> None:
        """Read the unknown rows: all of them, or those in doubt. O(rows read)."""
        spec = self.spec
        with self._loading:
            with self._latch:
                keys = None if self._doubtful is None else list(self._doubtful)
                newer: dict[Key, Row | None] = {}
                self._newer, self._again = newer, set()
            found: dict[Key, Row | None] = {}
            try:
                if keys is None:
                    rows = map(spec.row, connection.execute(select(spec.table)))
                    found.update((spec.key_of(row), row) for row in rows)
                else:
                    read = rows_by_key(connection, spec, spec.plain_select, keys)
                    found.update((key, read.get(key)) for key in keys)
            except BaseException:
                with self._latch:
                    self._newer = None
                raise
            with self._latch:
                self._newer = None
                found.update(newer)
                if keys is None:
                    self._rows = {}
                for key, row in found.items():
                    self._set(key, row)
                self._doubtful = self._again

    def forget(self) -> None:
        """Require that all rows are read again before they are used."""
        # A reader whose rows are locked already may continue with the known ones.
        with self._latch:
            self._doubtful = self._again = None

    def doubt(self, keys: Collection[Key]) -> None:
        """Require that these rows are read again before any row is used."""
        with self._latch:
            self._doubt(keys)

    def rows(self, keys: Iterable[Key]) -> dict[Key, Row | None]:
        """Return the committed rows by key, None where absent. O(keys)."""
        return {key: self._rows.get(key) for key in keys}

    def put(self, key: Key, row: Row | None) -> None:
        """Store a committed row; None: it was deleted."""
        with self._latch:
            if self._newer is not None:
                self._newer[key] = row
            if self._doubtful is not None:
                self._set(key, row)
            if row is not None and not self._is_plain:
                self._doubt([key])  # the server may have changed the value

    # -- inside; REQUIRES: the latch --------------------------------------------------------

    def _doubt(self, keys: Collection[Key]) -> None:
        for doubtful in (self._doubtful, self._again):
            if doubtful is not None:
                doubtful.update(keys)

    def _set(self, key: Key, row: Row | None) -> None:
        if row is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row


def _is_plain(column: Column[Any]) -> bool:
    """Return whether the server returns every value of the column unchanged."""
    return type(column.type) in _PLAIN and column.computed is None


T = TypeVar("T")

_USE = text("SELECT pg_try_advisory_lock_shared(:number)")
_USE_NO_MORE = text("SELECT pg_advisory_unlock_shared(:number)")
_USE_NOTHING = text("SELECT pg_advisory_unlock_all()")
_OWN = text("SELECT pg_try_advisory_lock(:number)")
_OWN_NO_MORE = text("SELECT pg_advisory_unlock(:number)")
_NAME = text(
    """
    SELECT n.nspname || '.' || c.relname
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(:name)
    """
)
_EPOCH = select(owned_tables.c.epoch).where(owned_tables.c.name == bindparam("name"))
_NEW_EPOCH = (
    update(owned_tables)
    .where(owned_tables.c.name == bindparam("known_as"))
    .values(epoch=owned_tables.c.epoch + 1)
)
# Locked, so that a writer of a new epoch waits for the end of this transaction.
_EPOCHS = (
    select(owned_tables.c.name, owned_tables.c.epoch)
    .where(owned_tables.c.name.in_(bindparam("names", expanding=True)))
    .order_by(owned_tables.c.name)
    .with_for_update(read=True)
)
# Changes that the server makes to rows by itself, which a client's memory cannot follow.
_BY_ITSELF = text(
    """
    SELECT
        EXISTS (
            SELECT FROM pg_trigger
            WHERE tgrelid = c.oid AND NOT tgisinternal AND tgname !~ '^activedb_mark_'
        ) AS triggers,
        EXISTS (
            SELECT FROM pg_constraint
            WHERE conrelid = c.oid AND contype = 'f'
              AND (confupdtype IN ('c', 'n', 'd') OR confdeltype IN ('c', 'n', 'd'))
        ) AS "foreign keys with an action",
        c.relrowsecurity AS "row security",
        c.relhasrules OR c.relhassubclass AS "rules or partitions"
    FROM pg_class c WHERE c.oid = to_regclass(:name)
    """
)


class Ownership:
    """Tables that this process uses and owns, and the locks that announce it to others.

    Parameters
    ----------
    locks : sqlalchemy.Engine
        Engine for the one connection that holds the locks; in autocommit mode.
    short : sqlalchemy.Engine
        Engine for short transactions, which load rows.
    schema : str
        Schema of unqualified tables.

    Latch: ``_latch``, held during requests to the server; no other latch is taken under it.
    """

    def __init__(self, locks: Engine, short: Engine, schema: str):
        self._locks = locks
        self._short = short
        self._schema = schema
        self._latch = PatientLatch()
        self._connection: Connection | None = None
        self._names: dict[TableSpec, str] = {}
        self._used: set[TableSpec] = set()
        self._owned: dict[TableSpec, OwnedTable] = {}

    def touch(self, spec: TableSpec, *, loads: bool = True) -> OwnedTable | None:
        """Register the use of a table, once; return its loaded rows if it is owned, else None.

        O(1) except for the first call, for rows in doubt and after a loss of the connection.

        Parameters
        ----------
        loads : bool
            Whether the caller will read the rows.

        Raises
        ------
        TableOwned
            If another process owns it, or has used a table that was owned here.
        """
        if spec not in self._owned and self._is_lost():  # an owner's commit is checked anyway
            self.suspect()
        if spec not in self._used:  # without the latch: every read comes here
            self._begin_to_use(spec)
        owned = self._owned.get(spec)
        if loads and owned is not None and not owned.is_loaded:
            self._load(owned)
        return owned

    def owned(self, spec: TableSpec) -> OwnedTable | None:
        """Return the rows of a table that this process owns, loaded or not, or None. O(1)."""
        return self._owned.get(spec)

    def name_of(self, spec: TableSpec) -> str:
        """Return a table's name with its schema, equal in all processes once the table is used."""
        return self._names.get(spec) or f"{spec.table.schema or self._schema}.{spec.table.name}"

    def suspect(self) -> None:
        """Take all locks again on next use: a connection was lost, perhaps the one holding them."""
        self._used.clear()

    def own(self, spec: TableSpec, *, loads: bool = True) -> None:
        """Keep a table's rows in memory, and exclude every other process from the table. O(rows).

        Parameters
        ----------
        loads : bool
            Whether to read the rows at once, or at the first access.

        Raises
        ------
        TableOwned
            If another process owns or uses it.
        DefinitionError
            If the server itself changes its rows.
        """
        with self._latch:
            owned = self._ask(f"own table {spec.name}", lambda c: self._own(c, spec))
            self._used.add(spec)
            self._owned[spec] = owned
        if loads:
            self._load(owned)

    def check(self, connection: Connection, touched: Iterable[OwnedTable]) -> None:
        """Verify that the tables are still owned, until the transaction on `connection` ends.

        Raises
        ------
        TableOwned
            If another process has come in since, because the connection with the lock was lost.
        """
        expected = {self.name_of(owned.spec): owned for owned in touched}
        found = {row.name: row.epoch for row in connection.execute(_EPOCHS, {"names": [*expected]})}
        for name, owned in expected.items():
            if found.get(name) != owned.epoch:
                self.suspect()
                raise self._lost(owned)

    def close(self) -> None:
        """Release every lock."""
        with self._latch:
            if self._connection is not None:
                with suppress(SQLAlchemyError):  # lost, and the locks with it
                    self._connection.execute(_USE_NOTHING)
                self._connection.close()
                self._connection = None
            self._used.clear()
            self._owned.clear()
            close_for_good(self._locks)

    # -- inside ----------------------------------------------------------------------------

    def _is_lost(self) -> bool:
        """Return whether the connection with the locks may be lost; False while it is in use."""
        if not self._latch.acquire(blocking=False):
            return False  # who uses it will notice
        try:
            return self._connection is not None and has_news(self._connection)
        finally:
            self._latch.release()

    def _begin_to_use(self, spec: TableSpec) -> None:
        with self._latch:
            if spec not in self._used:
                self._ask(f"use table {spec.name}", lambda c: self._use(c, spec))
                self._used.add(spec)

    def _load(self, owned: OwnedTable) -> None:
        with translate_errors(f"load table {owned.spec.name}"), self._short.begin() as connection:
            owned.load(connection)

    # -- inside; REQUIRES: the latch --------------------------------------------------------

    def _use(self, connection: Connection, spec: TableSpec) -> None:
        name = self._find_name(connection, spec)
        number = {"number": guard_number(f"owner of {name}")}
        owned = self._owned.get(spec)
        is_free = connection.scalar(_USE if owned is None else _OWN, number)
        if owned is None:
            if not is_free:
                raise self._refusal(connection, spec)
            # A former owner that has not noticed the loss of its lock will find the new epoch.
            connection.execute(_NEW_EPOCH, {"known_as": name})
            return
        if connection.scalar(_EPOCH, {"name": name}) != owned.epoch:
            if is_free:
                connection.execute(_OWN_NO_MORE, number)
            raise self._lost(owned)
        if not is_free:  # by another process, it would have a new epoch, now or in a moment
            raise ConnectionLost(
                f"the server has not noticed yet that the connection was lost which keeps table "
                f"{spec.name} for this process"
            )

    def _own(self, connection: Connection, spec: TableSpec) -> OwnedTable:
        name = self._find_name(connection, spec, owning=True)
        self._check_left_alone(connection, spec)
        number = {"number": guard_number(f"owner of {name}")}
        if spec in self._used and spec not in self._owned:
            connection.execute(_USE_NO_MORE, number)
        self._used.discard(spec)
        if not connection.scalar(_OWN, number):
            raise self._refusal(connection, spec)
        values = {
            "name": name,
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
        try:
            epoch = connection.scalar(taken.returning(owned_tables.c.epoch))
        except DBAPIError as error:
            if not error.connection_invalidated:
                connection.execute(_OWN_NO_MORE, number)
            raise
        return OwnedTable(spec, int(epoch or 0))

    def _ask(self, doing: str, question: Callable[[Connection], T]) -> T:
        """Ask on the connection with the locks; retry once, if it turns out to be lost."""
        with translate_errors(doing):
            if self._connection is not None:
                try:
                    return self._asked(self._connection, question)
                except DBAPIError as error:
                    if not error.connection_invalidated:
                        raise
            self._connection = self._locks.connect()
            return self._asked(self._connection, question)

    def _asked(self, connection: Connection, question: Callable[[Connection], T]) -> T:
        try:
            return question(connection)
        except DBAPIError as error:
            if error.connection_invalidated:  # and all locks with it
                self._connection = None
                self._used.clear()
                connection.close()
            raise

    def _find_name(self, connection: Connection, spec: TableSpec, *, owning: bool = False) -> str:
        """Return the table's name with its schema, as the server resolves it.

        Raises
        ------
        DefinitionError
            If two declarations stand for one owned table: only one of them has the rows in memory.
        """
        if spec not in self._names:
            found = connection.scalar(_NAME, {"name": _quoted(connection, spec)})
            if found is None:
                return self.name_of(spec)  # the table does not exist yet
            self._names[spec] = str(found)
        name = self._names[spec]
        rivals = {*self._owned, *(self._used if owning else ())} - {spec}
        if any(self._names.get(other) == name for other in rivals):
            raise DefinitionError(
                f"table {name} is declared twice here, and an owned table can have one "
                f"declaration only: use one and the same Table object"
            )
        return name

    def _check_left_alone(self, connection: Connection, spec: TableSpec) -> None:
        found = connection.execute(_BY_ITSELF, {"name": _quoted(connection, spec)}).mappings()
        reasons = [reason for row in found for reason, is_so in row.items() if is_so]
        if reasons:
            raise DefinitionError(
                f"table {spec.name} cannot be owned: it has {' and '.join(reasons)}, so the "
                f"server may change or hide rows without this process; use it as it is"
            )

    def _lost(self, owned: OwnedTable) -> TableOwned:
        self._owned.pop(owned.spec, None)
        return TableOwned(
            f"table {owned.spec.name} has had another owner or user since this process lost its "
            f"connection; its rows in memory are no longer valid: own() it again"
        )

    def _refusal(self, connection: Connection, spec: TableSpec) -> TableOwned:
        owner = connection.scalar(
            select(owned_tables.c.owner).where(owned_tables.c.name == self.name_of(spec))
        )
        last = f"; its last owner was {owner}" if owner else ""
        return TableOwned(
            f"table {spec.name} is kept by one process alone, or used by another{last}. Close the "
            f"other one, or let it do this work"
        )


class NoOwnership:
    """Ownership where no other process can use a table, and all rows are in memory anyway."""

    def touch(self, spec: TableSpec, *, loads: bool = True) -> OwnedTable | None:
        """Return None: rows are read where they are."""

    def owned(self, spec: TableSpec) -> OwnedTable | None:
        """Return None: no rows are kept twice."""

    def name_of(self, spec: TableSpec) -> str:
        """Return the table's name, which no other process needs."""
        return spec.name

    def own(self, spec: TableSpec, *, loads: bool = True) -> None:
        """Do nothing: there is no other process to exclude."""

    def check(self, connection: Connection, touched: Iterable[OwnedTable]) -> None:
        """Do nothing: there can be no other owner."""


def _quoted(connection: Connection, spec: TableSpec) -> str:
    name = connection.dialect.identifier_preparer.format_table(spec.table)
    return name.replace("%%", "%")  # doubled for statements, but this is a value
