"""``activedb migrate``: the versions of activedb's own tables."""

from __future__ import annotations

from typing import Annotated

import typer

from activedb.cli._options import Json, Trace, Url
from activedb.cli._place import server_of
from activedb.cli._report import Reporter
from activedb.config import Settings
from activedb.database import connect
from activedb.errors import ConfigurationError
from activedb.store.journals import database_migrations
from activedb.store.server import Migrations, migration_sql

__all__ = ["migrate"]


def migrate(
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Only list the migrations that are due; exit with 1 if there are any."
        ),
    ] = False,
    sql: Annotated[
        bool, typer.Option("--sql", help="Only print the SQL statements, for psql or a review.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="With --sql: start from this version (0: no tables), without contacting a server.",
        ),
    ] = None,
    url: Url = None,
    as_json: Json = False,
    show_traceback: Trace = False,
) -> None:
    """Migrate activedb's own tables to the newest version, and list the migrations.

    Programs do this themselves when they connect, unless their role lacks the rights. All
    migrations run in one transaction. Exits with 0; with --check, exits with 1 if migrations are
    due.
    """
    reporter = Reporter(as_json=as_json)
    if check and sql:
        raise ConfigurationError("say --check or --sql, not both")
    if since is not None and not sql:
        raise ConfigurationError("--since goes with --sql: only a script can begin at any version")
    settings = Settings.load(url=url)
    if since is not None:
        _print_sql(None if since.strip("0") == "" else since, reporter, as_json=as_json)
        return
    with reporter.looking("reading the tables"), server_of(settings) as server:
        found = database_migrations(server, settings.db_schema)
        if found.are_newer:
            raise ConfigurationError(
                f"activedb's tables are of version {found.found}, and this activedb knows those up "
                f"to {found.newest}: install the newer activedb that has made them"
            )
        if found.due and not check and not sql:
            reporter.update(f"running {len(found.due)} migrations")
            connect(url, monitor="off").close()  # the monitor is useless for such a short time
    if sql:
        _print_sql(found.found, reporter, as_json=as_json)
        return
    _report(found, reporter, done=not check)
    if check and found.due:
        raise typer.Exit(1)


def _print_sql(found: str | None, reporter: Reporter, *, as_json: bool) -> None:
    try:
        script = migration_sql(found)
    except ValueError as error:
        raise ConfigurationError(f"{error}; activedb migrate --check shows the versions") from error
    if as_json:
        reporter.json({"found": found, "sql": script})
    else:
        typer.echo(script, nl=False)


def _report(found: Migrations, reporter: Reporter, *, done: bool) -> None:
    version = found.found or "none"
    if not found.due:
        title = f"activedb's tables are up to date (version {version})"
    elif done:
        title = f"activedb's tables were migrated from version {version} to {found.newest}"
    else:
        title = f"activedb's tables have version {version}; the newest is {found.newest}"
    record = {
        "found": found.found,
        "newest": found.newest,
        "done": done and bool(found.due),
        "migrations": [{"version": name, "purpose": purpose} for name, purpose in found.due],
    }
    if found.due:
        head = "done" if done else "due"
        reporter.rows(title, (head, "purpose"), found.due, record)
    else:
        reporter.says(title, record)
