"""Options that many commands have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Attach", "AttachToken", "Json", "Trace", "Url"]

Url = Annotated[
    str | None,
    typer.Option(help="Database URL; ACTIVEDB_URL by default, else the embedded Postgres."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Trace = Annotated[bool, typer.Option("--traceback", help="Show a traceback when it fails.")]
Attach = Annotated[
    str | None,
    typer.Option(
        help="Address of the process to look at; by default that of the process whose monitor "
        "has written it into the settings' folder."
    ),
]
AttachToken = Annotated[
    str | None,
    typer.Option(
        envvar="ACTIVEDB_MONITOR_TOKEN",
        help="The token of that process, if its monitor has one.",
    ),
]
