"""``activedb dashboard``: a page in the browser about a running process."""

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
        typer.Option(help="Address to listen on; other computers cannot reach a loopback address."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 8088,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="ACTIVEDB_DASHBOARD_TOKEN",
            help="Token that visitors must give, at least 16 characters. Required if --host is not "
            "a loopback address.",
        ),
    ] = None,
    writable: Annotated[
        bool,
        typer.Option(
            "--writable",
            help="Let visitors enable and disable rules and resolve decisions, if the monitor also "
            "allows it. Without --token, the command generates a token and prints it.",
        ),
    ] = False,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Do not open a browser; only print the address.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Serve a dashboard of a running process for the browser, until interrupted.

    The process must have its monitor on: adb.connect(…, monitor="on") or ACTIVEDB_MONITOR=on.

    Ctrl-C (status 130) or SIGTERM (status 0) stops the dashboard.
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
