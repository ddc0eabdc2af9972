"""Scratch schemas: temporary schemas on a server for tests and measurements."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, text
from sqlalchemy.schema import CreateSchema, DropSchema

from activedb.errors import LockTimeout
from activedb.store.server._driver_errors import translate_errors
from activedb.store.server._plain import plain_connection
from activedb.store.server._urls import postgres_url

__all__ = ["drop_left_schemas", "scratch_schema"]

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
