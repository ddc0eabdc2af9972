"""Schemas of a server for one test after the other: to make activedb's tables anew takes longest.

A schema comes back when its test has ended: its rows and what else the test has made are removed.
One that is not like new then is never used again.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine, create_engine, exc, text
from sqlalchemy.pool import NullPool

import activedb as adb

__all__ = ["give_back", "take"]

_BUSY_MS = 200  # how long to wait for what a killed program has left locked

_CLEAN = """
DO $clean$
DECLARE
    one record;
    is_filled boolean;
BEGIN
    FOR one IN
        SELECT c.oid,
            CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
                WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind
        FROM pg_class c
        WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
            AND NOT c.relname = ANY (ARRAY[{kept}])
        ORDER BY c.relkind = 'S'  -- those of columns go with their tables
    LOOP
        IF EXISTS (SELECT FROM pg_class WHERE oid = one.oid) THEN  -- no other has taken it along
            EXECUTE 'DROP ' || one.kind || ' ' || one.oid::regclass || ' CASCADE';
        END IF;
    END LOOP;
    FOR one IN
        SELECT oid FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace
    LOOP
        EXECUTE 'DROP ROUTINE ' || one.oid::regprocedure || ' CASCADE';
    END LOOP;
    FOR one IN
        SELECT oid::regclass AS name FROM pg_class
        WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r'
            AND relname <> 'activedb_version'
    LOOP
        EXECUTE 'SELECT EXISTS (SELECT FROM ' || one.name || ')' INTO is_filled;
        IF is_filled THEN
            EXECUTE 'TRUNCATE ' || one.name || ' CASCADE';
        END IF;
    END LOOP;
END
$clean$
"""

# All that makes a schema, by name: relations, columns, constraints, triggers, types, rights, and
# what is called after it.
_LOOKS = """
SELECT md5(string_agg(what, chr(10) ORDER BY what)) FROM (
    SELECT concat_ws('/', 'r', relname, relkind, relpersistence, relreplident, relacl, relowner,
        relhastriggers, relrowsecurity, reloptions) AS what
    FROM pg_class WHERE relnamespace = '{schema}'::regnamespace
    UNION ALL
    SELECT concat_ws('/', 'a', c.relname, a.attname, a.atttypid, a.attnotnull, a.attnum, a.attacl,
        a.attgenerated, a.attidentity, pg_get_expr(d.adbin, d.adrelid))
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'r' AND a.attnum > 0
    UNION ALL
    SELECT concat_ws('/', 'c', conname, conrelid::regclass, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE connamespace = '{schema}'::regnamespace
    UNION ALL
    SELECT concat_ws('/', 't', t.tgname, t.tgrelid::regclass, t.tgenabled)
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = '{schema}'::regnamespace
    UNION ALL
    SELECT concat_ws('/', 'y', typname, typtype) FROM pg_type
    WHERE typnamespace = '{schema}'::regnamespace
    UNION ALL
    SELECT concat_ws('/', 'n', nspacl, nspowner) FROM pg_namespace WHERE nspname = '{schema}'
    UNION ALL
    SELECT concat_ws('/', 'p', pubname) FROM pg_publication WHERE strpos(pubname, '{schema}') > 0
    UNION ALL
    SELECT concat_ws('/', 'l', slot_name) FROM pg_replication_slots
    WHERE strpos(slot_name, '{schema}') > 0
) AS looks
"""


@dataclass
class _Schemas:
    """Schemas of one server that no test uses, and the contents of a new one."""

    engine: Engine
    free: list[str] = field(default_factory=list)
    tables: tuple[str, ...] = ()
    looks: str = ""


_of: dict[str, _Schemas] = {}


def take(server_url: str) -> str:
    """The name of a schema that is not there, or has nothing but activedb's tables, empty."""
    of = _of.get(server_url)
    return of.free.pop() if of is not None and of.free else f"s{secrets.token_hex(5)}"


def give_back(server_url: str, schema: str) -> None:
    """Let another test use a schema that is no longer open."""
    of = _of.get(server_url)
    if of is None:
        of = _of[server_url] = _learnt(server_url)
    if _is_new_again(of, schema):
        of.free.append(schema)


def _learnt(server_url: str) -> _Schemas:
    schema = take(server_url)
    adb.connect(server_url, db_schema=schema).close()
    of = _Schemas(create_engine(server_url, poolclass=NullPool))
    with of.engine.begin() as connection:
        tables = connection.scalars(
            text("SELECT tablename FROM pg_tables WHERE schemaname = :schema"), {"schema": schema}
        )
        of.tables = tuple(tables)
        of.looks = _looks(connection, schema)
    of.free.append(schema)
    return of


def _is_new_again(of: _Schemas, schema: str) -> bool:
    kept = ", ".join(f"'{name}'" for name in of.tables)
    try:
        with of.engine.begin() as connection:
            if connection.scalar(text("SELECT to_regnamespace(:name)"), {"name": schema}) is None:
                return True  # the test has not opened it
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_BUSY_MS}")
            connection.exec_driver_sql(_CLEAN.format(schema=schema, kept=kept))
            return _looks(connection, schema) == of.looks
    except exc.OperationalError:  # another session has locked something
        return False


def _looks(connection: Connection, schema: str) -> str:
    connection.exec_driver_sql(f"SET LOCAL search_path = {schema}")
    return str(connection.exec_driver_sql(_LOOKS.format(schema=schema)).scalar())
