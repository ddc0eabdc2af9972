"""The database that commands look at without opening it: nothing is made or migrated there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from activedb.config import Settings
from activedb.store.server import EmbeddedServer, home_of
from activedb.store.session import wait_for_server

__all__ = ["server_of"]


@contextmanager
def server_of(settings: Settings) -> Iterator[str | None]:
    """The URL of the server that the settings name; None: an embedded one that is not there yet.

    An embedded one that is there is started, and stopped with the block if nobody else uses it.

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
