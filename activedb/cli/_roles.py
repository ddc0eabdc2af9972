"""``activedb roles``: which rights the roles at the server need, as a table or as statements."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from activedb.cli._report import Reporter
from activedb.config import Settings
from activedb.store.server import rights_of_roles, role_statements

__all__ = ["roles"]


def roles(
    schema: Annotated[
        str | None,
        typer.Option(help="Schema of the tables; ACTIVEDB_DB_SCHEMA by default, else public."),
    ] = None,
    owner: Annotated[
        str, typer.Option(help="The role that owns and migrates the tables.")
    ] = "activedb_owner",
    runner: Annotated[str, typer.Option(help="The role that runs rules.")] = "activedb_runner",
    sql: Annotated[
        bool, typer.Option("--sql", help="Print the statements that make them, for psql.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show a traceback when it fails.")
    ] = False,
) -> None:
    """Show the two roles with the least rights: one migrates, one runs rules and can do no more.

    Nothing is asked of any server, and nothing done: activedb roles --sql | psql does it.
    """
    where = schema or Settings.load().db_schema or "public"
    statements = role_statements(schema=where, owner=owner, runner=runner)
    if sql and not as_json:
        typer.echo(statements, nl=False)
        return
    rights = rights_of_roles(schema=where, owner=owner, runner=runner)
    Reporter(as_json=as_json).rows(
        f"roles for schema {where}",
        ("role", "on", "rights", "why"),
        [(right.role, right.on, right.rights, right.why) for right in rights],
        {"schema": where, "rights": [asdict(right) for right in rights], "sql": statements},
    )
