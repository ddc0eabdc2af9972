"""Rights at the server: two roles for activedb, and the functions that a role may call.

One role owns and migrates the tables, the other can only run rules. The statements for them are
text that an administrator reads and runs with psql, not for activedb: it never creates roles. Names
may contain letters, digits, ``_`` and ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import ARRAY, Connection, Text, bindparam, text

from activedb.errors import ConfigurationError
from activedb.store.server._quoting import literal, quoted
from activedb.store.system import system

__all__ = [
    "LOG",
    "NOTIFY",
    "OUTCOMES",
    "Right",
    "check_essential",
    "missing_functions",
    "missing_rights",
    "rights_of_roles",
    "role_statements",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}", re.ASCII)
_ROWS = ("SELECT", "INSERT", "UPDATE", "DELETE")
_MISSING = text(
    """
    SELECT t.name, r.name
    FROM unnest(:tables) WITH ORDINALITY AS t(name, place)
    CROSS JOIN unnest(:rights) WITH ORDINALITY AS r(name, place)
    WHERE NOT COALESCE(has_table_privilege(to_regclass(t.name)::oid, r.name), false)
    ORDER BY t.place, r.place
    """
).bindparams(bindparam("tables", type_=ARRAY(Text)), bindparam("rights", type_=ARRAY(Text)))

_STATEMENTS = """\
-- Roles for activedb: {owner} makes and migrates the tables, {runner} runs rules.
--
-- 1. Run this as a superuser in the database that is meant (psql --single-transaction).
-- 2. Give both a password (\\password NAME), or what pg_hba.conf asks for.
-- 3. As {owner}: activedb migrate, and whatever creates your own tables.
-- 4. Run this again: it grants what is there by then, and may be run as often as you like.

DO $activedb$
DECLARE
    found text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {owner_text}) THEN
        CREATE ROLE {owner} LOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = {runner_text}) THEN
        CREATE ROLE {runner} LOGIN;
    END IF;
    EXECUTE pg_catalog.format(
        'GRANT CONNECT ON DATABASE %I TO {owner}, {runner}', pg_catalog.current_database());
    IF pg_catalog.to_regnamespace({schema_name_text}) IS NULL THEN
        CREATE SCHEMA {schema} AUTHORIZATION {owner};
    END IF;
    GRANT USAGE, CREATE ON SCHEMA {schema} TO {owner};
    GRANT USAGE ON SCHEMA {schema} TO {runner};

    -- What the owner will make there.
    ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema}
        GRANT {rows} ON TABLES TO {runner};
    ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA {schema}
        GRANT USAGE ON SEQUENCES TO {runner};

    -- What the owner has there.
    FOR found IN
        SELECT pg_catalog.format('%I.%I', schemaname, tablename) FROM pg_catalog.pg_tables
        WHERE schemaname = {schema_text} AND tableowner = {owner_text}
    LOOP
        EXECUTE 'GRANT {rows} ON TABLE ' || found || ' TO {runner}';
    END LOOP;
    FOR found IN
        SELECT pg_catalog.format('%I.%I', schemaname, sequencename) FROM pg_catalog.pg_sequences
        WHERE schemaname = {schema_text} AND sequenceowner = {owner_text}
    LOOP
        EXECUTE 'GRANT USAGE ON SEQUENCE ' || found || ' TO {runner}';
    END LOOP;
    IF pg_catalog.to_regclass({version_text}) IS NOT NULL THEN
        REVOKE INSERT, UPDATE, DELETE ON {schema}.activedb_version FROM {runner};
    END IF;
END
$activedb$;

-- Only to follow changes by others (activedb follow), which has to be begun once as {owner}
-- with REPLICATION and CREATE on the database:
-- ALTER ROLE {runner} REPLICATION;
"""


@dataclass(frozen=True, slots=True)
class Right:
    """Right granted to one of the two roles.

    Attributes
    ----------
    role, on, rights, why : str
    """

    role: str
    on: str
    rights: str
    why: str


def rights_of_roles(*, schema: str, owner: str, runner: str) -> list[Right]:
    """Return the rights granted by `role_statements` and their reasons, for people to read."""
    rows = ", ".join(_ROWS)
    return [
        Right(owner, "the database", "CONNECT", "to migrate"),
        Right(owner, f"schema {schema}", "USAGE, CREATE", "to make and migrate tables"),
        Right(runner, "the database", "CONNECT", "to run rules"),
        Right(runner, f"schema {schema}", "USAGE", "to find its tables; it can make none"),
        Right(runner, f"tables of {owner}", rows, "rows that rules read, lock and write"),
        Right(runner, f"sequences of {owner}", "USAGE", "keys that the database numbers"),
        Right(runner, f"{schema}.activedb_version", "SELECT", "to see that nothing is to migrate"),
    ]


def role_statements(*, schema: str, owner: str, runner: str) -> str:
    """Return statements that create both roles with the rights they need; they may be run again.

    Raises
    ------
    ConfigurationError
        If a name has other characters than letters, digits, ``_`` and ``-``, or both roles have
        the same name.
    """
    for name in (schema, owner, runner):
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is not a name for a role or schema here: take at most 63 letters, "
                f"digits, _ and -, a letter or _ first"
            )
    if owner == runner:
        raise ConfigurationError(
            f"owner and runner are both {owner}: a role that owns the tables can also drop them, "
            f"so give them two names"
        )
    return _STATEMENTS.format(
        owner=quoted(owner),
        runner=quoted(runner),
        schema=quoted(schema),
        owner_text=literal(owner),
        runner_text=literal(runner),
        schema_text=literal(schema),
        schema_name_text=literal(quoted(schema)),
        version_text=literal(f"{quoted(schema)}.activedb_version"),
        rows=", ".join(_ROWS),
    )


def missing_rights(connection: Connection) -> list[tuple[str, str]]:
    """Return the rights on activedb's tables, (table, right), that the role lacks to run rules.

    One round trip. Tables that do not exist count as tables without any right.
    """
    asked = {"tables": sorted(system.tables), "rights": list(_ROWS)}
    return [(str(table), str(right)) for table, right in connection.execute(_MISSING, asked)]


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
_MISSING_FUNCTIONS = text(
    """
    SELECT name FROM unnest(:names) AS name
    WHERE NOT COALESCE(has_function_privilege(to_regprocedure(name)::oid, 'EXECUTE'), true)
    """
).bindparams(bindparam("names", type_=ARRAY(Text)))


def missing_functions(connection: Connection) -> frozenset[str]:
    """Return the functions used here that the role may not call; one round trip."""
    names = sorted(OUTCOMES | LOG | NOTIFY | _ESSENTIAL)
    return frozenset(connection.execute(_MISSING_FUNCTIONS, {"names": names}).scalars())


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
