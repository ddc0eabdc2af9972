"""Schemas that tests and measurements fill and leave behind: one on a server, for a while."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text
from sqlalchemy.schema import CreateSchema, DropSchema

from activedb.errors import LockTimeout
from activedb.store.server._driver_errors import translated
from activedb.store.server._plain import plain_connection
from activedb.store.server._urls import postgres_url

__all__ = ["drop_left_schemas", "scratch_schema"]

_PREFIX = "activedb_scratch_"
_BUSY_MS = 5_000

_WAIT = text("SELECT set_config('lock_timeout', :ms, false)")
# Who has one open is connected: what is there when nobody else is, was left by killed processes.
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
    """The URL of an empty schema, dropped at the end of the block with all that is in it.

    Parameters
    ----------
    lazily : bool
        Whether commits there do not wait for the disk: enough where processes are killed, and not
        computers.

    Raises
    ------
    InvalidURL, ServerUnreachable
    LockTimeout
        At the end, if somebody has a transaction open in it.
    """
    name = f"{_PREFIX}{secrets.token_hex(6)}"
    url = postgres_url(server_url)
    options = f"{url.query.get('options', '')} -c search_path={name}"
    if lazily:
        options += " -c synchronous_commit=off"
    with plain_connection(server_url) as connection:
        with translated("make a schema"):
            connection.execute(CreateSchema(name))
        try:
            yield url.update_query_dict({"options": options.strip()}).render_as_string(
                hide_password=False
            )
        finally:
            _drop(connection, name)


@contextmanager
def drop_left_schemas(server_url: str) -> Iterator[None]:
    """Drop what killed processes have left, if nobody else uses the server.

    For the block this is a use of the server, so that nobody drops what is made in it.
    """
    with plain_connection(server_url) as connection:
        with translated("look for schemas that were left"):
            left = connection.execute(_LEFT, {"prefix": _PREFIX}).scalars().all()
        for name in left:
            _drop(connection, name)
        yield


def _drop(connection: Connection, name: str) -> None:
    try:
        with translated(f"drop the schema {name}"):
            connection.execute(_WAIT, {"ms": str(_BUSY_MS)})
            connection.execute(DropSchema(name, cascade=True, if_exists=True))
    except LockTimeout as error:
        raise LockTimeout(
            f"a transaction is still open in the schema {name}, which is to go: end it, and close "
            f"the databases that are open there"
        ) from error
