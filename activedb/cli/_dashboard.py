"""``activedb dashboard``: a page in the browser of what a running process does."""

from __future__ import annotations

import secrets
import sys
import threading
import webbrowser
from collections.abc import Callable
from typing import Annotated
from urllib.parse import quote

import typer

from activedb.cli._options import Attach, AttachToken
from activedb.errors import ConfigurationError

__all__ = ["dashboard"]


def dashboard(
    attach: Attach = None,
    attach_token: AttachToken = None,
    host: Annotated[
        str,
        typer.Option(help="Where to listen; other computers reach it only if not on loopback."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="On which port; 0 for any that is free.")
    ] = 8088,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ACTIVEDB_DASHBOARD_TOKEN",
            help="What visitors have to know: at least 16 characters. Needed if --host is not "
            "loopback.",
        ),
    ] = None,
    writable: Annotated[
        bool,
        typer.Option(
            "--writable",
            help="Let visitors enable and disable rules and make open decisions, if the monitor "
            "allows it, too. Without --token one is made up and said.",
        ),
    ] = False,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open a browser, only say the address.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show a traceback when it fails.")
    ] = False,
) -> None:
    """Show in the browser what a running process does, until interrupted.

    The process must have its monitor on: adb.connect(…, monitor="on") or ACTIVEDB_MONITOR=on.

    Ctrl-C ends it (status 130), SIGTERM as well (status 0).
    """
    from activedb.monitor import attach as attached

    serve = _serve()
    source = attached(attach, attach_token)
    made_up = writable and not token
    if made_up:
        token = secrets.token_urlsafe()
    is_told = made_up or (token is not None and sys.stdout.isatty())

    def ready(address: str) -> None:
        known = f"{address}?token={quote(token or '')}"
        typer.echo(f"dashboard: {known if made_up else address}")
        if not no_open and sys.stdout.isatty():
            shown = known if is_told else address
            threading.Thread(target=webbrowser.open, args=(shown,), daemon=True).start()

    serve(source, host=host, port=port, token=token, writable=writable, on_ready=ready)


def _serve() -> Callable[..., None]:
    try:
        from activedb.dashboard import serve
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "activedb":
            raise
        raise ConfigurationError(
            f"the dashboard needs {error.name}: pip install 'activedb[dashboard]'"
        ) from error
    return serve
