"""From a URL, or from none, to a store that is ready to use."""

from __future__ import annotations

from sqlalchemy import URL, MetaData, make_url
from sqlalchemy.exc import ArgumentError

from activedb.config import Settings, mask_url
from activedb.errors import InvalidURL
from activedb.store._memory import MemoryStore
from activedb.store._postgres import PostgresStore
from activedb.store._store import Store
from activedb.store.embedded import EmbeddedServer

__all__ = ["new_metadata", "open_store"]


def new_metadata() -> MetaData:
    """An empty collection of table declarations."""
    return MetaData()


def open_store(metadata: MetaData, settings: Settings, *, fresh: bool = False) -> Store:
    """Open the store that `settings` name, with activedb's own tables up to date.

    Without a URL the embedded Postgres of the working folder is started; closing the store
    stops it when nobody else uses it.

    Parameters
    ----------
    fresh : bool
        Start with an empty ``settings.db_schema``; what is in it is dropped.

    Raises
    ------
    InvalidURL, ServerUnreachable, ConfigurationError
    """
    url = settings.url
    if url == "memory://":
        store: Store = MemoryStore(metadata)
    elif url is None:
        server = EmbeddedServer.start(settings.folder)
        try:
            store = PostgresStore(
                make_url(server.url), metadata, settings, beneath=server, fresh=fresh
            )
        except BaseException:
            server.close()
            raise
    else:
        store = PostgresStore(_postgres_url(url), metadata, settings, fresh=fresh)
    try:
        store.migrate()
    except BaseException:
        store.close()
        raise
    return store


def _postgres_url(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        url = None
    if url is None or url.get_backend_name() != "postgresql":
        raise InvalidURL(
            f"cannot use {mask_url(text)!r} as a database URL; write "
            f"postgresql+psycopg://user:password@host:5432/database or memory://"
        )
    return url
