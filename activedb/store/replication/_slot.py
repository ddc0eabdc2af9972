"""Logical replication slot, its publication, and the progress of its follower.

A follower needs these objects at the server, all named after the slot or the schema::

    slot            retains the server's log from the position to which it was advanced
    publication     the tables whose changes the slot reports
    followers row   `lsn`: earlier commits are taken; written along with the firings they trigger
    two triggers    on each table: they mark in the log the changes for which activedb raised events

*Marks.* A connection on which activedb writes changes that it raises events for has the setting
``activedb.raised``: the rules that have seen these events. For such a statement the triggers write
the setting into the log before the rows and an empty note after them; around nested writes, by the
server's own triggers or cascades, the order is reversed. So the mark costs nothing while there is
no follower, and no process has to know whether there is one. A caller's connection does not have
the setting; there it is made around each flush, if there is a follower when the caller's
transaction begins. Therefore a new table is followed only after the end of every transaction that
had begun before the table's triggers were created.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from activedb.errors import ConfigurationError, ConnectionLost, LockTimeout
from activedb.store.replication._pgoutput import Message, lsn_text, parse
from activedb.store.replication._slot_tables import FollowedTable, Publication, mark_prefix
from activedb.store.server import translate_error, translate_errors
from activedb.store.sql import TableSpec, guard_number
from activedb.store.system import followers

__all__ = ["Peeked", "Slot"]

_NAME = re.compile(r"[a-z0-9_]{1,63}", re.ASCII)
_ROWS_AT_ONCE = 1_000
_PAUSE_S = 0.02

_SERVER = text(
    """
    SELECT current_setting('wal_level') AS wal_level, current_user AS role,
           (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user) AS may
    """
)
_SLOT = text(
    """
    SELECT plugin, database, database = current_database() AS is_here, wal_status, active_pid,
           confirmed_flush_lsn - '0/0' AS confirmed
    FROM pg_replication_slots WHERE slot_name = :slot
    """
)
_CREATE = text("SELECT lsn - '0/0' FROM pg_create_logical_replication_slot(:slot, 'pgoutput')")
_DROP = text("SELECT pg_drop_replication_slot(:slot)")
_HEAD = text(
    """
    SELECT pg_current_wal_flush_lsn() - '0/0', clock_timestamp(), ARRAY(
        SELECT r.prrelid::bigint FROM pg_publication_rel r
        JOIN pg_publication p ON p.oid = r.prpubid
        WHERE p.pubname = :publication
    )
    """
)
_PEEK = text(
    """
    SELECT data FROM pg_logical_slot_peek_binary_changes(
        :slot, CAST(:up_to AS pg_lsn), :limit,
        'proto_version', '1', 'publication_names', :publication, 'messages', 'true'
    )
    """
)
_ADVANCE = text("SELECT pg_replication_slot_advance(:slot, CAST(:lsn AS pg_lsn))")
_LOCK = text("SELECT pg_try_advisory_lock(:number)")
_UNLOCK = text("SELECT pg_advisory_unlock(:number)")
# Visible to every role, whichever role the transactions belong to.
_OPEN = text(
    """
    SELECT l.virtualtransaction, l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'virtualxid' AND a.datname = current_database() AND a.usename IS NOT NULL
      AND l.pid <> pg_backend_pid()
    """
)
_REFUSED = {
    "42501": "the role lacks a right for it: follow once as the tables' owner, with REPLICATION",
    "42704": "the slot or its publication was dropped: db.changes.unfollow(slot), "
    "then follow again",
    "53400": "the server has no room for another slot: drop one, or raise max_replication_slots",
    "55000": "the slot cannot be read any more: db.changes.unfollow(slot), then follow again",
    "55006": "another program reads the slot: end that, or choose another name with slot=",
}


@dataclass(frozen=True, slots=True)
class Peeked:
    """Changes that a slot reports at one moment.

    Attributes
    ----------
    head_lsn : int
        Position in the server's log up to which all commits are included, unless the limit was
        reached.
    now : datetime
        The server's clock.
    messages : iterator of Message
        Whole transactions in the order of their commits; to be consumed before other requests.
    unpublished : tuple of str
        Names of tables whose further changes are not reported: they were dropped, say.
    """

    head_lsn: int
    now: datetime
    messages: Iterator[Message]
    unpublished: tuple[str, ...]


class Slot:
    """Replication slot that one follower at a time reads; used by one thread.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        Engine for the follower's one connection, which holds the lock on the slot.
    short : callable
        Factory of short transactions.
    schema : str
        Schema of activedb's tables.
    name : str
        Name of the slot and the publication.
    patience_s : float
        How long to wait for open transactions when a table is followed for the first time.

    Attributes
    ----------
    name, schema : str
        As given.
    tables : tuple of FollowedTable
    lsn : int
        Recorded position before which all commits have been taken.
    mark_prefix : str
        Prefix of the notes in the log that mark changes for which activedb has raised events.
    """

    def __init__(
        self,
        engine: Engine,
        short: Callable[[], AbstractContextManager[Connection]],
        schema: str,
        name: str,
        patience_s: float,
    ):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"a slot is named with at most 63 of a–z, 0–9 and _, not {name!r}"
            )
        self.name = name
        self.schema = schema
        self.tables: tuple[FollowedTable, ...] = ()
        self.lsn = 0
        self.mark_prefix = mark_prefix(schema)
        self._engine = engine
        self._short = short
        self._patience_s = patience_s
        self._connection: Connection | None = None
        self._confirmed = 0
        self._number = guard_number(f"follower of slot {name}")

    # -- opening ---------------------------------------------------------------------------

    def open(
        self,
        specs: Sequence[TableSpec],
        *,
        whole: bool = False,
        check: Callable[[FollowedTable], object] = lambda table: None,
    ) -> None:
        """Become the slot's follower, and create missing objects at the server.

        Parameters
        ----------
        specs : sequence of TableSpec
            Tables to follow from now on; they replace the previous ones.
        whole : bool
            Set the tables' replica identity to FULL, so that old rows are sent whole.
        check : callable
            Called with each table before anything is kept at the server; it may raise.

        Raises
        ------
        ConfigurationError
            If the server or the role cannot do it, a table does not exist, or the slot belongs to
            another database, is gone, or has a follower.
        LockTimeout
            If transactions that began earlier stay open.
        """
        try:
            connection = self._become_follower()
            with self._refusals("follow the tables"), self._short() as setting_up:
                publication = Publication(setting_up, self.schema, self.name)
                is_new, found = self._known(setting_up, publication)
                self.tables, is_more = publication.set(specs, whole=whole)
                for table in self.tables:
                    check(table)
            if is_more or is_new:
                self._await_older(connection)
            if found is None:
                with self._refusals("make the slot"), connection.begin():
                    found = int(connection.scalar(_CREATE, {"slot": self.name}))
            if is_new:
                with translate_errors("record the slot"), self._short() as recording:
                    recording.execute(
                        update(followers).where(followers.c.slot == self.name).values(lsn=found)
                    )
                self.lsn = found
            self._confirmed = found
        except BaseException:
            self.close()
            raise

    def _become_follower(self) -> Connection:
        with translate_errors("look at the server"):
            connection = self._engine.connect().execution_options(isolation_level="READ COMMITTED")
            self._connection = connection
            with connection.begin():
                server = connection.execute(_SERVER).one()
                if server.wal_level != "logical":
                    raise ConfigurationError(
                        f"the server's wal_level is {server.wal_level}, and changes by others can "
                        f"be followed only with logical: ALTER SYSTEM SET wal_level = logical, "
                        f"and restart the server (the embedded one: close all that use it)"
                    )
                if not server.may:
                    raise ConfigurationError(
                        f"the role {server.role} may not read replication slots: "
                        f"ALTER ROLE {server.role} REPLICATION"
                    )
                if not connection.scalar(_LOCK, {"number": self._number}):
                    raise ConfigurationError(
                        f"slot {self.name} is being followed already, by another process or "
                        f"thread: one is enough; another slot has its own name (slot=)"
                    )
            return connection

    def _known(self, connection: Connection, publication: Publication) -> tuple[bool, int | None]:
        """Return whether the position is yet to be recorded; and the slot's own, or None."""
        asked = select(followers.c.lsn).where(followers.c.slot == self.name).with_for_update()
        row = connection.execute(asked).first()
        slot = connection.execute(_SLOT, {"slot": self.name}).first()
        if row is None:
            if slot is not None:
                place = "" if slot.is_here else f" of database {slot.database}"
                raise ConfigurationError(
                    f"there is a slot {self.name}{place} (plugin {slot.plugin}) that is not this "
                    f"database's of activedb: choose another name with slot="
                )
            publication.create()
            connection.execute(insert(followers).values(slot=self.name))
            return True, None
        again = (
            f"db.changes.unfollow({self.name!r}), then follow again; changes since then are not "
            "reported"
        )
        if slot is None:
            if row.lsn is not None:
                raise ConfigurationError(f"slot {self.name} has been dropped: {again}")
            return True, None
        if slot.plugin != "pgoutput" or not slot.is_here:
            raise ConfigurationError(
                f"slot {self.name} is not the one that was followed: it belongs to database "
                f"{slot.database}, plugin {slot.plugin}. Choose another name with slot="
            )
        if slot.wal_status == "lost":
            raise ConfigurationError(
                f"slot {self.name} was unused for so long that the server has dropped its log "
                f"(max_slot_wal_keep_size): {again}"
            )
        if not publication.exists():
            raise ConfigurationError(f"publication {self.name} has been dropped: {again}")
        self.lsn = row.lsn or 0
        head, *_ = connection.execute(_HEAD, {"publication": self.name}).one()
        if self.lsn > head:
            raise ConfigurationError(
                f"slot {self.name} was followed to {lsn_text(self.lsn)}, and the server's log "
                f"ends at {lsn_text(int(head))}: it has been restored from a backup. {again}"
            )
        return row.lsn is None, int(slot.confirmed)

    def _await_older(self, connection: Connection) -> None:
        """Wait until every transaction that is open now has ended."""
        with translate_errors("look at the open transactions"):
            until_s = time.monotonic() + self._patience_s
            older: set[tuple[str, int]] | None = None
            while True:
                with connection.begin():
                    now = {(str(vxid), int(pid)) for vxid, pid in connection.execute(_OPEN)}
                older = now if older is None else older & now
                if not older:
                    return
                if time.monotonic() > until_s:
                    pids = ", ".join(str(pid) for _, pid in sorted(older, key=lambda x: x[1]))
                    raise LockTimeout(
                        f"transactions stay open that began before slot {self.name} was set up: "
                        f"end them, or follow later (server processes {pids})"
                    )
                time.sleep(_PAUSE_S)

    # -- reading ---------------------------------------------------------------------------

    @contextmanager
    def peek(self, limit: int) -> Iterator[Peeked]:
        """Yield whole transactions committed since the last `advance`, each at least once.

        Parameters
        ----------
        limit : int
            Number of messages after which no further transaction is begun.
        """
        connection = self.connection
        with self._refusals(f"read slot {self.name}"):
            begun = connection.begin()
        messages: Generator[Message] | None = None
        try:
            with self._refusals(f"read slot {self.name}"):
                head, now, published = connection.execute(_HEAD, {"publication": self.name}).one()
            messages = self._messages(connection, int(head), limit)
            gone = tuple(table.name for table in self.tables if table.oid not in published)
            yield Peeked(int(head), now, messages, gone)
        finally:
            with suppress(SQLAlchemyError):
                if messages is not None:
                    messages.close()
                begun.rollback()

    def _messages(self, connection: Connection, head: int, limit: int) -> Generator[Message]:
        if head <= self._confirmed:
            return
        asked = {
            "slot": self.name,
            "up_to": lsn_text(head),
            "limit": limit,
            "publication": self.name,
        }
        options = {"stream_results": True, "yield_per": _ROWS_AT_ONCE}
        with self._refusals(f"read slot {self.name}"):
            # The server decodes everything first, and spills a large result to its disk.
            rows = connection.execute(_PEEK, asked, execution_options=options)
        try:
            while True:
                with self._refusals(f"read slot {self.name}"):
                    some = rows.fetchmany(_ROWS_AT_ONCE)
                if not some:
                    return
                for (data,) in some:
                    yield parse(bytes(data))
        finally:
            with suppress(SQLAlchemyError):
                rows.close()

    def record(self, connection: Connection, lsn: int) -> None:
        """Record, within a transaction, that all commits before `lsn` are taken.

        Raises
        ------
        ConfigurationError
            If another follower has recorded a position meanwhile: the lock's connection was lost.
        """
        mine = (followers.c.slot == self.name) & (followers.c.lsn == self.lsn)
        if connection.execute(update(followers).where(mine).values(lsn=lsn)).rowcount != 1:
            raise ConfigurationError(
                f"slot {self.name} has been followed by another program since it was opened here; "
                f"one follower is enough"
            )

    def recorded(self, lsn: int) -> None:
        """Note that the transaction of `record` has committed."""
        self.lsn = lsn

    def advance(self, lsn: int) -> None:
        """Let the server discard its log before `lsn`; earlier commits are not reported again."""
        if lsn <= self._confirmed:
            return
        connection = self.connection
        with self._refusals(f"advance slot {self.name}"), connection.begin():
            connection.execute(_ADVANCE, {"slot": self.name, "lsn": lsn_text(lsn)})
        self._confirmed = lsn

    @property
    def confirmed(self) -> int:
        """Position to which the slot was last advanced."""
        return self._confirmed

    @property
    def connection(self) -> Connection:
        """The follower's connection; raises `ConnectionLost` if it is lost or the slot not open."""
        if self._connection is None:
            raise ConnectionLost(f"slot {self.name} is not open")
        if self._connection.invalidated:
            # SQLAlchemy would open another connection, which does not hold the lock.
            raise ConnectionLost(f"the connection that follows slot {self.name} was lost")
        return self._connection

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Stop being the slot's follower; the slot remains, and retains the server's log."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                if connection.get_transaction() is not None:
                    connection.rollback()
                with connection.begin():
                    connection.execute(_UNLOCK, {"number": self._number})
            with suppress(SQLAlchemyError):
                connection.invalidate()  # in the pool it might keep holding the lock
                connection.close()

    def drop(self) -> bool:
        """Remove the slot, its publication and triggers; return False if there was nothing.

        Raises
        ------
        ConfigurationError
            If the slot has a follower, or belongs to another database.
        """
        try:
            connection = self._become_follower()
            with self._refusals("stop following"), self._short() as tidying:
                asked = select(followers.c.slot).where(followers.c.slot == self.name)
                is_ours = tidying.execute(asked.with_for_update()).first() is not None
                slot = tidying.execute(_SLOT, {"slot": self.name}).first()
            if not is_ours and slot is not None:
                raise ConfigurationError(
                    f"slot {self.name} is not this database's of activedb, so it is left: "
                    f"SELECT pg_drop_replication_slot('{self.name}') drops it"
                )
            if not is_ours:
                return False
            # The slot goes first: if a later step fails, everything is repeated.
            if slot is not None and slot.is_here:
                with self._refusals("drop the slot"), connection.begin():
                    connection.execute(_DROP, {"slot": self.name})
            with self._refusals("stop following"), self._short() as tidying:
                tidying.execute(delete(followers).where(followers.c.slot == self.name))
                Publication(tidying, self.schema, self.name).drop()
            return True
        finally:
            self.close()

    @contextmanager
    def _refusals(self, doing: str) -> Iterator[None]:
        """Translate server errors; for those that can be remedied, the message gives the remedy."""
        try:
            yield
        except (DBAPIError, SQLAlchemyError) as error:
            origin: Any = getattr(error, "orig", None)
            advice = _REFUSED.get(getattr(origin, "sqlstate", None) or "")
            if advice is not None:
                said = str(origin).strip().splitlines()[0]
                raise ConfigurationError(f"cannot {doing}: {said}; {advice}") from error
            ours = translate_error(error, doing)
            if ours is None:
                raise
            raise ours from error
