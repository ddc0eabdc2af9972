"""Properties of a server that activedb depends on."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from activedb.loopback import is_loopback
from activedb.store.server._driver_errors import translate_errors
from activedb.store.server._plain import plain_connection

__all__ = ["ServerFacts", "server_facts"]

_LOOKS = 5

_FACTS = text(
    """
    SELECT current_setting('server_version') AS version,
        current_setting('server_version_num')::int AS number,
        current_setting('server_encoding') AS encoding,
        current_setting('TimeZone') AS zone,
        current_setting('wal_level') AS wal_level,
        current_setting('max_connections')::int AS connections_max,
        current_setting('superuser_reserved_connections')::int AS connections_reserved,
        (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')
            AS connections_used,
        (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
            AS may_replicate,
        current_user AS role,
        current_database() AS database,
        current_schema() AS schema,
        current_schemas(false)::text[] AS search_path,
        has_database_privilege(current_database(), 'CREATE') AS may_make_schemas,
        coalesce(has_schema_privilege(to_regnamespace(current_schema()::text)::oid, 'CREATE'),
            false) AS may_make_tables,
        pg_is_in_recovery() OR current_setting('default_transaction_read_only')::bool
            AS is_read_only,
        pg_backend_pid() AS backend,
        coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS is_encrypted
    """
)
_NOW = text("SELECT clock_timestamp()")
_SCHEMA = text("SELECT to_regnamespace(quote_ident(:name)) IS NOT NULL")
_LISTEN = text("LISTEN activedb_doctor")
_TELL = text("SELECT pg_notify('activedb_doctor', '')")
_UNLISTEN = text("UNLISTEN activedb_doctor")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Properties of a server and rights of this role, as the server reports them.

    Attributes
    ----------
    version, number : str, int
        Version as text, and as a number: 180001 for 18.1.
    encoding, zone, wal_level, role, database : str
    schema : str or None
        Schema in which unqualified tables are created; None if the search path has none.
    schema_exists : bool
        True if the schema in the settings exists, or the settings have none.
    connections_max, connections_used : int
        Connections available to ordinary roles, and those open now, by any client.
    may_replicate, may_make_schemas, may_make_tables, may_listen : bool
    is_read_only, is_encrypted : bool
    is_local : bool
        True if the server is reached within this computer.
    is_pooled : bool
        True if a pooler stands between this process and the server.
    ahead_s, uncertain_s : float
        How far the server's clock is ahead of this computer's, and the error bound.
    """

    version: str
    number: int
    encoding: str
    zone: str
    wal_level: str
    role: str
    database: str
    schema: str | None
    schema_exists: bool
    connections_max: int
    connections_used: int
    may_replicate: bool
    may_make_schemas: bool
    may_make_tables: bool
    may_listen: bool
    is_read_only: bool
    is_encrypted: bool
    is_local: bool
    is_pooled: bool
    ahead_s: float
    uncertain_s: float


def server_facts(url: str, schema: str | None = None) -> ServerFacts:
    """Look at the server behind a URL, without changing anything. About ten round trips.

    Parameters
    ----------
    schema : str, optional
        Schema in the settings.

    Raises
    ------
    InvalidURL, ServerUnreachable
    """
    with plain_connection(url, schema) as connection, translate_errors("look at the server"):
        row = connection.execute(_FACTS).mappings().one()
        ahead_s, uncertain_s = _ahead(connection)
        driver: Any = connection.connection.driver_connection
        return ServerFacts(
            version=row["version"],
            number=row["number"],
            encoding=row["encoding"],
            zone=row["zone"],
            wal_level=row["wal_level"],
            role=row["role"],
            database=row["database"],
            schema=row["schema"],
            schema_exists=schema is None or bool(connection.scalar(_SCHEMA, {"name": schema})),
            connections_max=row["connections_max"] - row["connections_reserved"],
            connections_used=row["connections_used"],
            may_replicate=bool(row["may_replicate"]),
            may_make_schemas=row["may_make_schemas"],
            may_make_tables=row["may_make_tables"],
            may_listen=_hears(connection),
            is_read_only=row["is_read_only"],
            is_encrypted=row["is_encrypted"],
            is_local=_is_local(driver.info.hostaddr),
            is_pooled=driver.info.backend_pid != row["backend"],
            ahead_s=ahead_s,
            uncertain_s=uncertain_s,
        )


def _is_local(address: str) -> bool:
    """Return whether an address is this computer's own; a socket's address is empty."""
    return not address or is_loopback(address)


def _ahead(connection: Connection) -> tuple[float, float]:
    """Return how far the server's clock is ahead, and the error bound; the best of some tries."""
    found: list[tuple[float, float]] = []
    for _ in range(_LOOKS):
        before = time.time()
        there: datetime = connection.execute(_NOW).scalar_one()
        after = time.time()
        found.append(((after - before) / 2, there.timestamp() - (before + after) / 2))
    uncertain_s, ahead_s = min(found)
    return ahead_s, uncertain_s


def _hears(connection: Connection) -> bool:
    """Return whether a listener on this connection receives a notification."""
    driver: Any = connection.connection.driver_connection
    connection.execute(_LISTEN)
    connection.execute(_TELL)
    heard = list(driver.notifies(timeout=1.0, stop_after=1))
    connection.execute(_UNLISTEN)
    return bool(heard)
