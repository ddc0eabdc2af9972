"""Lost connections: which pooled ones are dead, and what became of a commit that was cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DataError, DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from activedb.store.server._patience import bounded_s
from activedb.store.server._rights import LOG, OUTCOMES

__all__ = ["named", "number_of", "outcome", "ping_if_idle"]

_IDLE_S_MAX = 1.0
_PAUSE_S = 0.05

# Statistics are reset whenever the server recovers from a crash, also of one of its processes.
# As numbers, because a caller's connection may show times in another way than ours.
_LIFE = (
    "concat(extract(epoch FROM pg_postmaster_start_time()), ' ', "
    "(SELECT extract(epoch FROM stats_reset) FROM pg_stat_bgwriter))"
)
_LIFE_AND_LOG = f"concat({_LIFE}, ' ', pg_current_wal_flush_lsn())"
_LIFE_NOW = text(f"SELECT {_LIFE_AND_LOG}")
_LIFE_ALONE_NOW = text(f"SELECT concat({_LIFE}, ' ')")
_NUMBER = text("SELECT pg_current_xact_id()::text")
_NUMBER_NOW = text(f"SELECT concat({_LIFE_AND_LOG}, '/', pg_current_xact_id())")
_NUMBER_ALONE_NOW = text(f"SELECT concat({_LIFE}, ' /', pg_current_xact_id())")
_STATUS = text(f"SELECT {_LIFE}, pg_xact_status(CAST(:number AS xid8))")
_RIGHT_MISSING = "42501"
_FUTURE = "22023"  # the number has not been given to any transaction
# What the log held when the server last recovered: its first checkpoint after that is of the kind
# that has no redo point of its own, and lies behind all that was on disk before. Who was
# connected before that has died with the crash. Another timeline's checkpoint says nothing.
_CAME_TO_DISK = text("""
    SELECT CAST(CAST(:number AS text) AS numeric)
        < CAST(split_part(next_xid, ':', 1) AS numeric) * 4294967296
        + CAST(split_part(next_xid, ':', 2) AS numeric)
    FROM pg_control_checkpoint()
    WHERE redo_lsn = checkpoint_lsn
      AND checkpoint_lsn >= CAST(:flushed AS pg_lsn)
      AND current_setting('wal_level') <> 'minimal'
      AND pg_walfile_name(pg_current_wal_lsn()) LIKE lpad(upper(to_hex(timeline_id)), 8, '0') || '%'
""")


def ping_if_idle(engine: Engine) -> None:
    """Have a pooled connection that was idle for a second answer before it is used again."""

    def returned(dbapi_connection: Any, record: Any) -> None:
        record.info["idle since"] = time.monotonic()

    def taken(dbapi_connection: Any, record: Any, proxy: Any) -> None:
        since = record.info.get("idle since")
        if since is None or time.monotonic() - since < _IDLE_S_MAX:
            return
        try:
            engine.dialect.do_ping(dbapi_connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError from error  # the pool opens another one

    event.listen(engine, "checkin", returned)
    event.listen(engine, "checkout", taken)


def number_of(connection: Connection, *, is_ours: bool, missing: Collection[str]) -> str:
    """Number of a connection's transaction, with the life of the server; one round trip.

    After a crash of the server, numbers that never reached its disk are given once more. Somebody
    else's connection may outlive a crash, behind a pooler: it is asked for the life each time.

    Parameters
    ----------
    missing : collection of str
        Functions that the role may not call. Without those for numbers of transactions the text is
        empty, and the outcome of the transaction stays unknown.
    """
    if not OUTCOMES.isdisjoint(missing):
        return ""
    if not is_ours:
        now = _NUMBER_NOW if LOG.isdisjoint(missing) else _NUMBER_ALONE_NOW
        return str(connection.execute(now).scalar_one())
    return named(connection, connection.execute(_NUMBER).scalar_one(), missing=missing)


def named(connection: Connection, number: str, *, missing: Collection[str]) -> str:
    """A number that the server has told, with the server's life; one round trip per connection.

    The life is its beginning, and how much of the log was on disk when the connection asked: that
    is left out if the role may not know it.
    """
    known = connection.info  # of the driver's connection, which has one life
    if "life of the server" not in known:
        now = _LIFE_NOW if LOG.isdisjoint(missing) else _LIFE_ALONE_NOW
        known["life of the server"] = connection.execute(now).scalar_one()
    return f"{known['life of the server']}/{number}"


def outcome(engine: Engine, number: str, patience_s: float) -> bool | None:
    """Whether a transaction has committed, asked on another connection; None if unknown.

    Waits while the server is away or still at work on the transaction, for `patience_s` at most.
    """
    if not number:
        return None
    life, _, transaction = number.rpartition("/")
    began, _, flushed = life.rpartition(" ")
    until = time.monotonic() + bounded_s(patience_s)
    while True:
        try:
            with engine.connect() as connection:
                now, status = connection.execute(_STATUS, {"number": transaction}).one()
                if status in ("committed", "in progress") and now != began and flushed:
                    # The server may have crashed, and given the number to somebody else.
                    given = {"number": transaction, "flushed": flushed}
                    if connection.execute(_CAME_TO_DISK, given).scalar() is False:
                        return False
        except DataError as error:
            return False if getattr(error.orig, "sqlstate", None) == _FUTURE else None
        except (DBAPIError, PoolTimeout) as error:
            if getattr(getattr(error, "orig", None), "sqlstate", None) == _RIGHT_MISSING:
                return None
            now, status = began, "in progress"
        if status == "aborted":
            return False
        if status != "in progress":
            return True if status == "committed" and now == began else None
        if time.monotonic() > until:
            return None
        threading.Event().wait(_PAUSE_S)
