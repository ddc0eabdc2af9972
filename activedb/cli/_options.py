"""Options shared by many commands."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Attach", "AttachToken", "Json", "Trace", "Url"]

Url = Annotated[
    str | None,
    typer.Option(help="Database URL. Default: ACTIVEDB_URL, else the embedded Postgres."),
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
        help="Token of that monitor, if it requires one.",
    ),
]
