"""Plain connections to a server, without a store, and what is done over them.

Nothing is created or migrated in a database. They serve inspection of a server before it is used,
scratch schemas, and tools beside the database.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import URL, Connection, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, ProgrammingError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateSchema, DropSchema

from activedb.config import mask_url
from activedb.errors import InvalidURL, LockTimeout, ServerUnreachable
from activedb.loopback import is_loopback
from activedb.store.server._connections import engine_for
from activedb.store.server._driver_errors import translate_errors

__all__ = [
    "ServerFacts",
    "drop_left_schemas",
    "invalid_option",
    "plain_connection",
    "postgres_url",
    "scratch_schema",
    "server_facts",
]


# -- URLs of servers, and their redaction ----------------------------------------------------------

_FORM = "postgresql+psycopg://user:password@host:5432/database"
_OF_DATABASE = "cannot use", f" as a database URL; write {_FORM} or memory://"
_BEHIND_A_NAME = re.compile(r"(:/{0,2}[^:/?#@]*:).*", re.DOTALL)


def postgres_url(text: str, *, refusal: tuple[str, str] = _OF_DATABASE) -> URL:
    """Return the parsed URL of a Postgres.

    Parameters
    ----------
    text : str
        URL as the user wrote it.
    refusal : (str, str)
        Parts of the error message before and after the refused URL.

    Raises
    ------
    InvalidURL
        If it is not the URL of a Postgres. The message shows nothing that may be a password.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.get_backend_name() != "postgresql":
        raise InvalidURL(f"{refusal[0]} {_shown(text)!r}{refusal[1]}")
    if "@" in (url.host or ""):
        raise InvalidURL(
            f"cannot use {_shown(text)!r} as a database URL: there is an @ too many; in a name or "
            f"password write it as %40"
        )
    return url


def invalid_option(url: str, error: DBAPIError) -> InvalidURL | None:
    """Return what to raise if no connection was opened because of an option of the URL, or None."""
    reason = " ".join(str(error.orig).split())
    if getattr(error.orig, "sqlstate", None) is not None or "connection option" not in reason:
        return None
    return InvalidURL(
        f"cannot use the URL {mask_url(url)}: {reason}; options behind the ? are those of libpq, "
        f"such as sslmode=verify-full"
    )


def _shown(text: str) -> str:
    """Return a URL, mistyped anywhere, without any part that may be a password."""
    masked = mask_url(text)
    return masked if masked != text else _BEHIND_A_NAME.sub(r"\1***", text)


# -- plain connections -----------------------------------------------------------------------------


@contextmanager
def plain_connection(url: str, schema: str | None = None) -> Iterator[Connection]:
    """Yield a connection in autocommit mode; it is closed at the end of the block.

    Parameters
    ----------
    schema : str, optional
        Schema for the search path; it need not exist.

    Raises
    ------
    InvalidURL, ServerUnreachable
    """
    if url == "memory://":
        raise InvalidURL(
            "memory:// belongs to the process that opens it: there is nothing to look at from "
            "outside. Name a Postgres with --url or ACTIVEDB_URL, or leave both out for the "
            "embedded one"
        )
    engine = engine_for(
        postgres_url(url),
        {} if schema is None else {"search_path": schema},
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
    )
    try:
        connection = engine.connect()
    except ProgrammingError as error:
        wrong = invalid_option(url, error)
        if wrong is None:
            raise
        raise wrong from error
    except OperationalError as error:
        raise ServerUnreachable(
            f"no Postgres answers at {mask_url(url)}: {' '.join(str(error.orig).split())}; check "
            f"ACTIVEDB_URL, or leave it out to use the embedded server"
        ) from error
    with connection:
        yield connection


# -- properties of a server that activedb depends on -----------------------------------------------

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


# -- scratch schemas: temporary ones for tests and measurements ------------------------------------

_PREFIX = "activedb_scratch_"
_BUSY_MS = 5_000

_WAIT = text("SELECT set_config('lock_timeout', :ms, false)")
# A user of a scratch schema is connected: schemas without other clients are leftovers.
_LEFT = text(
    """
    SELECT nspname FROM pg_namespace
    WHERE starts_with(nspname, :prefix) AND NOT EXISTS (
        SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend'
            AND pid <> pg_backend_pid()
    )
    """
)


@contextmanager
def scratch_schema(server_url: str, *, lazily: bool = True) -> Iterator[str]:
    """Yield the URL of an empty schema, dropped with its contents at the end of the block.

    Parameters
    ----------
    lazily : bool
        Don't let commits wait for the disk: safe enough where processes are killed, but not
        computers.

    Raises
    ------
    InvalidURL, ServerUnreachable
    LockTimeout
        At the end, if a transaction is still open in the schema.
    """
    name = f"{_PREFIX}{secrets.token_hex(6)}"
    url = postgres_url(server_url)
    options = f"{url.query.get('options', '')} -c search_path={name}"
    if lazily:
        options += " -c synchronous_commit=off"
    with plain_connection(server_url) as connection:
        with translate_errors("make a schema"):
            connection.execute(CreateSchema(name))
        try:
            yield url.update_query_dict({"options": options.strip()}).render_as_string(
                hide_password=False
            )
        finally:
            _drop(connection, name)


@contextmanager
def drop_left_schemas(server_url: str) -> Iterator[None]:
    """Drop the schemas that killed processes have left, if the server has no other client.

    The block's own connection counts as a client, so no process drops the schemas made in it.
    """
    with plain_connection(server_url) as connection:
        with translate_errors("look for schemas that were left"):
            left = connection.execute(_LEFT, {"prefix": _PREFIX}).scalars().all()
        for name in left:
            _drop(connection, name)
        yield


def _drop(connection: Connection, name: str) -> None:
    try:
        with translate_errors(f"drop the schema {name}"):
            connection.execute(_WAIT, {"ms": str(_BUSY_MS)})
            connection.execute(DropSchema(name, cascade=True, if_exists=True))
    except LockTimeout as error:
        raise LockTimeout(
            f"a transaction is still open in the schema {name}, which is to go: end it, and close "
            f"the databases that are open there"
        ) from error
