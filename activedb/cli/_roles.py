"""``activedb roles``: rights that the server's roles need, as a table or as statements."""

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
        typer.Option(help="Schema of the tables. Default: ACTIVEDB_DB_SCHEMA, else public."),
    ] = None,
    owner: Annotated[
        str, typer.Option(help="Role that owns and migrates the tables.")
    ] = "activedb_owner",
    runner: Annotated[str, typer.Option(help="Role that runs rules.")] = "activedb_runner",
    sql: Annotated[
        bool,
        typer.Option("--sql", help="Print the SQL statements that create the roles, for psql."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object.")
    ] = False,
    show_traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Show the rights of two roles: one that migrates the tables, and one that only runs rules.

    Each role has the fewest rights that it needs. The command contacts no server. To create the
    roles: activedb roles --sql | psql.
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
