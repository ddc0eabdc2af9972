"""Plain connections to a server, without a store: nothing is created or migrated there.

They serve inspection of a server before it is used, and tools beside the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from activedb.config import mask_url
from activedb.errors import InvalidURL, ServerUnreachable
from activedb.store.server._connections import engine_for
from activedb.store.server._urls import postgres_url

__all__ = ["plain_connection"]


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
    except OperationalError as error:
        raise ServerUnreachable(
            f"no Postgres answers at {mask_url(url)}: {' '.join(str(error.orig).split())}; check "
            f"ACTIVEDB_URL, or leave it out to use the embedded server"
        ) from error
    with connection:
        yield connection
