"""Rights of a connection's role to call the server's functions, and the feature each is for.

Every role may call these functions unless the right was revoked. Then the role goes without that
feature and keeps the others; without the functions that locks and settings need it is refused.
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
"""For asking what became of a commit that was cut off."""

LOG = frozenset({"pg_current_wal_flush_lsn()"})
"""For asking that of a server that has crashed since."""

NOTIFY = frozenset({"pg_notify(text,text)"})
"""For waking up workers at once; without it they look now and then."""

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
    """Functions that the role may not call, of those that are used here; one round trip."""
    names = sorted(OUTCOMES | LOG | NOTIFY | _ESSENTIAL)
    return frozenset(connection.execute(_MISSING, {"names": names}).scalars())


def check_essential(missing: Collection[str]) -> None:
    """Refuse a role that may not lock and set what every transaction needs.

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
