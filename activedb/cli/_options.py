"""Options shared by many commands, and the database of those that inspect it without opening it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from activedb.config import Settings
from activedb.store.server import EmbeddedServer, home_of
from activedb.store.session import wait_for_server

__all__ = ["Attach", "AttachToken", "Json", "Trace", "Url", "not_empty", "server_of"]


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


def not_empty(value: str | None) -> str | None:
    """Refuse the empty value of an option, such as that of a shell variable that is not set."""
    if value == "":
        raise typer.BadParameter("it is empty; leave out the option, or give it a value")
    return value


Url = Annotated[
    str | None,
    typer.Option(
        callback=not_empty,
        help="Database URL. Default: ACTIVEDB_URL, else the embedded Postgres.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Trace = Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")]
Attach = Annotated[
    str | None,
    typer.Option(
        help="Address of the monitor to read. Default: the address that the newest process has "
        "written into the settings folder."
    ),
]
AttachToken = Annotated[
    str | None,
    typer.Option(
        envvar="ACTIVEDB_MONITOR_TOKEN",
        callback=not_empty,
        help="Token of that monitor, if it requires one.",
    ),
]
