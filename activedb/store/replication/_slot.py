"""A logical replication slot, its publication, and how far they have been followed.

What a follower needs at the server, all of it named after the slot or the schema::

    slot            holds back the server's log from the place up to which it was advanced
    publication     the tables of which the slot tells
    followers row   `lsn`: what committed before is taken; written with what it has triggered
    two triggers    on each table: they say in the log which changes activedb has raised itself

*Marks.* A connection on which activedb writes what it raises events for has the setting
``activedb.raised``: the rules that have heard of them. For such a statement the triggers write that
into the log before the rows and an empty note after them; where a trigger or a cascade of the
server's own writes on the way, it is the other way round. So the mark costs nothing while nobody
follows, and no process has to know whether somebody does. A caller's connection does not have the
setting; there it is made around each flush, if somebody follows when the caller's transaction
begins. That is why a new table is followed only after every transaction has ended that had begun
before its triggers were there.
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
from activedb.store.server import translated, translation
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
_HEAD = text("SELECT pg_current_wal_flush_lsn() - '0/0', clock_timestamp()")
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
# Everybody may see these, whoever's transactions they are.
_OPEN = text(
    """
    SELECT l.virtualtransaction, l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'virtualxid' AND a.datname = current_database() AND a.usename IS NOT NULL
      AND l.pid <> pg_backend_pid()
    """
)
_REFUSED = {
    "42501": "the role lacks a right for it: follow once as the tables' owner, with REPLICATION",
    "42704": "somebody has dropped the slot or its publication: db.unfollow(slot), and follow anew",
    "53400": "the server has no room for another slot: drop one, or raise max_replication_slots",
    "55000": "the slot cannot be read any more: db.unfollow(slot), and follow anew",
    "55006": "somebody else reads the slot: end that, or choose another name with slot=",
}


@dataclass(frozen=True, slots=True)
class Peeked:
    """What a slot tells of at one moment.

    Attributes
    ----------
    head_lsn : int
        All that had committed before this place of the server's log is in it, unless there was
        more than asked for.
    now : datetime
        The server's clock.
    messages : iterator of Message
        Whole transactions in the order of their commits; read before anything else is asked.
    """

    head_lsn: int
    now: datetime
    messages: Iterator[Message]


class Slot:
    """A replication slot that one follower at a time reads; used by one thread.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        For the one connection that is the follower's, with the lock that says so.
    short : callable
        Short transactions.
    schema : str
        Where activedb's tables are.
    name : str
        Of the slot and the publication.
    patience_s : float
        How long to wait for transactions that are open when a table is followed for the first time.

    Attributes
    ----------
    name, schema : str
        As given.
    tables : tuple of FollowedTable
    lsn : int
        What has committed before this place has been taken, as far as is recorded.
    mark_prefix : str
        Of the notes in the log that tell what activedb has raised itself.
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

    def open(self, specs: Sequence[TableSpec], *, whole: bool = False) -> None:
        """Become its follower, and make what is missing at the server.

        Parameters
        ----------
        specs : sequence of TableSpec
            The tables to follow, from now on instead of those before.
        whole : bool
            Set the tables' replica identity to FULL, so that old rows are sent whole.

        Raises
        ------
        ConfigurationError
            If the server cannot, the role may not, a table is not there, the slot is another
            one's, has gone, or is being followed.
        LockTimeout
            If transactions that have begun before stay open.
        """
        try:
            connection = self._become_follower()
            with self._refusals("follow the tables"), self._short() as setting_up:
                publication = Publication(setting_up, self.schema, self.name)
                is_new, found = self._known(setting_up, publication)
                self.tables, is_more = publication.set(specs, whole=whole)
            if is_more or is_new:
                self._await_older(connection)
            if found is None:
                with self._refusals("make the slot"), connection.begin():
                    found = int(connection.scalar(_CREATE, {"slot": self.name}))
            if is_new:
                with translated("record the slot"), self._short() as recording:
                    recording.execute(
                        update(followers).where(followers.c.slot == self.name).values(lsn=found)
                    )
                self.lsn = found
            self._confirmed = found
        except BaseException:
            self.close()
            raise

    def _become_follower(self) -> Connection:
        with translated("look at the server"):
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
        """Whether it is yet to be recorded how far it is; where the slot is, None if not made."""
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
        anew = f"db.unfollow({self.name!r}), and follow anew; changes since then are not told"
        if slot is None:
            if row.lsn is not None:
                raise ConfigurationError(f"slot {self.name} has been dropped by somebody: {anew}")
            return True, None
        if slot.plugin != "pgoutput" or not slot.is_here:
            raise ConfigurationError(
                f"slot {self.name} is not the one that was followed: it belongs to database "
                f"{slot.database}, plugin {slot.plugin}. Choose another name with slot="
            )
        if slot.wal_status == "lost":
            raise ConfigurationError(
                f"slot {self.name} was left alone for so long that the server has dropped its log "
                f"(max_slot_wal_keep_size): {anew}"
            )
        if not publication.exists():
            raise ConfigurationError(
                f"publication {self.name} has been dropped by somebody: {anew}"
            )
        self.lsn = row.lsn or 0
        head, _ = connection.execute(_HEAD).one()
        if self.lsn > head:
            raise ConfigurationError(
                f"slot {self.name} was followed to {lsn_text(self.lsn)}, and the server's log "
                f"ends at {lsn_text(int(head))}: it has been restored from a backup. {anew}"
            )
        return row.lsn is None, int(slot.confirmed)

    def _await_older(self, connection: Connection) -> None:
        """Wait until every transaction has ended that is open now."""
        with translated("look at the open transactions"):
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
        """What has committed since the slot was advanced, whole transactions, at least once.

        Parameters
        ----------
        limit : int
            Messages after which no other transaction is begun.
        """
        connection = self.connection
        with self._refusals(f"read slot {self.name}"):
            begun = connection.begin()
        messages: Generator[Message] | None = None
        try:
            with self._refusals(f"read slot {self.name}"):
                head, now = connection.execute(_HEAD).one()
            messages = self._messages(connection, int(head), limit)
            yield Peeked(int(head), now, messages)
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
            # The server works it all out first, and keeps it on its disk if it is much.
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
        """Write, within a transaction, that what has committed before `lsn` is taken.

        Raises
        ------
        ConfigurationError
            If another follower has been here meanwhile: the connection with the lock was lost.
        """
        mine = (followers.c.slot == self.name) & (followers.c.lsn == self.lsn)
        if connection.execute(update(followers).where(mine).values(lsn=lsn)).rowcount != 1:
            raise ConfigurationError(
                f"slot {self.name} has been followed by somebody else since it was opened here; "
                f"one follower is enough"
            )

    def recorded(self, lsn: int) -> None:
        """Take note that the transaction of `record` has committed."""
        self.lsn = lsn

    def advance(self, lsn: int) -> None:
        """Let the server forget what has committed before `lsn`; it is told no more."""
        if lsn <= self._confirmed:
            return
        connection = self.connection
        with self._refusals(f"advance slot {self.name}"), connection.begin():
            connection.execute(_ADVANCE, {"slot": self.name, "lsn": lsn_text(lsn)})
        self._confirmed = lsn

    @property
    def confirmed(self) -> int:
        """Up to where the slot was advanced."""
        return self._confirmed

    @property
    def connection(self) -> Connection:
        """The follower's connection; raises `ConnectionLost` if there is none."""
        if self._connection is None:
            raise ConnectionLost(f"slot {self.name} is not open")
        return self._connection

    # -- the end ---------------------------------------------------------------------------

    def close(self) -> None:
        """Be its follower no more; the slot stays, and keeps the server's log."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                if connection.in_transaction():
                    connection.rollback()
                with connection.begin():
                    connection.execute(_UNLOCK, {"number": self._number})
            with suppress(SQLAlchemyError):
                connection.invalidate()  # back in the pool it might keep the lock
                connection.close()

    def drop(self) -> bool:
        """Remove slot, publication and what belongs to them; False if there was nothing.

        Raises
        ------
        ConfigurationError
            If it is being followed, or is another one's.
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
            # The slot at first: should the rest fail, it is all done again.
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
        """Errors of the server as ours; those that somebody can do something about say what."""
        try:
            yield
        except (DBAPIError, SQLAlchemyError) as error:
            origin: Any = getattr(error, "orig", None)
            advice = _REFUSED.get(getattr(origin, "sqlstate", None) or "")
            if advice is not None:
                said = str(origin).strip().splitlines()[0]
                raise ConfigurationError(f"cannot {doing}: {said}; {advice}") from error
            ours = translation(error, doing)
            if ours is None:
                raise
            raise ours from error
