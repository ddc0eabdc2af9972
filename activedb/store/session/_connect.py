"""Opening of the store that a URL, or its absence, designates."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import MetaData, make_url

from activedb.config import Settings
from activedb.store.server import EmbeddedServer, await_server, postgres_url
from activedb.store.session._memory import MemoryStore
from activedb.store.session._postgres import PostgresStore
from activedb.store.session._store import Store

__all__ = ["new_metadata", "open_store", "wait_for_server"]


def new_metadata() -> MetaData:
    """Return an empty collection of table declarations."""
    return MetaData()


def wait_for_server(url: str, wait_s: float | None) -> None:
    """Wait for a server that is starting or recovering; see ``Settings.wait_s``.

    Raises
    ------
    InvalidURL
    """
    if url != "memory://":
        await_server(postgres_url(url), wait_s)


def open_store(
    metadata: MetaData,
    settings: Settings,
    *,
    fresh: bool = False,
    raised: Callable[[str], str] = lambda schema: "",
) -> Store:
    """Open the store that `settings` name, with activedb's own tables up to date.

    Without a URL the embedded Postgres of the working folder is started; closing the store
    stops it if no other process uses it.

    Parameters
    ----------
    fresh : bool
        Start with an empty ``settings.db_schema``; its contents are dropped.
    raised : callable ``(schema)``
        Return the rules that see events of the writes made here; see `Store`.

    Raises
    ------
    InvalidURL, ServerUnreachable, ConfigurationError
    """
    url = settings.url
    if url == "memory://":
        store: Store = MemoryStore(metadata, settings)
    elif url is None:
        server = EmbeddedServer.start(settings.folder)
        try:
            store = PostgresStore(
                make_url(server.url),
                metadata,
                settings,
                beneath=server,
                fresh=fresh,
                raised=raised,
            )
        except BaseException:
            server.close()
            raise
    else:
        store = PostgresStore(postgres_url(url), metadata, settings, fresh=fresh, raised=raised)
    try:
        store.migrate()
    except BaseException:
        store.close()
        raise
    return store
