"""Database of commands that inspect it without opening it: nothing is created or migrated there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from activedb.config import Settings
from activedb.store.server import EmbeddedServer, home_of
from activedb.store.session import wait_for_server

__all__ = ["server_of"]


@contextmanager
def server_of(settings: Settings) -> Iterator[str | None]:
    """Yield the URL of the server in the settings; None: an embedded one that does not exist yet.

    An existing embedded server is started, and stopped with the block if no other process uses it.

    Raises
    ------
    ServerUnreachable, ConfigurationError
    """
    if settings.url is not None:
        wait_for_server(settings.url, settings.wait_s)
        yield settings.url
    elif home_of(settings.folder) is None:
        yield None
    else:
        with EmbeddedServer.start(settings.folder) as server:
            yield server.url
