"""Resolution of in-doubt commits: whether a transaction took place whose connection was lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

from sqlalchemy import Connection, Engine, Text, cast, func, select, text
from sqlalchemy.exc import DataError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from activedb.store.server._patience import bounded_s
from activedb.store.server._prepared import fetch
from activedb.store.server._roles import LOG, OUTCOMES

__all__ = ["commit_outcome", "qualified_xid", "xid_of"]


_PAUSE_S = 0.05

# Statistics are reset whenever the server recovers from a crash, even of one of its processes.
# Times are compared as numbers, because a caller's connection may format them differently.
_LIFE = (
    "concat(extract(epoch FROM pg_postmaster_start_time()), ' ', "
    "(SELECT extract(epoch FROM stats_reset) FROM pg_stat_bgwriter))"
)
_LIFE_AND_LOG = f"concat({_LIFE}, ' ', pg_current_wal_flush_lsn())"
_LIFE_NOW = text(f"SELECT {_LIFE_AND_LOG}")
_LIFE_ALONE_NOW = text(f"SELECT concat({_LIFE}, ' ')")
_NUMBER = select(cast(func.pg_current_xact_id(), Text))
_NUMBER_NOW = text(f"SELECT concat({_LIFE_AND_LOG}, '/', pg_current_xact_id())")
_NUMBER_ALONE_NOW = text(f"SELECT concat({_LIFE}, ' /', pg_current_xact_id())")
_STATUS = text(f"SELECT {_LIFE}, pg_xact_status(CAST(:number AS xid8))")
_RIGHT_MISSING = "42501"
_FUTURE = "22023"  # no transaction has this number yet
# Whether the number is below the next one at the server's last recovery: the first checkpoint after
# a recovery is of the kind without a separate redo point, and lies behind everything that was on
# disk before. Connections from before the crash are gone. A checkpoint of another timeline does
# not count.
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


def xid_of(connection: Connection, *, is_ours: bool, missing: Collection[str]) -> str:
    """Return the number of a connection's transaction, with the server's life; one round trip.

    After a crash the server reuses numbers that never reached its disk. A caller's connection may
    survive a crash, behind a pooler: there the life is queried each time.

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
    [[(number,)]] = fetch(connection, [(_NUMBER, {})])
    return qualified_xid(connection, number, missing=missing)


def qualified_xid(connection: Connection, number: str, *, missing: Collection[str]) -> str:
    """Return a number from the server with the server's life; one round trip per connection.

    The life is the server's start time, and how much of the log was on disk when the connection
    asked, which is left out if the role may not query it.
    """
    known = connection.info  # of the driver's connection: gone if it reconnects
    if "life of the server" not in known:
        now = _LIFE_NOW if LOG.isdisjoint(missing) else _LIFE_ALONE_NOW
        known["life of the server"] = connection.execute(now).scalar_one()
    return f"{known['life of the server']}/{number}"


def commit_outcome(engine: Engine, number: str, patience_s: float) -> bool | None:
    """Return whether a transaction has committed, asked on another connection; None if unknown.

    Waits up to `patience_s` while the server is down or the transaction is still in progress.
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
                    # The server may have crashed, and reused the number for another transaction.
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
