"""Rights of a connection's role to call server functions, and the feature that needs each.

Every role may call these functions unless the right was revoked. A role without such a right loses
that feature and keeps the others; a role without the functions for locks and settings is refused.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ARRAY, Connection, Text, bindparam, text

from activedb.errors import ConfigurationError

__all__ = ["LOG", "NOTIFY", "OUTCOMES", "check_essential", "missing_functions"]

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
