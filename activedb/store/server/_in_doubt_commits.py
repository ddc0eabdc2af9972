"""Lost connections: detection of dead pooled ones, and resolution of in-doubt commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Any

from sqlalchemy import ARRAY, Connection, Engine, Text, bindparam, event, text
from sqlalchemy.exc import DataError, DBAPIError, DisconnectionError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from activedb.errors import ConfigurationError
from activedb.store.server._patience import bounded_s

__all__ = [
    "LOG",
    "NOTIFY",
    "OUTCOMES",
    "check_essential",
    "commit_outcome",
    "missing_functions",
    "ping_if_idle",
    "qualified_xid",
    "xid_of",
]


_IDLE_S_MAX = 1.0
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
_NUMBER = text("SELECT pg_current_xact_id()::text")
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


def ping_if_idle(engine: Engine) -> None:
    """Ping a pooled connection that was idle for a second before it is used again."""

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
    return qualified_xid(connection, connection.execute(_NUMBER).scalar_one(), missing=missing)


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


# -- rights of a connection's role to call server functions, and the feature that needs each ---


OUTCOMES = frozenset(
    {
        "pg_current_xact_id()",
        "pg_xact_status(xid8)",
        "pg_postmaster_start_time()",
        "pg_stat_get_bgwriter_stat_reset_time()",
    }
)
"""Functions that resolve in-doubt commits."""

LOG = frozenset({"pg_current_wal_flush_lsn()"})
"""Functions that resolve in-doubt commits of a server that has crashed since."""

NOTIFY = frozenset({"pg_notify(text,text)"})
"""Functions that wake up workers at once; without them workers poll."""

_ESSENTIAL = frozenset(
    {
        "set_config(text,text,boolean)",
        "pg_advisory_xact_lock(bigint)",
        "pg_advisory_xact_lock_shared(bigint)",
        "pg_try_advisory_xact_lock(bigint)",
        "pg_try_advisory_xact_lock_shared(bigint)",
        "pg_try_advisory_lock(bigint)",
        "pg_try_advisory_lock_shared(bigint)",
        "pg_advisory_unlock(bigint)",
        "pg_advisory_unlock_shared(bigint)",
        "pg_advisory_unlock_all()",
    }
)
_MISSING = text(
    """
    SELECT name FROM unnest(:names) AS name
    WHERE NOT COALESCE(has_function_privilege(to_regprocedure(name)::oid, 'EXECUTE'), true)
    """
).bindparams(bindparam("names", type_=ARRAY(Text)))


def missing_functions(connection: Connection) -> frozenset[str]:
    """Return the functions used here that the role may not call; one round trip."""
    names = sorted(OUTCOMES | LOG | NOTIFY | _ESSENTIAL)
    return frozenset(connection.execute(_MISSING, {"names": names}).scalars())


def check_essential(missing: Collection[str]) -> None:
    """Refuse a role that may not call the lock and setting functions every transaction needs.

    Raises
    ------
    ConfigurationError
    """
    lacking = sorted(_ESSENTIAL.intersection(missing))
    if lacking:
        raise ConfigurationError(
            f"the role may not call {', '.join(lacking)} at the server, without which nothing can "
            f"be locked: GRANT EXECUTE ON FUNCTION {', '.join(lacking)} TO the role"
        )
